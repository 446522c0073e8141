// Which blocks of the pool are free. Pure bookkeeping over linear block indices: no memory, no locks (the
// pool holds its own lock around every call). Deterministic: the same calls give the same runs. Invariants:
// free runs are disjoint and never touch (they are merged); every free block was added once.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tc {

// `count` blocks from block index `first` on.
struct Run {
  uint64_t first;
  uint64_t count;
  bool operator==(const Run&) const = default;
};

class BlockAllocator {
 public:
  explicit BlockAllocator(uint64_t blocks_max);

  // Blocks that exist from now on, free. std::logic_error when outside blocks_max or added before.
  void add(uint64_t first, uint64_t count);

  // The fewest runs that make up `blocks`, in ascending order: one if any is long enough (the shortest such,
  // then the lowest), else the longest ones. PoolFull when there are not enough blocks or it would take over
  // kRunsMax runs.
  std::vector<Run> allocate(uint64_t blocks);

  // All of `runs`, or nothing and std::logic_error when a block is free already, unknown, or named twice.
  void free(const std::vector<Run>& runs);

  uint64_t free_blocks() const { return free_blocks_; }
  uint64_t longest_run() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  uint64_t free_before(uint64_t block) const;  // length of the free run that ends just before `block`

 private:
  using Runs = std::map<uint64_t, uint64_t>;  // first -> count

  static bool overlaps(const Runs& runs, Run run);
  static bool covers(const Runs& runs, Run run);
  static Run merge(Runs& runs, Run run);  // joins run with its neighbours and returns the whole
  void insert(Run run);
  Run take(Runs::iterator from, uint64_t count);
  Runs::iterator longest();

  uint64_t blocks_max_;
  uint64_t free_blocks_ = 0;
  Runs known_;
  Runs free_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (count, first) of free_
};

}  // namespace tc
