// A Python buffer, held while native code reads it: bytes, memoryview, array or numpy, contiguous.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

class HeldBuffer {
 public:
  explicit HeldBuffer(nanobind::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
  }
  ~HeldBuffer() { PyBuffer_Release(&view_); }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

  std::span<const uint8_t> bytes() const {
    return {static_cast<const uint8_t*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// Packed little-endian structs, as `struct.pack` makes them, copied to where T may lie. ValueError on odd
// sizes.
template <class T>
std::vector<T> unpack(const nanobind::bytes& packed, const char* what) {
  if (packed.size() % sizeof(T) != 0)
    throw std::invalid_argument(std::string(what) + " are " + std::to_string(packed.size()) +
                                " bytes, no multiple of " + std::to_string(sizeof(T)));
  std::vector<T> items(packed.size() / sizeof(T));
  if (!items.empty()) std::memcpy(static_cast<void*>(items.data()), packed.data(), packed.size());
  return items;
}
