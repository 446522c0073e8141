#include "tc/read_lease.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <future>
#include <thread>

#include "file_job.hpp"
#include "tc/file_reader.hpp"

namespace {

using namespace tc;
using testing::FileJob;
using testing::Job;
using testing::kMiB;
using testing::pattern;
using testing::TempFile;

// A file system without leases would make the tests below say nothing.
bool has_leases(const TempFile& file) { return ReadLease(file.source().fd).state() == ReadLease::State::kHeld; }

void make_old(const TempFile& file) {
  const timespec times[2] = {{1'600'000'000, 0}, {1'600'000'000, 0}};
  REQUIRE(utimensat(AT_FDCWD, file.path().c_str(), times, 0) == 0);
}

}  // namespace

TEST_CASE("a file that somebody has open for writing and wrote lately is not read") {
  const TempFile file(pattern(kMiB));
  REQUIRE(has_leases(file));
  const int writer = open(file.path().c_str(), O_WRONLY | O_CLOEXEC);
  Pool pool(testing::pool_of(64));
  FileJob job(pool, file);
  const FillResult result = job.run();
  CHECK(result.status == FillStatus::kSourceChanged);
  CHECK(result.detail.find("open for writing") != std::string::npos);
  CHECK_FALSE(job.sealed());
  close(writer);
  FileJob again(pool, file);
  CHECK(again.run().status == FillStatus::kOk);
}

TEST_CASE("a file that is only held open for writing, long after its last change, is read") {
  const TempFile file(pattern(kMiB));
  make_old(file);
  const int writer = open(file.path().c_str(), O_WRONLY | O_CLOEXEC);
  Pool pool(testing::pool_of(64));
  FileJob job(pool, file);
  CHECK(job.run().status == FillStatus::kOk);
  CHECK(job.content() == pattern(kMiB));
  close(writer);
}

TEST_CASE("a lease that a writer waits for is seen, and given up it lets the writer in") {
  const TempFile file(pattern(kMiB));
  std::future<int> opened;
  {
    const ReadLease lease(file.source().fd);
    REQUIRE(lease.state() == ReadLease::State::kHeld);
    CHECK_FALSE(lease.wanted_by_a_writer());
    opened = std::async(std::launch::async, [&] { return open(file.path().c_str(), O_WRONLY | O_CLOEXEC); });
    CHECK(testing::eventually([&] { return lease.wanted_by_a_writer(); }));
  }
  const int fd = opened.get();
  CHECK(fd >= 0);
  close(fd);
}

TEST_CASE("a fill gives way to whoever wants to write, and is refused") {
  const TempFile file(pattern(2 * kMiB));
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Pool pool(testing::pool_of(64));
  Job job(pool, {2 * kMiB, kMiB});
  job.files = {file.source()};
  job.stream_fd = ends[0];
  job.pieces = {{0, PieceKind::kFile, 0, 2 * kMiB, 0, 0, 0}, {1, PieceKind::kMemory, 0, kMiB, 0, 0, 0}};
  // Nothing ever comes on the stream: the fill sits there, with its lease on the file.
  auto filling = std::async(std::launch::async, [&] { return job.run(); });
  CHECK(testing::eventually([&] { return job.done_bytes >= 2 * kMiB; }));
  const int writer = open(file.path().c_str(), O_WRONLY | O_CLOEXEC);
  CHECK(writer >= 0);
  const FillResult result = filling.get();
  CHECK(result.status == FillStatus::kSourceChanged);
  CHECK(result.detail.find("opened for writing") != std::string::npos);
  for (const int fd : {ends[0], ends[1], writer}) close(fd);
}

TEST_CASE("two readers of one open file hold a lease each") {
  const TempFile file(pattern(kMiB));
  REQUIRE(has_leases(file));
  std::future<int> opened;
  {
    const FileReader reader(file.source(), 0);
    {
      const FileReader other(file.source(), 1);
    }
    REQUIRE_NOTHROW(reader.check_identity());  // the other's end took nothing from this one
    CHECK_FALSE(reader.needs_confirming());
    opened = std::async(std::launch::async, [&] { return open(file.path().c_str(), O_WRONLY | O_CLOEXEC); });
    CHECK(testing::eventually([&] {
      try {
        reader.check_writers();
        return false;
      } catch (const Trouble& trouble) {
        return trouble.status == FillStatus::kSourceChanged;
      }
    }));
  }
  const int fd = opened.get();
  CHECK(fd >= 0);
  close(fd);
}

TEST_CASE("a second look at a file finds what is not as it was") {
  auto bytes = pattern(3 * kMiB);
  const TempFile file(bytes);
  Crew crew(Crew::Clock::now() + testing::kSlack, nullptr);
  const FileReader reader(file.source(), 0);
  reader.confirm(100, std::span(bytes).subspan(100), crew);
  bytes[2 * kMiB + 17] ^= 1;
  CHECK_THROWS_AS(reader.confirm(100, std::span(bytes).subspan(100), crew), Trouble);
}
