// What a client is told to map for one artifact: where each segment lies, the extents' descriptors, and the
// bytes of the small segments.
#pragma once
#include <vector>

#include "tc/catalog.hpp"
#include "tc/message.hpp"

namespace tc {

struct AttachAnswer {
  Attached message;                 // its pin is the caller's to set
  std::vector<int> fds;             // the pool's own, one an extent
  std::vector<SegmentId> borrowed;  // must be pinned before the answer leaves
};

// The artifact's segments, the manifest's first, or that one alone. The artifact must stay published
// meanwhile.
AttachAnswer answer_attach(const Pool& pool, const Published& entry, bool manifest_only);

}  // namespace tc
