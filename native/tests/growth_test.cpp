#include "tc/growth.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

#include "temp.hpp"

namespace {

using namespace tc;
using testing::TempDir;

constexpr uint64_t kMiB = 1u << 20;

// A host of 1 GiB whose available memory the test decides.
struct Host {
  TempDir dir;
  explicit Host(uint64_t available_mib) { available(available_mib); }
  void available(uint64_t mib) const {
    dir.write("meminfo", "MemTotal: 1048576 kB\nMemAvailable: " + std::to_string(mib << 10) + " kB\n");
  }
  MemoryLimit limit() const { return MemoryLimit(dir.path(), dir.path()); }
};

PoolOptions options(uint64_t capacity_mib, uint64_t ahead_mib = 0) {
  return {capacity_mib * kMiB, 16 * kMiB, ahead_mib * kMiB, 100 * kMiB};
}

}  // namespace

TEST_CASE("growth: an impossible capacity is refused at start, with the figures") {
  const Host host(500);
  CHECK_THROWS_WITH_AS(Growth(options(925), host.limit()), doctest::Contains("memory_reserve_bytes"),
                       std::invalid_argument);
  CHECK_THROWS_AS(Growth(options(UINT64_MAX / kMiB), host.limit()), std::invalid_argument);
  CHECK_THROWS_WITH_AS(Growth(options(1), host.limit()), doctest::Contains("below one block"), std::invalid_argument);
  CHECK(Growth(options(924), host.limit()).blocks_max() == 462);
}

TEST_CASE("growth: blocks are granted only while the host has room for them beside the reserve") {
  const Host host(164);
  Growth growth(options(512), host.limit());
  const auto first = growth.allocate(16);  // 32 MiB of 64
  try {
    growth.allocate(17);  // the 32 MiB are promised though no page of them is touched
    FAIL("refused");
  } catch (const PoolFull& full) {
    const std::string text = full.what();
    CHECK(text.find(std::to_string(164 * kMiB)) != std::string::npos);
    CHECK(text.find(std::to_string(100 * kMiB)) != std::string::npos);
    CHECK(text.find(std::to_string(32 * kMiB) + " are promised") != std::string::npos);
    CHECK(full.free_bytes == 32 * kMiB);
  }
  const auto second = growth.allocate(16);
  CHECK(growth.granted_blocks() == 32);
  growth.free(first);
  growth.free(second);
  host.available(0);
  CHECK(growth.allocate(32).size() == 1);  // nothing new is needed
  CHECK_THROWS_AS(growth.allocate(1), PoolFull);
}

TEST_CASE("growth: memory the kernel gave already is not promised any more") {
  const Host host(164);
  Growth growth(options(512), host.limit());
  const auto runs = growth.allocate(16);
  CHECK(growth.promised_bytes() == 32 * kMiB);
  REQUIRE(populate(growth.extents().origin(), 8 * kMiB) == 0);
  CHECK(growth.promised_bytes() == 24 * kMiB);
  REQUIRE(populate(growth.extents().origin(), 32 * kMiB) == 0);
  growth.mark_faulted(runs);
  CHECK(growth.promised_bytes() == 0);
  CHECK(growth.faulted(runs));
  CHECK(growth.allocate(32).size() == 1);
}

TEST_CASE("growth: pre-faulting asks for what is missing, and waits while memory is short") {
  const Host host(1000);
  Growth growth(options(128, 40), host.limit());
  uint64_t blocks = 0;
  while (const auto run = growth.next_fault()) {
    CHECK(run->count * kBlockBytes <= kPrefaultChunkBytes);
    blocks += run->count;
    growth.end_fault(*run, true);
  }
  CHECK(blocks == 20);
  CHECK_FALSE(growth.short_of_memory());
  const auto runs = growth.allocate(10);
  CHECK(growth.faulted(runs));
  host.available(100);
  CHECK_FALSE(growth.next_fault().has_value());
  CHECK(growth.short_of_memory());
  host.available(1000);
  const auto more = growth.next_fault();
  REQUIRE(more.has_value());
  CHECK(more->first >= 20);
  growth.end_fault(*more, false);  // the kernel refused: it is tried again
  const auto again = growth.next_fault();
  REQUIRE(again.has_value());
  CHECK(*again == *more);
}

TEST_CASE("growth: what is free in too many pieces does not hide new blocks in one piece") {
  const Host host(1000);
  Growth growth({800 * kMiB, 800 * kMiB, 0, 0}, host.limit());
  CHECK(growth.longest_run() == 400);
  const auto held = growth.allocate(100);
  CHECK(growth.longest_run() == 300);
  CHECK(growth.free_blocks() == 300);
  growth.free({{60, 40}});
  CHECK(growth.longest_run() == 340);
  CHECK(held.size() == 1);
}

TEST_CASE("growth: ranges end where extents do") {
  const Host host(1000);
  const Growth growth(options(512), host.limit());  // extents of 8 blocks
  const auto ranges = growth.ranges({{6, 12}});
  REQUIRE(ranges.size() == 3);
  CHECK(ranges[0].offset == 6 * kBlockBytes);
  CHECK(ranges[0].nbytes == 2 * kBlockBytes);
  CHECK(ranges[1].nbytes == 8 * kBlockBytes);
  CHECK(ranges[2].offset == 16 * kBlockBytes);
  CHECK(ranges[2].nbytes == 2 * kBlockBytes);
}
