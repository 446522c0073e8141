// The pool's memory: one range of addresses reserved for the whole capacity, backed piece by piece with
// memfds. Each memfd is mapped writable here once and then sealed (SHRINK, GROW, FUTURE_WRITE, SEAL): from
// then on the kernel refuses every other writable map and every pwrite, in any process. Creating takes no
// memory; touching does. The pool's lock guards create(); addresses never change.
#pragma once
#include <cstdint>
#include <vector>

#include "tc/fd.hpp"

namespace tc {

class Extents {
 public:
  // Reserves addresses only. Both sizes are whole blocks; the last extent may be shorter. std::system_error.
  Extents(uint64_t capacity_bytes, uint64_t extent_bytes);
  ~Extents();
  Extents(const Extents&) = delete;
  Extents& operator=(const Extents&) = delete;

  void create_next();  // std::system_error; std::logic_error when all exist
  uint32_t count() const { return static_cast<uint32_t>(fds_.size()); }
  uint64_t bytes(uint32_t extent) const;  // its size, created or not
  uint64_t extent_bytes() const { return extent_bytes_; }
  uint64_t backed_bytes(uint32_t extent) const;  // memory the kernel gave it so far
  uint8_t* origin() const { return origin_; }
  int fd(uint32_t extent) const;  // std::out_of_range when not created

 private:
  uint64_t capacity_bytes_, extent_bytes_;
  uint8_t* reserved_ = nullptr;  // what mmap gave; origin_ is its first block-aligned address
  uint8_t* origin_ = nullptr;
  std::vector<Fd> fds_;
};

// Faults pages in without changing them. Returns 0 or errno; never raises a signal.
int populate(uint8_t* from, uint64_t nbytes);

// Whether the kernel gives memfds huge pages on request.
bool shmem_huge_pages();

}  // namespace tc
