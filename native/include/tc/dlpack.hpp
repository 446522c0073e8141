// Tensors for others, by DLPack (the unversioned struct that every consumer takes; layout of dlpack.h, DLPack
// 0.8: https://dmlc.github.io/dlpack). The deleter is C++ alone: any thread, no Python, also after the
// interpreter ended.
#pragma once
#include <cstdint>
#include <vector>

#include "tc/attachment.hpp"

namespace tc {

struct DlDevice {
  int32_t type;  // 1 is the CPU
  int32_t id;
};

struct DlType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor* self);
};

// A dense, row-major tensor over part of a segment; borrowed until its deleter runs. Throws
// std::invalid_argument for a shape or type that does not fit, lies outside the segment, or is not aligned to
// its item size.
DlManagedTensor* export_tensor(const Attachment& attachment, size_t segment, uint64_t offset,
                               const std::vector<int64_t>& shape, uint8_t code, uint8_t bits);

}  // namespace tc
