#include <doctest/doctest.h>

#include <functional>

#include "fill_job.hpp"
#include "temp.hpp"

namespace {

using namespace tc;
using testing::Job;
using testing::kMiB;

// A good job of every kind but memory, for tests to spoil.
struct Good {
  Pool pool{testing::pool_of(64)};
  testing::TempFile file{testing::pattern(3 * kMiB)};
  Job job{pool, {3 * kMiB + 10, kMiB, 0}};

  Good() {
    job.files = {file.source()};
    job.inline_bytes = std::string(10, 'h');
    job.pieces = {
        {0, PieceKind::kInline, 0, 10, 0, 0, 0},
        {0, PieceKind::kFile, 10, 3 * kMiB, 0, 0, 0},
        {1, PieceKind::kSegment, 0, kMiB, 7, 0, 0},
    };
    job.rows = {{0, 0, 10, kMiB}, {1, 0, 0, kMiB}, {2, 0, 0, 0}};
  }
};

void refused(const char* why, const std::function<void(Job&)>& spoil) {
  Good good;
  spoil(good.job);
  const FillResult result = good.job.run();
  INFO(why, ": ", result.detail);
  CHECK(result.status == FillStatus::kBadPlan);
  CHECK_FALSE(result.detail.empty());
  CHECK(result.digests.empty());
  for (const SegmentId id : good.job.segments) CHECK_FALSE(good.pool.sealed(id));
}

constexpr uint64_t kHuge = UINT64_MAX - 5;

}  // namespace

TEST_CASE("fill plan: the good one is good") {
  Good good;
  const FillResult result = good.job.run();
  CHECK(result.detail == "");
  REQUIRE(result.status == FillStatus::kOk);
  CHECK(good.job.sealed());
  CHECK(result.bytes_moved == 4 * kMiB + 10);
  CHECK(result.bytes_copied == kMiB);
  CHECK(good.job.done_bytes == 4 * kMiB + 10);
  good.job.check_digests(result);
}

TEST_CASE("fill plan: pieces that do not tile their segment are refused") {
  refused("gap at the start", [](Job& job) { job.pieces.erase(job.pieces.begin()); });
  refused("gap at the end", [](Job& job) { job.pieces[1].nbytes -= 1; });
  refused("no piece", [](Job& job) { job.pieces.pop_back(); });
  refused("overlap", [](Job& job) { job.pieces[1].dst = 9; });
  refused("past the end", [](Job& job) { job.segment_bytes[1] -= 1; });
  refused("twice", [](Job& job) { job.pieces.push_back(job.pieces[2]); });
  refused("overflow of dst", [](Job& job) { job.pieces[1].dst = kHuge; });
  refused("overflow of nbytes", [](Job& job) { job.pieces[2].nbytes = kHuge; });
  refused("into no segment", [](Job& job) { job.pieces[1].segment = 3; });
  refused("into a segment of no bytes", [](Job& job) { job.pieces.push_back({2, PieceKind::kInline, 0, 1, 0, 0, 0}); });
}

TEST_CASE("fill plan: sources that do not hold the bytes are refused") {
  refused("inline end", [](Job& job) { job.pieces[0].src = 1; });
  refused("inline overflow", [](Job& job) { job.pieces[0].src = kHuge; });
  refused("file end", [](Job& job) { job.pieces[1].src = 1; });
  refused("file overflow", [](Job& job) { job.pieces[1].src = kHuge; });
  refused("no such file", [](Job& job) { job.pieces[1].src_index = 1; });
  refused("segment end", [](Job& job) { job.pieces[2].src = 2 * kMiB + 11; });
  refused("segment overflow", [](Job& job) { job.pieces[2].src = kHuge; });
  refused("no such segment", [](Job& job) { job.pieces[2].src_index = 3; });
  refused("from itself", [](Job& job) {
    job.pieces[2].src_index = 1;
    job.pieces[2].src = 0;
  });
  refused("memory of nobody", [](Job& job) { job.pieces[0].kind = PieceKind::kMemory; });
  refused("memory past the end of addresses", [](Job& job) {
    job.pid = getpid();
    job.pidfd = 0;
    job.pieces[0] = {0, PieceKind::kMemory, 0, 10, kHuge, 0, 0};
  });
  refused("no such kind", [](Job& job) { job.pieces[0].kind = static_cast<PieceKind>(5); });
}

TEST_CASE("fill plan: rows outside their segment are refused") {
  refused("end", [](Job& job) { job.rows[0].nbytes = 3 * kMiB + 1; });
  refused("overflow", [](Job& job) { job.rows[0].offset = kHuge; });
  refused("no such segment", [](Job& job) { job.rows[0].segment = 3; });
  refused("too much overlap", [](Job& job) { job.rows.assign(40, {0, 0, 0, 3 * kMiB}); });
}

TEST_CASE("fill plan: segments that are not the reserved ones are refused") {
  refused("other size", [](Job& job) { std::swap(job.segments[0], job.segments[1]); });
  refused("unknown", [](Job& job) { job.segments[0] = 999; });
  refused("count", [](Job& job) { job.segments.pop_back(); });
  Good good;
  Job twice(good.pool, {kMiB});
  twice.segment_bytes = {kMiB, kMiB};
  twice.segments.push_back(twice.segments[0]);
  twice.inline_bytes = std::string(kMiB, 'x');
  twice.pieces = {{0, PieceKind::kInline, 0, kMiB, 0, 0, 0}, {1, PieceKind::kInline, 0, kMiB, 0, 0, 0}};
  CHECK(twice.run().status == FillStatus::kBadPlan);
  REQUIRE(good.job.run().status == FillStatus::kOk);
  const FillResult again = good.job.run();
  CHECK(again.status == FillStatus::kBadPlan);
  CHECK(again.detail.find("sealed") != std::string::npos);
}

TEST_CASE("fill plan: a job without segments, and one of segments without bytes, are filled") {
  Pool pool(testing::pool_of(16));
  Job none(pool, {});
  CHECK(none.run().status == FillStatus::kOk);
  Job empty(pool, {0, 0});
  empty.rows = {{1, 0, 0, 0}};
  empty.pieces = {{0, PieceKind::kInline, 0, 0, 0, 0, 0}};
  const FillResult result = empty.run();
  CHECK(result.status == FillStatus::kOk);
  CHECK(empty.sealed());
  CHECK(result.digests == std::vector<Digest>{xxh3_128({})});
}
