#include "tc/segment_view.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tc {

SegmentView::SegmentView(const Pool& pool, SegmentId id) {
  for (const Range& range : pool.place(id).ranges) {
    uint8_t* from = pool.address(range.offset);
    nbytes_ += range.nbytes;
    // Neighbouring extents are neighbours here, though they are two maps for a reader.
    if (!pieces_.empty() && pieces_.back().data() + pieces_.back().size() == from) {
      pieces_.back() = {pieces_.back().data(), pieces_.back().size() + range.nbytes};
      ends_.back() = nbytes_;
    } else {
      pieces_.emplace_back(from, range.nbytes);
      ends_.push_back(nbytes_);
    }
  }
}

std::span<uint8_t> SegmentView::at(uint64_t offset, uint64_t nbytes) const {
  const auto piece = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
  const uint64_t left = ends_[piece] - offset;
  return pieces_[piece].subspan(pieces_[piece].size() - left, std::min(left, nbytes));
}

void SegmentView::write(uint64_t offset, std::span<const uint8_t> bytes) const {
  check(offset, bytes.size());
  while (!bytes.empty()) {
    const auto to = at(offset, bytes.size());
    std::memcpy(to.data(), bytes.data(), to.size());
    offset += to.size();
    bytes = bytes.subspan(to.size());
  }
}

void SegmentView::read(uint64_t offset, std::span<uint8_t> bytes) const {
  check(offset, bytes.size());
  while (!bytes.empty()) {
    const auto from = at(offset, bytes.size());
    std::memcpy(bytes.data(), from.data(), from.size());
    offset += from.size();
    bytes = bytes.subspan(from.size());
  }
}

void SegmentView::check(uint64_t offset, uint64_t nbytes) const {
  if (offset > nbytes_ || nbytes > nbytes_ - offset)
    throw std::out_of_range(std::to_string(nbytes) + " bytes at " + std::to_string(offset) +
                            " lie outside a segment of " + std::to_string(nbytes_));
}

}  // namespace tc
