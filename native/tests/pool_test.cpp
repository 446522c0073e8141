#include "tc/pool.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "tc/segment_view.hpp"
#include "temp.hpp"

namespace {

using namespace tc;

constexpr uint64_t kMiB = 1u << 20;

PoolOptions small(uint64_t capacity_mib, uint64_t ahead_mib = 0) {
  return {capacity_mib * kMiB, uint64_t(1) << 30, ahead_mib * kMiB, 0};
}

bool balances(const PoolStats& stats) {
  return stats.capacity_bytes ==
         stats.free_bytes + stats.reserved_bytes + stats.used_bytes + stats.dropped_pinned_bytes + stats.rounding_bytes;
}

}  // namespace

TEST_CASE("pool: the kernel keeps everybody else from writing an extent") {
  Pool pool(small(64));
  const SegmentId id = pool.reserve(4 * kMiB);
  const SegmentView view(pool, id);
  const auto bytes = testing::pattern(4 * kMiB);
  view.write(0, bytes);
  pool.seal(id);
  const int fd = pool.extent_fd(0);
  errno = 0;
  CHECK(mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK(errno == EPERM);
  CHECK(pwrite(fd, "x", 1, 0) == -1);
  CHECK(ftruncate(fd, 0) == -1);
  CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1);
  auto* copy = static_cast<uint8_t*>(mmap(nullptr, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
  REQUIRE(copy != MAP_FAILED);
  CHECK(std::memcmp(copy, bytes.data(), bytes.size()) == 0);
  copy[0] ^= 0xFF;  // the reader's own page from here on
  std::vector<uint8_t> again(4 * kMiB);
  view.read(0, again);
  CHECK(again == bytes);
  munmap(copy, 4 * kMiB);
}

TEST_CASE("pool: blocks are used again only after the last user and the last pin are gone") {
  Pool pool(small(16));
  const SegmentId id = pool.reserve(16 * kMiB);
  pool.seal(id);
  pool.pin(id);
  pool.drop(id);
  CHECK_THROWS_AS(pool.reserve(2 * kMiB), PoolFull);
  CHECK(pool.stats().dropped_pinned_bytes == 16 * kMiB);
  CHECK_FALSE(pool.sealed(id));
  pool.unpin(id);
  CHECK_THROWS_AS(pool.place(id), std::out_of_range);
  const SegmentId next = pool.reserve(16 * kMiB);
  CHECK(next != id);
  CHECK(pool.place(next).ranges.front().offset == 0);
}

TEST_CASE("pool: a drop during a write keeps the memory until the writer ends") {
  Pool pool(small(16));
  const SegmentId id = pool.reserve(16 * kMiB);
  CHECK_FALSE(pool.begin_write(id));
  pool.drop(id);
  CHECK_THROWS_AS(pool.reserve(1), PoolFull);
  CHECK_THROWS_AS(pool.seal(id), std::logic_error);
  pool.end_write(id);
  CHECK(pool.stats().free_bytes == 16 * kMiB);
  CHECK(pool.reserve(16 * kMiB) != id);
}

TEST_CASE("pool: segments below 256 KiB share a block, and it returns when the last is gone") {
  Pool pool(small(16));
  std::vector<SegmentId> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(pool.reserve(10'000));
  CHECK(pool.place(ids[0]).slot);
  CHECK(pool.place(ids[0]).ranges.size() == 1);
  CHECK(pool.place(ids[9]).ranges.front().nbytes == 10'000);
  CHECK(pool.stats().slot_bytes == kBlockBytes);
  CHECK(pool.stats().free_bytes == 14 * kMiB);
  CHECK(balances(pool.stats()));
  for (const SegmentId id : ids) pool.drop(id);
  CHECK(pool.stats().slot_bytes == 0);
  CHECK(pool.stats().free_bytes == 16 * kMiB);
  const SegmentId big = pool.reserve(kSlotBytesMax);
  CHECK_FALSE(pool.place(big).slot);
}

TEST_CASE("pool: a segment of no bytes is legal and takes no memory") {
  Pool pool(small(2));
  const SegmentId id = pool.reserve(0);
  CHECK(pool.place(id).ranges.empty());
  pool.seal(id);
  CHECK(pool.stats().free_bytes == 2 * kMiB);
  CHECK(pool.stats().grown_bytes == 0);
  pool.drop(id);
  CHECK(pool.stats().segments == 0);
}

TEST_CASE("pool: ranges follow the segment's bytes, never cross an extent and end with its last byte") {
  Pool pool({64 * kMiB, 6 * kMiB, 0, 0});
  CHECK(pool.extent_bytes() == 6 * kMiB);
  const uint64_t nbytes = 21 * kMiB + 5;
  const SegmentId id = pool.reserve(nbytes);
  uint64_t sum = 0;
  for (const Range& range : pool.place(id).ranges) {
    CHECK(range.offset / pool.extent_bytes() == (range.offset + range.nbytes - 1) / pool.extent_bytes());
    CHECK(pool.extent_fd(static_cast<uint32_t>(range.offset / pool.extent_bytes())) >= 0);
    sum += range.nbytes;
  }
  CHECK(sum == nbytes);
  CHECK_THROWS_AS(pool.extent_fd(4), std::out_of_range);
}

TEST_CASE("pool: construction takes no memory, and pre-faulting keeps the asked amount ready") {
  Pool pool(small(256, 32));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const auto wait_for = [&](uint64_t bytes) {
    while (pool.stats().faulted_bytes < bytes && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return pool.stats().faulted_bytes;
  };
  CHECK(wait_for(32 * kMiB) == 32 * kMiB);
  const SegmentId id = pool.reserve(20 * kMiB);
  bool faulted = false;
  while (!faulted && std::chrono::steady_clock::now() < deadline) {  // the kernel's count runs ahead of the pool's
    faulted = pool.begin_write(id);
    pool.end_write(id);
  }
  CHECK(faulted);
  CHECK(wait_for(52 * kMiB) == 52 * kMiB);
  pool.stop();
  pool.stop();
  pool.reserve(200 * kMiB);  // still works, only slower
}

TEST_CASE("pool: an impossible capacity is refused") {
  CHECK_THROWS_AS(Pool(small(uint64_t(1) << 40)), std::invalid_argument);
  CHECK_THROWS_AS(Pool(small(1)), std::invalid_argument);
}

TEST_CASE("pool: a full pool says how much is free and how long the longest run is") {
  Pool pool(small(16));
  std::vector<SegmentId> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(pool.reserve(2 * kMiB));
  pool.drop(ids[1]);
  pool.drop(ids[4]);
  pool.drop(ids[5]);
  try {
    pool.reserve(8 * kMiB);
    FAIL("refused");
  } catch (const PoolFull& full) {
    CHECK(full.free_bytes == 6 * kMiB);
    CHECK(full.longest_run_bytes == 4 * kMiB);
  }
  CHECK(pool.place(pool.reserve(6 * kMiB)).ranges.front().offset == 2 * kMiB);
}

TEST_CASE("pool: threads that reserve, write, seal, pin and drop leave it empty, and no two share memory") {
  Pool pool(small(128, 16));
  const auto work = [&pool](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 60; ++i) {
      const uint64_t nbytes = random() % 2 == 0 ? 1 + random() % 50'000 : 1 + random() % (6 * kMiB);
      SegmentId id = 0;
      try {
        id = pool.reserve(nbytes);
      } catch (const PoolFull&) {
        continue;
      }
      const std::vector<uint8_t> bytes(nbytes, static_cast<uint8_t>(seed * 61 + unsigned(i)));
      const SegmentView view(pool, id);
      view.write(0, bytes);
      pool.seal(id);
      pool.pin(id);
      std::vector<uint8_t> again(nbytes);
      view.read(0, again);
      const bool same = again == bytes;
      pool.drop(id);
      pool.unpin(id);
      if (!same) return false;
    }
    return true;
  };
  bool right[4] = {};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back([&, i] { right[i] = work(i + 1); });
  for (std::thread& thread : threads) thread.join();
  for (const bool each : right) CHECK(each);
  const PoolStats stats = pool.stats();
  CHECK(stats.free_bytes == stats.capacity_bytes);
  CHECK(stats.segments == 0);
  CHECK(stats.pins == 0);
  CHECK(balances(stats));
}
