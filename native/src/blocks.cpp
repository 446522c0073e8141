#include "tc/blocks.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "tc/pool.hpp"

namespace tc {
namespace {

std::string text(Run run) {
  return "blocks [" + std::to_string(run.first) + ", " + std::to_string(run.first + run.count) + ")";
}

}  // namespace

BlockAllocator::BlockAllocator(uint64_t blocks_max) : blocks_max_(blocks_max) {}

void BlockAllocator::add(uint64_t first, uint64_t count) {
  const Run run{first, count};
  if (count == 0) return;
  if (first > blocks_max_ || count > blocks_max_ - first)
    throw std::logic_error(text(run) + " lie outside the " + std::to_string(blocks_max_) + " blocks of this pool");
  if (overlaps(known_, run)) throw std::logic_error(text(run) + " were added before");
  merge(known_, run);
  insert(run);
}

std::vector<Run> BlockAllocator::allocate(uint64_t blocks) {
  std::vector<Run> runs;
  uint64_t missing = blocks;
  auto refuse = [&](const std::string& why) {
    for (const Run& run : runs) insert(run);
    throw PoolFull(why, free_blocks_ * kBlockBytes, longest_run() * kBlockBytes);
  };
  if (blocks > free_blocks_)
    refuse(std::to_string(blocks) + " blocks asked, " + std::to_string(free_blocks_) + " free");
  while (missing > 0) {
    if (runs.size() == kRunsMax)
      refuse(std::to_string(blocks) + " blocks asked, but free memory is in pieces: it would take over " +
             std::to_string(kRunsMax) + " runs");
    const auto fit = by_size_.lower_bound({missing, 0});
    const auto from = fit != by_size_.end() ? free_.find(fit->second) : longest();
    runs.push_back(take(from, std::min(missing, from->second)));
    missing -= runs.back().count;
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
  return runs;
}

void BlockAllocator::free(const std::vector<Run>& runs) {
  Runs named;
  for (const Run& run : runs) {
    if (run.count == 0) continue;
    if (!covers(known_, run)) throw std::logic_error(text(run) + " are unknown");
    if (overlaps(free_, run)) throw std::logic_error("double free: " + text(run) + " are not all in use");
    if (overlaps(named, run)) throw std::logic_error("double free: " + text(run) + " are named twice");
    merge(named, run);
  }
  for (const auto& [first, count] : named) insert({first, count});
}

uint64_t BlockAllocator::free_before(uint64_t block) const {
  const auto after = free_.lower_bound(block);
  if (after == free_.begin()) return 0;
  const auto& [first, count] = *std::prev(after);
  return first + count == block ? count : 0;
}

bool BlockAllocator::overlaps(const Runs& runs, Run run) {
  const auto after = runs.lower_bound(run.first);
  if (after != runs.end() && after->first - run.first < run.count) return true;
  return after != runs.begin() && std::prev(after)->first + std::prev(after)->second > run.first;
}

bool BlockAllocator::covers(const Runs& runs, Run run) {
  const auto after = runs.upper_bound(run.first);
  if (after == runs.begin()) return false;
  const auto& [first, count] = *std::prev(after);
  const uint64_t skipped = run.first - first;
  return skipped < count && run.count <= count - skipped;
}

Run BlockAllocator::merge(Runs& runs, Run run) {
  const auto after = runs.lower_bound(run.first);
  if (after != runs.end() && after->first == run.first + run.count) {
    run.count += after->second;
    runs.erase(after);
  }
  auto before = runs.lower_bound(run.first);
  if (before != runs.begin()) {
    before = std::prev(before);
    if (before->first + before->second == run.first) {
      before->second += run.count;
      return {before->first, before->second};
    }
  }
  runs.emplace(run.first, run.count);
  return run;
}

void BlockAllocator::insert(Run run) {
  const uint64_t added = run.count;
  const auto after = free_.lower_bound(run.first);
  if (after != free_.end() && after->first == run.first + run.count) by_size_.erase({after->second, after->first});
  if (after != free_.begin()) by_size_.erase({std::prev(after)->second, std::prev(after)->first});
  const Run whole = merge(free_, run);
  // The run before stays an entry of its own where it did not touch.
  const auto at = free_.find(whole.first);
  if (at != free_.begin()) by_size_.insert({std::prev(at)->second, std::prev(at)->first});
  by_size_.insert({whole.count, whole.first});
  free_blocks_ += added;
}

Run BlockAllocator::take(Runs::iterator from, uint64_t count) {
  const Run whole{from->first, from->second};
  by_size_.erase({whole.count, whole.first});
  free_.erase(from);
  if (whole.count > count) {
    free_.emplace(whole.first + count, whole.count - count);
    by_size_.insert({whole.count - count, whole.first + count});
  }
  free_blocks_ -= count;
  return {whole.first, count};
}

BlockAllocator::Runs::iterator BlockAllocator::longest() {
  return free_.find(by_size_.lower_bound({longest_run(), 0})->second);
}

}  // namespace tc
