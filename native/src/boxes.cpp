#include "tc/boxes.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tc {

namespace {

constexpr uint64_t kOffsetMax = uint64_t(1) << 63;
__extension__ typedef unsigned __int128 Wide;  // ISO C++ has no name for it

// No offset of the box leaves its 64 bits: what is added up below cannot wrap.
void check_reach(const Piece& first, const std::vector<uint64_t>& counts, const std::vector<uint64_t>& strides) {
  Wide bytes = first.nbytes;
  Wide last = Wide(first.src) + first.nbytes;
  for (size_t i = 0; i < counts.size() && bytes <= kOffsetMax && last <= kOffsetMax; ++i) {
    bytes *= counts[i];
    last += Wide(counts[i] - 1) * strides[i];
  }
  if (bytes > kOffsetMax || last > kOffsetMax || Wide(first.dst) + bytes > kOffsetMax) {
    throw std::invalid_argument("a box reaches beyond 2^63");
  }
}

// Innermost dimensions whose runs lie together are one longer run.
void fold(Piece& first, std::vector<uint64_t>& counts, std::vector<uint64_t>& strides) {
  while (!counts.empty() && (counts.back() == 1 || strides.back() == first.nbytes)) {
    first.nbytes *= counts.back();
    counts.pop_back();
    strides.pop_back();
  }
}

uint64_t runs_of(const std::vector<uint64_t>& counts, uint64_t pieces_max) {
  uint64_t runs = 1;
  for (const uint64_t count : counts) {
    if (count > pieces_max / runs) {
      throw std::invalid_argument("a box has more than " + std::to_string(pieces_max) +
                                  " runs of bytes, which is the limit");
    }
    runs *= count;
  }
  return runs;
}

}  // namespace

std::vector<Piece> box_pieces(Piece first, std::vector<uint64_t> counts, std::vector<uint64_t> strides,
                              uint64_t pieces_max) {
  if (counts.size() != strides.size()) throw std::invalid_argument("a box has as many strides as counts");
  if (first.nbytes == 0 || std::find(counts.begin(), counts.end(), 0u) != counts.end()) return {};
  check_reach(first, counts, strides);
  fold(first, counts, strides);
  const uint64_t runs = runs_of(counts, pieces_max);
  std::vector<Piece> pieces;
  pieces.reserve(runs);
  std::vector<uint64_t> at(counts.size());
  Piece next = first;
  for (uint64_t run = 0; run < runs; ++run) {
    pieces.push_back(next);
    next.dst += first.nbytes;
    // The innermost dimension counts up, those that are full start over.
    for (size_t d = counts.size(); d-- > 0;) {
      next.src += strides[d];
      if (++at[d] < counts[d]) break;
      next.src -= counts[d] * strides[d];
      at[d] = 0;
    }
  }
  return pieces;
}

}  // namespace tc
