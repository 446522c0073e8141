// A box of a strided source as pieces of a fill: one piece a run of bytes that lie together.
#pragma once
#include <cstdint>
#include <vector>

#include "tc/fill.hpp"

namespace tc {

// `first` is the first run's piece; `counts` and `strides` (bytes) are those of the outer dimensions, outermost first;
// every run follows the one before it in the destination. Inner runs that lie together in the source too become one.
// Throws std::invalid_argument above `pieces_max` or where an offset would leave 64 bits.
std::vector<Piece> box_pieces(Piece first, std::vector<uint64_t> counts, std::vector<uint64_t> strides,
                              uint64_t pieces_max);

}  // namespace tc
