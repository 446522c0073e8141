// The end of a fill, on its way to whoever started it (Python, in a storage).
#pragma once
#include <vector>

#include "tc/fill.hpp"

namespace tc {

struct FillDone {
  uint64_t id = 0;  // the request id, or the token given to load()
  FillResult result;
  std::vector<SegmentId> segments;  // on kOk: sealed, one user each; else empty: all were freed
};

}  // namespace tc
