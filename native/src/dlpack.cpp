#include "tc/dlpack.hpp"

#include <stdexcept>
#include <string>

namespace tc {

namespace {

constexpr int32_t kCpu = 1;
constexpr size_t kDimensionsMax = 64;

struct Export {
  DlManagedTensor managed{};
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  Mapping::Ref mapping;
};

// Strides of a dense row-major tensor, and how many items it has. A dimension of zero counts as one for
// strides.
uint64_t lay_out(const std::vector<int64_t>& shape, std::vector<int64_t>& strides) {
  strides.assign(shape.size(), 1);
  int64_t step = 1;
  bool empty = false;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] < 0) throw std::invalid_argument("a shape has a negative dimension: " + std::to_string(shape[i]));
    strides[i] = step;
    empty = empty || shape[i] == 0;
    if (__builtin_mul_overflow(step, shape[i] == 0 ? 1 : shape[i], &step)) {
      throw std::invalid_argument("a shape has more items than can be counted");
    }
  }
  return empty ? 0 : static_cast<uint64_t>(step);
}

}  // namespace

DlManagedTensor* export_tensor(const Attachment& attachment, size_t segment, uint64_t offset,
                               const std::vector<int64_t>& shape, uint8_t code, uint8_t bits) {
  if (bits < 8 || bits > 128 || (bits & (bits - 1)) != 0) {
    throw std::invalid_argument("items of " + std::to_string(bits) +
                                " bits cannot be exported; take the bytes as uint8");
  }
  if (shape.size() > kDimensionsMax) throw std::invalid_argument("a tensor has at most 64 dimensions");
  const uint64_t item_bytes = bits / 8;
  auto out = std::make_unique<Export>();
  out->shape = shape;
  uint64_t nbytes;
  if (__builtin_mul_overflow(lay_out(shape, out->strides), item_bytes, &nbytes)) {
    throw std::invalid_argument("a shape has more bytes than can be counted");
  }
  uint8_t* const data = attachment.part(segment, offset, nbytes).data();
  if (offset % item_bytes != 0) {
    throw std::invalid_argument("offset " + std::to_string(offset) + " is not a multiple of the item size " +
                                std::to_string(item_bytes) + ": copy the tensor instead");
  }
  out->mapping = attachment.borrow();
  DlTensor& tensor = out->managed.tensor;
  tensor = {
      data, {kCpu, 0}, static_cast<int32_t>(shape.size()), {code, bits, 1}, out->shape.data(), out->strides.data(), 0};
  out->managed.context = out.get();
  out->managed.deleter = [](DlManagedTensor* self) { delete static_cast<Export*>(self->context); };
  return &out.release()->managed;
}

}  // namespace tc
