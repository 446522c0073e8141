#include <doctest/doctest.h>

#include <unistd.h>

#include "fill_job.hpp"
#include "temp.hpp"

namespace {

using namespace tc;
using testing::kMiB;
using testing::pattern;
using testing::TempFile;

FillResult digest(const FileSource& source, const std::vector<Row>& rows, unsigned threads = 3) {
  return digest_file(source, rows, threads, std::chrono::steady_clock::now() + std::chrono::seconds(60));
}

}  // namespace

TEST_CASE(
    "digest file: rows in any order, overlapping, tiny and long have the digests of their bytes, warm and "
    "cold") {
  const auto bytes = pattern(14 * kMiB + 33);
  const TempFile file(bytes);
  std::vector<Row> rows = {{7, 0, 5 * kMiB, 9 * kMiB + 33},
                           {0, 0, 0, 0},
                           {0, 0, 3, 4 * kMiB},
                           {0, 0, 14 * kMiB + 32, 1},
                           {0, 0, 0, bytes.size()}};
  for (uint64_t at = 100; at + 70 < kMiB; at += 70) rows.push_back({0, 0, at, at % 69});
  for (const bool cold : {false, true}) {
    if (cold) file.make_cold();
    const FillResult result = digest(file.source(), rows);
    REQUIRE(result.status == FillStatus::kOk);
    REQUIRE(result.digests.size() == rows.size());
    size_t wrong = 0;
    for (size_t i = 0; i < rows.size(); ++i)
      wrong += result.digests[i] != tensor_digest({bytes.data() + rows[i].offset, rows[i].nbytes});
    CHECK(wrong == 0);
  }
}

TEST_CASE("digest file: a changed file, a row outside, a passed deadline and a cancel are told apart") {
  const TempFile file(pattern(5 * kMiB));
  FileSource source = file.source();
  CHECK(digest(source, {{0, 0, 5 * kMiB, 1}}).status == FillStatus::kBadPlan);
  CHECK(digest(source, {{0, 0, UINT64_MAX, 2}}).status == FillStatus::kBadPlan);
  const std::vector<Row> all = {{0, 0, 0, 5 * kMiB}};
  CHECK(digest_file(source, all, 2, std::chrono::steady_clock::now()).status == FillStatus::kDeadline);
  const std::atomic<bool> cancelled{true};
  CHECK(digest_file(source, all, 2, std::chrono::steady_clock::now() + testing::kSlack, &cancelled).status ==
        FillStatus::kCancelled);
  REQUIRE(truncate(file.path().c_str(), 4 * kMiB) == 0);
  const FillResult changed = digest(source, all);
  CHECK(changed.status == FillStatus::kSourceChanged);
  CHECK(changed.digests.empty());
}
