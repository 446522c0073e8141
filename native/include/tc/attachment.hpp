// What a caller holds of an attach: it names the segments, hands out tensors and views, and can say that it
// is done. Its own reference to the mapping is not a borrowed one. Segment 0 is the artifact's manifest.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "tc/mapping.hpp"

namespace tc {

class Attachment {
 public:
  explicit Attachment(Mapping::Ref mapping)
      : segments_(mapping->segments()), mapped_bytes_(mapping->mapped_bytes()), mapping_(std::move(mapping)) {}

  size_t segments() const { return segments_; }
  uint64_t mapped_bytes() const { return mapping_ ? mapped_bytes_ : 0; }
  uint32_t borrowed() const { return mapping_ ? mapping_->others() : 0; }

  // All bytes of one segment. Throws std::invalid_argument after release(), or where there is no such
  // segment.
  std::span<uint8_t> segment(size_t index) const;
  // A part of it; the check cannot overflow.
  std::span<uint8_t> part(size_t index, uint64_t offset, uint64_t nbytes) const;
  // A reference for an export. Throws as segment() does.
  Mapping::Ref borrow() const;
  // Unmaps when nothing is borrowed and returns 0; else returns how many exports live.
  uint32_t release();

 private:
  size_t segments_;
  uint64_t mapped_bytes_;
  Mapping::Ref mapping_;
};

}  // namespace tc
