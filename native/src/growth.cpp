#include "tc/growth.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>

namespace tc {
namespace {

constexpr uint8_t kFree = 1, kFaulted = 2, kFaulting = 4;
constexpr uint64_t kExtentsPerPool = 8;

uint64_t checked_blocks(const PoolOptions& options, const MemoryLimit& limit) {
  const auto text = [](uint64_t bytes) { return std::to_string(bytes); };
  if (options.capacity_bytes < kBlockBytes)
    throw std::invalid_argument("capacity_bytes " + text(options.capacity_bytes) + " is below one block of " +
                                text(kBlockBytes) + " bytes");
  if (options.extent_bytes_max < kBlockBytes)
    throw std::invalid_argument("extent_bytes_max " + text(options.extent_bytes_max) + " is below one block of " +
                                text(kBlockBytes) + " bytes");
  const MemoryRoom total = limit.total();
  if (options.capacity_bytes > total.bytes || options.memory_reserve_bytes > total.bytes - options.capacity_bytes)
    throw std::invalid_argument("capacity_bytes " + text(options.capacity_bytes) + " does not fit: " + total.source +
                                " has " + text(total.bytes) + " bytes, of which " + text(options.memory_reserve_bytes) +
                                " (memory_reserve_bytes) are left to others; choose a smaller capacity");
  return options.capacity_bytes / kBlockBytes;
}

uint64_t blocks_of_extent(const PoolOptions& options, uint64_t blocks_max) {
  return std::max<uint64_t>(1, std::min(options.extent_bytes_max / kBlockBytes, blocks_max / kExtentsPerPool));
}

}  // namespace

Growth::Growth(const PoolOptions& options, MemoryLimit limit)
    : blocks_max_(checked_blocks(options, limit)),
      extent_blocks_(blocks_of_extent(options, blocks_max_)),
      ahead_blocks_(options.prefault_ahead_bytes / kBlockBytes),
      reserve_bytes_(options.memory_reserve_bytes),
      limit_(std::move(limit)),
      extents_(blocks_max_ * kBlockBytes, extent_blocks_ * kBlockBytes),
      allocator_(blocks_max_),
      unbacked_blocks_((blocks_max_ + extent_blocks_ - 1) / extent_blocks_) {}

std::vector<Run> Growth::allocate(uint64_t blocks) {
  if (blocks > free_blocks())
    refuse("no room for " + std::to_string(blocks * kBlockBytes) + " bytes: capacity " +
           std::to_string(blocks_max_ * kBlockBytes) + ", free " + std::to_string(free_blocks() * kBlockBytes) +
           "; drop artifacts or raise capacity_bytes");
  if (blocks > allocator_.free_blocks()) grant(blocks - allocator_.free_blocks());
  std::vector<Run> runs;
  try {
    runs = allocator_.allocate(blocks);
  } catch (const PoolFull&) {
    // What is free is in too many pieces; new blocks are in one.
    const uint64_t more = std::min(blocks, blocks_max_ - granted_blocks());
    if (more == 0) throw;
    grant(more);
    runs = allocator_.allocate(blocks);
  }
  change(runs, 0, kFree);
  if (ranges(runs).size() > kRunsMax) {
    free(runs);
    refuse(std::to_string(blocks * kBlockBytes) + " bytes would take over " + std::to_string(kRunsMax) +
           " ranges in extents of " + std::to_string(extent_blocks_ * kBlockBytes) + " bytes");
  }
  return runs;
}

void Growth::free(const std::vector<Run>& runs) {
  allocator_.free(runs);
  change(runs, kFree, 0);
}

std::vector<Range> Growth::ranges(const std::vector<Run>& runs) const {
  std::vector<Range> ranges;
  for (Run run : runs) {
    while (run.count > 0) {
      const uint64_t count = std::min(run.count, extent_blocks_ - run.first % extent_blocks_);
      ranges.push_back({run.first * kBlockBytes, count * kBlockBytes});
      run = {run.first + count, run.count - count};
    }
  }
  return ranges;
}

bool Growth::faulted(const std::vector<Run>& runs) const {
  return std::all_of(runs.begin(), runs.end(), [&](const Run& run) {
    const auto from = flags_.begin() + static_cast<int64_t>(run.first);
    return std::all_of(from, from + static_cast<int64_t>(run.count), [](uint8_t f) { return (f & kFaulted) != 0; });
  });
}

void Growth::mark_faulted(const std::vector<Run>& runs) { change(runs, kFaulted, 0); }

std::optional<Run> Growth::next_fault() {
  short_of_memory_ = false;
  if (ready_blocks_ >= ahead_blocks_) return std::nullopt;
  const uint64_t wanted = std::min(ahead_blocks_ - ready_blocks_, kPrefaultChunkBytes / kBlockBytes);
  MemoryRoom available;
  if (unready_blocks_ == 0) {
    const uint64_t left_in_extent = extent_blocks_ - granted_blocks() % extent_blocks_;
    const uint64_t blocks = std::min({wanted, blocks_max_ - granted_blocks(), left_in_extent});
    if (blocks == 0) return std::nullopt;
    short_of_memory_ = room_blocks(available) < static_cast<int64_t>(blocks);
    if (!short_of_memory_) grant(blocks);
  } else {
    // Granted before; but others may have taken that memory since.
    short_of_memory_ = room_blocks(available) < 0;
  }
  if (short_of_memory_) return std::nullopt;
  const auto unready = [](uint8_t f) { return (f & (kFree | kFaulted | kFaulting)) == kFree; };
  const auto from = std::find_if(flags_.begin(), flags_.end(), unready);
  if (from == flags_.end()) return std::nullopt;
  Run run{static_cast<uint64_t>(from - flags_.begin()), 0};
  for (auto at = from; at != flags_.end() && unready(*at) && run.count < wanted; ++at) ++run.count;
  change({run}, kFaulting, 0);
  return run;
}

void Growth::end_fault(Run run, bool backed) {
  change({run}, backed ? kFaulted : 0, kFaulting);
  short_of_memory_ = !backed;
}

uint64_t Growth::longest_run() const {
  const uint64_t tail = allocator_.free_before(granted_blocks()) + blocks_max_ - granted_blocks();
  return std::max(allocator_.longest_run(), tail);
}

uint64_t Growth::promised_bytes() const {
  uint64_t promised = 0;
  for (uint32_t extent = 0; extent < extents_.count(); ++extent) {
    if (unbacked_blocks_[extent] == 0) continue;
    const uint64_t first = uint64_t(extent) * extent_blocks_;
    const uint64_t granted = std::min(extent_blocks_, granted_blocks() - first) * kBlockBytes;
    // The kernel's own count, since a block being filled is backed page by page.
    promised += granted - std::min(granted, extents_.backed_bytes(extent));
  }
  return promised;
}

// Blocks that may be granted now; negative when the memory promised so far is not there any more.
int64_t Growth::room_blocks(MemoryRoom& available) const {
  // Promised first: pages faulted between the two readings then count twice, never not at all.
  const auto promised = static_cast<int64_t>(promised_bytes());
  available = limit_.available();
  const auto bytes = static_cast<int64_t>(std::min<uint64_t>(available.bytes, INT64_MAX));
  const int64_t left = bytes - static_cast<int64_t>(reserve_bytes_) - promised;
  return left < 0 ? -1 : left / static_cast<int64_t>(kBlockBytes);
}

void Growth::grant(uint64_t blocks) {
  MemoryRoom available;
  const int64_t room = std::max<int64_t>(0, room_blocks(available));
  if (room < static_cast<int64_t>(blocks)) {
    const uint64_t usable = allocator_.free_blocks() + std::min<uint64_t>(room, blocks_max_ - granted_blocks());
    throw PoolFull("the pool cannot grow by " + std::to_string(blocks * kBlockBytes) + " bytes: " + available.source +
                       " has " + std::to_string(available.bytes) + " bytes available, of which " +
                       std::to_string(reserve_bytes_) + " (memory_reserve_bytes) are left to others and " +
                       std::to_string(promised_bytes()) + " are promised already; free memory or drop artifacts",
                   usable * kBlockBytes, std::min(usable, longest_run()) * kBlockBytes);
  }
  const uint64_t first = granted_blocks();
  try {
    while (uint64_t(extents_.count()) * extent_blocks_ < first + blocks) extents_.create_next();
  } catch (const std::system_error& error) {  // no descriptor, or too many maps
    refuse(std::string("the pool cannot grow: ") + error.what());
  }
  flags_.resize(first + blocks, 0);
  for (uint64_t block = first; block < first + blocks; ++block) ++unbacked_blocks_[block / extent_blocks_];
  allocator_.add(first, blocks);
  change({{first, blocks}}, kFree, 0);
}

void Growth::change(const std::vector<Run>& runs, uint8_t set, uint8_t clear) {
  const auto count = [&](uint64_t block, uint64_t sign) {
    const uint8_t flags = flags_[block];
    if ((flags & kFree) != 0) ((flags & (kFaulted | kFaulting)) != 0 ? ready_blocks_ : unready_blocks_) += sign;
    if ((flags & kFaulted) == 0) unbacked_blocks_[block / extent_blocks_] += sign;
  };
  for (const Run& run : runs) {
    for (uint64_t block = run.first; block < run.first + run.count; ++block) {
      count(block, uint64_t(-1));
      flags_[block] = static_cast<uint8_t>((flags_[block] | set) & ~clear);
      count(block, 1);
    }
  }
}

void Growth::refuse(const std::string& why) const {
  throw PoolFull(why, free_blocks() * kBlockBytes, longest_run() * kBlockBytes);
}

}  // namespace tc
