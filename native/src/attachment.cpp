#include "tc/attachment.hpp"

#include <stdexcept>

namespace tc {

std::span<uint8_t> Attachment::segment(size_t index) const {
  if (!mapping_) throw std::invalid_argument("this attachment was released: attach the artifact again");
  if (index >= segments_) {
    throw std::invalid_argument("segment " + std::to_string(index) + " is not one of the attachment's " +
                                std::to_string(segments_));
  }
  return mapping_->segment(index);
}

std::span<uint8_t> Attachment::part(size_t index, uint64_t offset, uint64_t nbytes) const {
  const std::span<uint8_t> whole = segment(index);
  if (offset > whole.size() || nbytes > whole.size() - offset) {
    throw std::invalid_argument(std::to_string(nbytes) + " bytes at offset " + std::to_string(offset) +
                                " lie outside segment " + std::to_string(index) + " of " +
                                std::to_string(whole.size()) + " bytes");
  }
  return whole.subspan(offset, nbytes);
}

Mapping::Ref Attachment::borrow() const {
  if (!mapping_) throw std::invalid_argument("this attachment was released: attach the artifact again");
  return mapping_->join();
}

uint32_t Attachment::release() {
  if (!mapping_) return 0;
  const uint32_t others = mapping_->leave_if_alone();
  if (others == 0) mapping_.release();  // the reference went with the mapping
  return others;
}

}  // namespace tc
