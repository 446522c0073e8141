// Fills from sealed segments of the pool, and the way of sealed bytes out to a file.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <system_error>
#include <thread>

#include "fill_job.hpp"
#include "tc/fd.hpp"
#include "tc/write_out.hpp"
#include "temp.hpp"

namespace {

using namespace tc;
using testing::Job;
using testing::kMiB;

SegmentId sealed_segment(Pool& pool, const std::vector<uint8_t>& bytes) {
  const SegmentId id = pool.reserve(bytes.size());
  SegmentView(pool, id).write(0, bytes);
  pool.seal(id);
  return id;
}

// Two sources, one of several runs and one of a slot, of a pool in which nothing longer than a block is free.
struct Sources {
  Pool pool{testing::pool_of(96)};
  std::vector<uint8_t> large = testing::pattern(9 * kMiB + 5), small = testing::pattern(70'001);
  SegmentId large_id = 0, small_id = 0;

  Sources() {
    testing::fragment(pool);
    large_id = sealed_segment(pool, large);
    small_id = sealed_segment(pool, small);
  }
  void give(Job& job) const {
    job.sources = {large_id, small_id};
    job.source_bytes = {large.size(), small.size()};
  }
};

std::vector<uint8_t> part(const std::vector<uint8_t>& bytes, uint64_t from, uint64_t nbytes) {
  const auto begin = bytes.begin() + static_cast<ptrdiff_t>(from);
  return {begin, begin + static_cast<ptrdiff_t>(nbytes)};
}

void refused(const char* why, const std::function<void(Job&)>& spoil) {
  Sources s;
  Job job(s.pool, {kMiB});
  s.give(job);
  job.pieces = {{0, PieceKind::kPool, 0, kMiB, 0, 0, 0}};
  spoil(job);
  const FillResult result = job.run();
  INFO(why, ": ", result.detail);
  CHECK(result.status == FillStatus::kBadPlan);
  CHECK_FALSE(s.pool.sealed(job.segments[0]));
}

}  // namespace

TEST_CASE("pieces of the pool bring the very bytes, across runs, slots and segments") {
  Sources s;
  REQUIRE(s.pool.place(s.large_id).ranges.size() > 1);
  REQUIRE(s.pool.place(s.small_id).slot);
  const uint64_t a = 5 * kMiB + 3, b = 70'000;
  Job job(s.pool, {a + b + 10, kMiB});
  s.give(job);
  job.inline_bytes = "0123456789";
  job.pieces = {
      {0, PieceKind::kPool, 0, a, kMiB + 1, 0, 0},
      {0, PieceKind::kInline, a, 10, 0, 0, 0},
      {0, PieceKind::kPool, a + 10, b, 1, 1, 0},
      {1, PieceKind::kSegment, 0, kMiB, 2 * kMiB, 0, 0},  // the second phase sees what the first one brought
  };
  job.add_rows(0, {kMiB + 3, 17, 3 * kMiB});
  job.add_rows(1, {kMiB});
  const FillResult result = job.run();
  REQUIRE(result.detail == "");
  REQUIRE(result.status == FillStatus::kOk);
  const std::vector<uint8_t> content = job.content();
  CHECK(part(content, 0, a) == part(s.large, kMiB + 1, a));
  CHECK(part(content, a + 10, b) == part(s.small, 1, b));
  CHECK(job.content(1) == part(s.large, 3 * kMiB + 1, kMiB));
  CHECK(result.bytes_moved == a + b + 10 + kMiB);
  CHECK(result.bytes_copied == kMiB);
  job.check_digests(result);
}

TEST_CASE("pieces of the pool outside their source are refused") {
  refused("behind the end", [](Job& job) { job.pieces[0].src = 9 * kMiB; });
  refused("an offset that wraps", [](Job& job) { job.pieces[0].src = UINT64_MAX - 5; });
  refused("no such source", [](Job& job) { job.pieces[0].src_index = 2; });
  refused("a source smaller than was said", [](Job& job) { job.source_bytes[0] += 1; });
  refused("sources without sizes", [](Job& job) { job.source_bytes.pop_back(); });
  refused("a source that is the job's own", [](Job& job) { job.sources[0] = job.segments[0]; });
  refused("an unknown source", [](Job& job) { job.sources[0] = 999'999; });
}

TEST_CASE("what is written out is what the segment holds, at the same place") {
  Sources s;
  const testing::TempFile file({});
  const Fd fd(::open(file.path().c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(fd);
  write_out(s.pool, s.large_id, fd.get(), 3 * kMiB, s.large.size() - 3 * kMiB);
  write_out(s.pool, s.large_id, fd.get(), 0, 3 * kMiB);
  write_out(s.pool, s.large_id, fd.get(), s.large.size(), 0);
  std::vector<uint8_t> back(s.large.size() + 1);
  CHECK(::pread(fd.get(), back.data(), back.size(), 0) == static_cast<ssize_t>(s.large.size()));
  back.pop_back();
  CHECK(back == s.large);
}

TEST_CASE("writing out says what stood in its way") {
  Sources s;
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  try {
    write_out(s.pool, s.large_id, full.get(), 0, kMiB);
    FAIL("a full device took bytes");
  } catch (const std::system_error& e) {
    CHECK(e.code().value() == ENOSPC);
  }
  CHECK_THROWS_AS(write_out(s.pool, s.large_id, -1, 0, 1), std::system_error);
  CHECK_THROWS_AS(write_out(s.pool, s.large_id, full.get(), kMiB, s.large.size()), std::logic_error);
  CHECK_THROWS_AS(write_out(s.pool, s.large_id, full.get(), UINT64_MAX, 2), std::logic_error);
  CHECK_THROWS_AS(write_out(s.pool, s.pool.reserve(8), full.get(), 0, 8), std::logic_error);
}

TEST_CASE("a segment that is dropped while it is written out keeps its bytes until they are out") {
  Pool pool{testing::pool_of(96)};
  const std::vector<uint8_t> bytes = testing::pattern(2 * kMiB);
  const SegmentId id = sealed_segment(pool, bytes);
  const testing::TempFile file({});
  const Fd fd(::open(file.path().c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(fd);
  std::atomic<bool> began{false}, over{false};
  std::thread writing([&] {
    try {
      for (;; began = true) write_out(pool, id, fd.get(), 0, bytes.size());
    } catch (const std::invalid_argument&) {
      over = true;  // dropped between two writes
    }
  });
  while (!began) std::this_thread::yield();
  pool.drop(id);
  while (!over) pool.drop(sealed_segment(pool, std::vector<uint8_t>(2 * kMiB, 0xEE)));
  writing.join();
  CHECK(pool.stats().segments == 0);
  std::vector<uint8_t> back(bytes.size());
  REQUIRE(::pread(fd.get(), back.data(), back.size(), 0) == static_cast<ssize_t>(bytes.size()));
  CHECK(back == bytes);
}
