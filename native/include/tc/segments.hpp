// States of segments: reserved -> sealed -> dropped. Pure bookkeeping; the pool maps ids to memory.
// A segment is freed, and its id unknown for ever after, once it has no user and no pin. While it is being
// written (begin_write to end_write) its pin is the writer, so that dropping it cannot hand its blocks to
// somebody else. Misuse throws std::logic_error, an unknown id std::out_of_range; both change nothing.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

#include "tc/pool.hpp"

namespace tc {

enum class SegmentState { kUnknown, kReserved, kSealed, kDropped };

// Sums over living segments, in bytes of content except `pins`.
struct SegmentTotals {
  uint64_t reserved_bytes = 0, used_bytes = 0, pinned_bytes = 0, dropped_bytes = 0, pins = 0;
};

class SegmentTable {
 public:
  SegmentId reserve(uint64_t nbytes);  // state reserved, one user
  void seal(SegmentId id);             // reserved -> sealed
  void hold(SegmentId id);             // one more user of a sealed segment
  bool drop(SegmentId id);             // one user less; true when this freed it
  void pin(SegmentId id);              // a reader of a sealed segment
  bool unpin(SegmentId id);            // true when this freed it
  void begin_write(SegmentId id);      // a writer of a reserved segment
  bool end_write(SegmentId id);        // true when this freed it

  SegmentState state(SegmentId id) const;
  uint64_t nbytes(SegmentId id) const;
  uint64_t size() const { return entries_.size(); }
  const SegmentTotals& totals() const { return totals_; }

 private:
  struct Entry {
    uint64_t nbytes = 0;
    SegmentState state = SegmentState::kReserved;
    uint64_t users = 1;
    uint64_t pins = 0;
    uint64_t writers = 0;
  };
  class Change;  // keeps totals_ right around a change of one entry

  Entry& find(SegmentId id);
  bool freed(SegmentId id);

  SegmentId last_ = 0;
  std::unordered_map<SegmentId, Entry> entries_;
  SegmentTotals totals_;
};

const char* name(SegmentState state);

}  // namespace tc
