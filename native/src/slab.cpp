#include "tc/slab.hpp"

#include <bit>
#include <stdexcept>
#include <string>

namespace tc {

uint64_t SlabSlots::slot_bytes(uint64_t nbytes) {
  if (nbytes == 0 || nbytes > kSlotBytesMax)
    throw std::logic_error("no slot class holds " + std::to_string(nbytes) + " bytes");
  return std::max(kSlotBytesMin, std::bit_ceil(nbytes));
}

std::optional<uint64_t> SlabSlots::take(uint64_t slot_bytes) {
  const auto open = open_.find(slot_bytes);
  if (open == open_.end() || open->second.empty()) return std::nullopt;
  const uint64_t block = *open->second.begin();
  Slab& slab = slabs_.at(block);
  uint64_t slot = 0;
  while (slab.taken[slot]) ++slot;
  slab.taken[slot] = true;
  if (++slab.used == slab.slots()) open->second.erase(block);
  return block * kBlockBytes + slot * slot_bytes;
}

void SlabSlots::add(uint64_t block, uint64_t slot_bytes) {
  if (slot_bytes != SlabSlots::slot_bytes(slot_bytes))
    throw std::logic_error(std::to_string(slot_bytes) + " bytes are no slot class");
  if (!slabs_.emplace(block, Slab{slot_bytes, 0, {}}).second)
    throw std::logic_error("block " + std::to_string(block) + " is a slab already");
  open_[slot_bytes].insert(block);
}

std::optional<uint64_t> SlabSlots::give(uint64_t offset) {
  const uint64_t block = offset / kBlockBytes;
  const auto at = slabs_.find(block);
  const uint64_t within = offset % kBlockBytes;
  if (at == slabs_.end() || within % at->second.slot_bytes != 0 || !at->second.taken[within / at->second.slot_bytes])
    throw std::logic_error("double free: no slot is in use at offset " + std::to_string(offset));
  Slab& slab = at->second;
  slab.taken[within / slab.slot_bytes] = false;
  if (--slab.used > 0) {
    open_[slab.slot_bytes].insert(block);
    return std::nullopt;
  }
  open_[slab.slot_bytes].erase(block);
  slabs_.erase(at);
  return block;
}

}  // namespace tc
