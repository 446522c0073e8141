// Slots for small segments: a block cut in equal slots of one power-of-two class, 4 KiB to 256 KiB. Pure
// bookkeeping; the pool brings blocks when no slot is free and takes back a block whose slots are all free.
// Invariant: a slab always has a slot in use, except between add() and the next take().
#pragma once
#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "tc/pool.hpp"

namespace tc {

inline constexpr uint64_t kSlotBytesMin = 4u << 10;

class SlabSlots {
 public:
  // The class that holds nbytes (1 to kSlotBytesMax); std::logic_error outside.
  static uint64_t slot_bytes(uint64_t nbytes);

  // Offset in the pool of a slot of this class, the lowest free one; nothing when a block must be added
  // first.
  std::optional<uint64_t> take(uint64_t slot_bytes);
  void add(uint64_t block, uint64_t slot_bytes);

  // Gives a slot back; returns its block when that is wholly free now. std::logic_error when not in use.
  std::optional<uint64_t> give(uint64_t offset);

  uint64_t blocks() const { return slabs_.size(); }

 private:
  struct Slab {
    uint64_t slot_bytes;
    uint64_t used;
    std::bitset<kBlockBytes / kSlotBytesMin> taken;
    uint64_t slots() const { return kBlockBytes / slot_bytes; }
  };
  std::map<uint64_t, Slab> slabs_;               // block -> slab
  std::map<uint64_t, std::set<uint64_t>> open_;  // slot bytes -> blocks with a free slot
};

}  // namespace tc
