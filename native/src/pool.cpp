#include "tc/pool.hpp"

#include <mutex>
#include <optional>
#include <unordered_map>

#include "tc/growth.hpp"
#include "tc/prefault.hpp"
#include "tc/segments.hpp"
#include "tc/slab.hpp"

namespace tc {

struct Pool::State {
  // The memory of one segment: a slot, or runs of blocks, or (no bytes) neither.
  struct Home {
    std::optional<Range> slot;
    std::vector<Run> runs;
  };

  explicit State(const PoolOptions& options) : growth(options, MemoryLimit()), prefaulter(mutex, growth) {}

  Home take(uint64_t nbytes);
  Range take_slot(uint64_t slot_bytes);
  void give(SegmentId id);
  void give(const Home& home);
  std::vector<Run> runs(SegmentId id) const;

  mutable std::mutex mutex;
  Growth growth;
  SlabSlots slabs;
  SegmentTable table;
  std::unordered_map<SegmentId, Home> homes;
  const bool huge_pages = shmem_huge_pages();
  Prefaulter prefaulter;  // last: its threads use the rest
};

Pool::State::Home Pool::State::take(uint64_t nbytes) {
  if (nbytes == 0) return {};
  if (nbytes < kSlotBytesMax) return {take_slot(SlabSlots::slot_bytes(nbytes)), {}};
  return {std::nullopt, growth.allocate(nbytes / kBlockBytes + (nbytes % kBlockBytes != 0))};
}

Range Pool::State::take_slot(uint64_t slot_bytes) {
  std::optional<uint64_t> offset = slabs.take(slot_bytes);
  if (!offset) {
    slabs.add(growth.allocate(1).front().first, slot_bytes);
    offset = slabs.take(slot_bytes);
  }
  return {*offset, slot_bytes};
}

void Pool::State::give(SegmentId id) {
  const auto home = homes.extract(id);
  give(home.mapped());
}

void Pool::State::give(const Home& home) {
  if (home.slot) {
    if (const auto block = slabs.give(home.slot->offset)) growth.free({{*block, 1}});
  } else {
    growth.free(home.runs);
  }
}

std::vector<Run> Pool::State::runs(SegmentId id) const {
  const Home& home = homes.at(id);
  return home.slot ? std::vector<Run>{{home.slot->offset / kBlockBytes, 1}} : home.runs;
}

Pool::Pool(const PoolOptions& options) : state_(std::make_unique<State>(options)) {}
Pool::~Pool() = default;

SegmentId Pool::reserve(uint64_t nbytes) {
  const std::lock_guard lock(state_->mutex);
  const State::Home home = state_->take(nbytes);
  SegmentId id = 0;
  try {
    id = state_->table.reserve(nbytes);
    state_->homes.emplace(id, home);
  } catch (...) {  // out of ordinary memory
    state_->give(home);
    if (id != 0) state_->table.drop(id);
    throw;
  }
  if (state_->growth.wants_fault()) state_->prefaulter.wake();
  return id;
}

void Pool::seal(SegmentId id) {
  const std::lock_guard lock(state_->mutex);
  state_->table.seal(id);
}

void Pool::hold(SegmentId id) {
  const std::lock_guard lock(state_->mutex);
  state_->table.hold(id);
}

void Pool::drop(SegmentId id) {
  const std::lock_guard lock(state_->mutex);
  if (state_->table.drop(id)) state_->give(id);
}

void Pool::pin(SegmentId id) {
  const std::lock_guard lock(state_->mutex);
  state_->table.pin(id);
}

void Pool::unpin(SegmentId id) {
  const std::lock_guard lock(state_->mutex);
  if (state_->table.unpin(id)) state_->give(id);
}

bool Pool::begin_write(SegmentId id) {
  const std::lock_guard lock(state_->mutex);
  state_->table.begin_write(id);
  return state_->growth.faulted(state_->runs(id));
}

void Pool::mark_faulted(SegmentId id) {
  const std::lock_guard lock(state_->mutex);
  state_->table.nbytes(id);  // throws on an unknown id
  // A slot's block has other slots, and those may never have been touched.
  if (!state_->homes.at(id).slot) state_->growth.mark_faulted(state_->runs(id));
}

void Pool::end_write(SegmentId id) {
  const std::lock_guard lock(state_->mutex);
  if (state_->table.end_write(id)) state_->give(id);
}

Place Pool::place(SegmentId id) const {
  const std::lock_guard lock(state_->mutex);
  Place place{state_->table.nbytes(id), false, {}};
  const State::Home& home = state_->homes.at(id);
  place.slot = home.slot.has_value();
  place.ranges = home.slot ? std::vector<Range>{*home.slot} : state_->growth.ranges(home.runs);
  uint64_t behind = 0;
  for (const Range& range : place.ranges) behind += range.nbytes;
  if (behind > 0) place.ranges.back().nbytes -= behind - place.nbytes;
  return place;
}

bool Pool::sealed(SegmentId id) const {
  const std::lock_guard lock(state_->mutex);
  return state_->table.state(id) == SegmentState::kSealed;
}

uint8_t* Pool::address(uint64_t offset) const { return state_->growth.extents().origin() + offset; }

int Pool::extent_fd(uint32_t extent) const {
  const std::lock_guard lock(state_->mutex);
  return state_->growth.extents().fd(extent);
}

uint64_t Pool::extent_bytes() const { return state_->growth.extents().extent_bytes(); }

PoolStats Pool::stats() const {
  const std::lock_guard lock(state_->mutex);
  const Growth& growth = state_->growth;
  const SegmentTotals& totals = state_->table.totals();
  PoolStats stats{};
  stats.capacity_bytes = growth.blocks_max() * kBlockBytes;
  stats.grown_bytes = growth.granted_blocks() * kBlockBytes;
  stats.faulted_bytes = stats.grown_bytes - growth.promised_bytes();
  stats.free_bytes = growth.free_blocks() * kBlockBytes;
  stats.longest_run_bytes = growth.longest_run() * kBlockBytes;
  stats.reserved_bytes = totals.reserved_bytes;
  stats.used_bytes = totals.used_bytes;
  stats.pinned_bytes = totals.pinned_bytes;
  stats.dropped_pinned_bytes = totals.dropped_bytes;
  stats.rounding_bytes =
      stats.capacity_bytes - stats.free_bytes - totals.reserved_bytes - totals.used_bytes - totals.dropped_bytes;
  stats.slot_bytes = state_->slabs.blocks() * kBlockBytes;
  stats.segments = state_->table.size();
  stats.pins = totals.pins;
  stats.huge_pages = state_->huge_pages ? 1 : 0;
  return stats;
}

void Pool::stop() { state_->prefaulter.stop(); }

}  // namespace tc
