// The pool: all host memory of one storage. It owns extents (memfds, pre-faulted ahead of demand and kept),
// the block allocator, the slab slots and the segment table; the local server and the fill engine call it
// from several threads. Invariants: only this process writes pool memory; a sealed segment is never written;
// blocks return to the allocator only when no artifact uses their segment and no reader maps it.
#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tc {

using SegmentId = uint64_t;

inline constexpr uint64_t kBlockBytes = 2u << 20;      // one block
inline constexpr uint64_t kSlotBytesMax = 256u << 10;  // segments below this live in slab slots
inline constexpr uint32_t kRunsMax = 1024;             // runs of one segment (mmap fails near 65,000 maps)

// No room: a capacity or memory limit; both figures are bytes.
struct PoolFull : std::runtime_error {
  PoolFull(const std::string& why, uint64_t free_bytes_, uint64_t longest_run_bytes_)
      : std::runtime_error(why), free_bytes(free_bytes_), longest_run_bytes(longest_run_bytes_) {}
  uint64_t free_bytes;
  uint64_t longest_run_bytes;
};

struct PoolOptions {
  uint64_t capacity_bytes = 0;
  uint64_t extent_bytes_max = 1u << 30;        // extent = min(this, capacity / 8), whole blocks, at least one
  uint64_t prefault_ahead_bytes = 1u << 30;    // kept faulted and free by the background thread
  uint64_t memory_reserve_bytes = 512u << 20;  // left to the rest of the host by every growth
};

// A piece of pool memory; offsets are relative to Pool::address(0). A range never crosses an extent.
struct Range {
  uint64_t offset;
  uint64_t nbytes;
};

// Where a segment lies: one slot, or ranges of blocks in the order of the segment's bytes. The ranges' bytes
// add up to nbytes, so all but the last are whole blocks; memory goes on behind the last one to the end of
// its block or slot. A segment of no bytes has no range.
struct Place {
  uint64_t nbytes = 0;
  bool slot = false;
  std::vector<Range> ranges;
};

// Bytes, except where named otherwise. capacity = free + reserved + used + dropped_pinned + rounding; pinned
// overlaps used and dropped_pinned; free counts memory that the pool has yet to grow by; slot is what slabs
// hold.
struct PoolStats {
  uint64_t capacity_bytes, grown_bytes, faulted_bytes, free_bytes, longest_run_bytes;
  uint64_t reserved_bytes, used_bytes, pinned_bytes, dropped_pinned_bytes, rounding_bytes, slot_bytes;
  uint64_t segments, pins;
  uint64_t huge_pages;  // 1 when the kernel gives extents huge pages on request, else 0
};

class Pool {
 public:
  // Throws std::invalid_argument on a capacity that this host or its memory cgroup cannot hold.
  explicit Pool(const PoolOptions& options);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  SegmentId reserve(uint64_t nbytes);  // state reserved, one user (the caller); throws PoolFull
  void seal(SegmentId id);             // reserved -> sealed; throws std::logic_error otherwise
  void hold(SegmentId id);             // one more user of a sealed segment
  void drop(SegmentId id);             // one user less; the last one frees it, once nobody maps it
  void pin(SegmentId id);              // a reader maps it
  void unpin(SegmentId id);
  Place place(SegmentId id) const;  // throws std::out_of_range on an unknown id
  bool sealed(SegmentId id) const;

  // Around writing a reserved segment: until end_write a drop does not hand its memory on. begin_write says
  // whether all of it is faulted in already; mark_faulted says that it is now.
  bool begin_write(SegmentId id);
  void mark_faulted(SegmentId id);
  void end_write(SegmentId id);

  uint8_t* address(uint64_t offset) const;  // this process's writable map
  int extent_fd(uint32_t extent) const;     // of extent offset / extent_bytes(); stays the pool's
  uint64_t extent_bytes() const;
  PoolStats stats() const;
  void stop();  // ends the pre-fault thread; idempotent

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tc
