// What a fill job asks for, checked and cut into work. Offsets in a job come from other processes: everything
// is checked here, with arithmetic that cannot overflow, before a byte moves; the readers rely on it.
#pragma once
#include <cstdint>
#include <vector>

#include "tc/fill.hpp"
#include "tc/segment_view.hpp"

namespace tc {

// Throws Trouble{kBadPlan}, whose text names the piece or row. Does not look at segments' states.
void check_plan(const FillJob& job);

// Rows may overlap (one tensor under several names), but all together they cover their segments at most this
// often: each costs a digest and a table entry a chunk, and a plan comes from another process.
inline constexpr uint64_t kRowOverlapMax = 16;

// A piece of a piece: its destination is one stretch of memory.
struct Fragment {
  PieceKind kind;
  uint32_t segment;
  uint32_t src_index;
  uint64_t dst;
  uint64_t src;
  std::span<uint8_t> to;
};

// Fragments first ... first + count - 1, which one thread moves in one go.
struct Unit {
  size_t first;
  size_t count;
  uint64_t nbytes;
};

// Units done one after the other by one thread: one unit, or all that come from a stream.
struct Task {
  size_t first;
  size_t count;
};

// The work of one phase; fragments of a unit have one kind and, for files, one file. Units end where long
// chunks of tensors do, so that one thread brings and digests such a chunk; reads from a disk end at
// multiples in the file.
struct Work {
  std::vector<Fragment> fragments;
  std::vector<Unit> units;
  std::vector<Task> tasks;
};

inline constexpr uint64_t kUnitBytesMax = 4u << 20;
inline constexpr uint64_t kStepBytesMax = 512u << 10;  // moved, then digested while half a core's cache holds it
inline constexpr size_t kUnitFragmentsMax = 512;       // an iovec list holds 1,024

// Everything but kSegment pieces, and then these. `views` are the job's segments; `from_disk` says which
// files will not come from the page cache.
Work work_from_sources(const FillJob& job, const std::vector<SegmentView>& views, const std::vector<bool>& from_disk);
Work work_between_segments(const FillJob& job, const std::vector<SegmentView>& views);

}  // namespace tc
