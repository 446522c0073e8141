// Where the bytes of one segment are in this process, so that code can write and digest across its ranges.
// Made from Pool::place; valid as long as the segment is.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tc/pool.hpp"

namespace tc {

class SegmentView {
 public:
  SegmentView(const Pool& pool, SegmentId id);

  uint64_t nbytes() const { return nbytes_; }

  // The longest piece of memory from `offset` on, at most nbytes; offset < nbytes().
  std::span<uint8_t> at(uint64_t offset, uint64_t nbytes) const;

  // Copies; std::out_of_range outside the segment.
  void write(uint64_t offset, std::span<const uint8_t> bytes) const;
  void read(uint64_t offset, std::span<uint8_t> bytes) const;
  void check(uint64_t offset, uint64_t nbytes) const;

 private:
  uint64_t nbytes_ = 0;
  std::vector<uint64_t> ends_;  // within the segment, of each piece
  std::vector<std::span<uint8_t>> pieces_;
};

}  // namespace tc
