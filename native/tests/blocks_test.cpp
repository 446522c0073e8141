#include "tc/blocks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "tc/pool.hpp"

namespace {

using tc::BlockAllocator;
using tc::Run;

// The whole truth in one bit a block.
struct Model {
  std::vector<bool> free;

  std::vector<uint64_t> lengths() const {  // of all free runs, longest first
    std::vector<uint64_t> lengths;
    uint64_t length = 0;
    for (size_t i = 0; i <= free.size(); ++i) {
      if (i < free.size() && free[i]) {
        ++length;
      } else if (length > 0) {
        lengths.push_back(length);
        length = 0;
      }
    }
    std::sort(lengths.rbegin(), lengths.rend());
    return lengths;
  }
  size_t fewest_runs(uint64_t blocks) const {
    size_t runs = 0;
    for (const uint64_t length : lengths()) {
      if (blocks == 0) break;
      blocks -= std::min(blocks, length);
      ++runs;
    }
    return runs;
  }
  uint64_t count() const { return static_cast<uint64_t>(std::count(free.begin(), free.end(), true)); }
  void set(const std::vector<Run>& runs, bool to) {
    for (const Run& run : runs)
      for (uint64_t block = run.first; block < run.first + run.count; ++block) {
        REQUIRE(free.at(block) != to);
        free[block] = to;
      }
  }
};

void run_random_steps(unsigned seed) {
  constexpr uint64_t kBlocks = 300;
  std::mt19937 random(seed);
  const auto below = [&](uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random); };
  BlockAllocator allocator(kBlocks);
  Model model{std::vector<bool>(kBlocks)};
  std::vector<std::vector<Run>> held;
  uint64_t added = 0;
  for (int step = 0; step < 2000; ++step) {
    const uint64_t choice = below(10);
    if (choice == 0 && added < kBlocks) {
      const uint64_t count = 1 + below(std::min<uint64_t>(40, kBlocks - added));
      allocator.add(added, count);
      model.set({{added, count}}, true);
      added += count;
    } else if (choice < 6) {
      const uint64_t blocks = 1 + below(30);
      if (blocks > model.count()) {
        CHECK_THROWS_AS(allocator.allocate(blocks), tc::PoolFull);
      } else {
        const size_t fewest = model.fewest_runs(blocks);
        held.push_back(allocator.allocate(blocks));
        CHECK(held.back().size() == fewest);
        model.set(held.back(), false);
      }
    } else if (!held.empty()) {
      std::swap(held[below(held.size())], held.back());
      allocator.free(held.back());
      model.set(held.back(), true);
      CHECK_THROWS_AS(allocator.free(held.back()), std::logic_error);
      held.pop_back();
    }
    CHECK(allocator.free_blocks() == model.count());
    const auto lengths = model.lengths();
    CHECK(allocator.longest_run() == (lengths.empty() ? 0 : lengths.front()));
  }
}

}  // namespace

TEST_CASE("blocks: random adds, allocations and frees agree with one bit a block") {
  for (unsigned seed = 1; seed <= 20; ++seed) run_random_steps(seed);
}

TEST_CASE("blocks: the shortest run that fits is taken, the lowest of equals") {
  BlockAllocator allocator(100);
  allocator.add(0, 10);
  allocator.add(20, 5);
  allocator.add(30, 5);
  CHECK(allocator.allocate(4) == std::vector<Run>{{20, 4}});
  CHECK(allocator.allocate(5) == std::vector<Run>{{30, 5}});
  CHECK(allocator.allocate(11) == std::vector<Run>{{0, 10}, {24, 1}});
}

TEST_CASE("blocks: a segment of more runs than a reader may map is refused and nothing is taken") {
  BlockAllocator allocator(10'000);
  for (uint64_t block = 0; block < 2 * (tc::kRunsMax + 1); block += 2) allocator.add(block, 1);
  try {
    allocator.allocate(tc::kRunsMax + 1);
    FAIL("refused");
  } catch (const tc::PoolFull& full) {
    CHECK(full.free_bytes == (tc::kRunsMax + 1) * tc::kBlockBytes);
    CHECK(full.longest_run_bytes == tc::kBlockBytes);
  }
  CHECK(allocator.free_blocks() == tc::kRunsMax + 1);
  CHECK(allocator.allocate(tc::kRunsMax).size() == tc::kRunsMax);
}

TEST_CASE("blocks: a bad free changes nothing, whichever of its runs is bad") {
  BlockAllocator allocator(100);
  allocator.add(0, 20);
  const auto runs = allocator.allocate(10);
  CHECK_THROWS_AS(allocator.free({{0, 5}, {5, 6}}), std::logic_error);   // block 10 is free
  CHECK_THROWS_AS(allocator.free({{0, 5}, {4, 2}}), std::logic_error);   // block 4 twice
  CHECK_THROWS_AS(allocator.free({{0, 5}, {90, 1}}), std::logic_error);  // never added
  CHECK_THROWS_AS(allocator.free({{5, UINT64_MAX}}), std::logic_error);  // past the end of numbers
  CHECK_THROWS_AS(allocator.add(15, 10), std::logic_error);              // overlaps
  CHECK_THROWS_AS(allocator.add(90, 11), std::logic_error);              // outside
  CHECK(allocator.free_blocks() == 10);
  allocator.free(runs);
  CHECK(allocator.longest_run() == 20);
  CHECK(allocator.allocate(0).empty());
}
