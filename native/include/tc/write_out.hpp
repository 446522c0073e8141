// From the pool to a file: the one way out for bytes that are to outlive the pool.
#pragma once
#include <cstdint>

#include "tc/pool.hpp"

namespace tc {

// Writes `nbytes` from `offset` of a sealed segment to the same place of an open file, and holds the segment meanwhile.
// Throws std::system_error where the file does not take them, std::logic_error for a segment that is not sealed or has
// no such part.
void write_out(Pool& pool, SegmentId id, int fd, uint64_t offset, uint64_t nbytes);

}  // namespace tc
