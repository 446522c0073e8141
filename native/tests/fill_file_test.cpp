#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <functional>
#include <thread>

#include "file_job.hpp"

namespace {

using namespace tc;
using testing::FileJob;
using testing::Job;
using testing::kMiB;
using testing::pattern;
using testing::TempFile;

bool has_direct(const TempFile& file) {
  const int fd = open(file.path().c_str(), O_RDONLY | O_DIRECT);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// A fill of a stream and a file on one thread: once the stream's first bytes are in, the file has been looked
// at but not read. The test then changes the file and lets the stream end.
FillResult fill_while(const TempFile& file, const std::function<void()>& change) {
  // Somebody holds it open for writing, and it is old: there is no lease then, and its identity alone must tell.
  const int holder = open(file.path().c_str(), O_WRONLY | O_CLOEXEC);
  const timespec old[2] = {{1'600'000'000, 0}, {1'600'000'000, 0}};
  REQUIRE(futimens(holder, old) == 0);
  Pool pool(testing::pool_of(64));
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const FileSource source = file.source();
  Job job(pool, {source.size, 2 * kMiB});
  job.files = {source};
  job.stream_fd = ends[0];
  job.pieces = {{0, PieceKind::kFile, 0, source.size, 0, 0, 0}, {1, PieceKind::kMemory, 0, 2 * kMiB, 0, 0, 0}};
  FillResult result;
  std::thread filler([&] { result = job.run(1); });
  const std::vector<uint8_t> half(kMiB, 7);
  const auto send_half = [&] {
    for (size_t sent = 0; sent < half.size();)
      sent += static_cast<size_t>(std::max<ssize_t>(0, send(ends[1], half.data() + sent, half.size() - sent, 0)));
  };
  send_half();
  CHECK(testing::eventually([&] { return job.done_bytes >= kMiB; }));
  change();
  send_half();
  filler.join();
  close(ends[0]);
  close(ends[1]);
  close(holder);
  CHECK_FALSE(pool.sealed(job.segments[0]));
  CHECK_FALSE(pool.sealed(job.segments[1]));
  return result;
}

}  // namespace

TEST_CASE("fill: files of odd sizes come whole, with their digests, buffered and direct, in one run and in many") {
  for (const uint64_t size : {uint64_t(1), uint64_t(4095), uint64_t(4097), 2 * kMiB, 4 * kMiB + 1, 13 * kMiB + 4321}) {
    const auto bytes = pattern(size, size);
    const TempFile file(bytes);
    for (const bool cold : {false, true}) {
      for (const bool fragmented : {false, true}) {
        Pool pool(testing::pool_of(64));
        if (fragmented) testing::fragment(pool);
        FileJob job(pool, file);
        job.add_rows(0, {5, 100'000, 5 * kMiB + 3, 1, 64});
        if (cold) file.make_cold();
        const FillResult result = job.run();
        INFO("size ", size, " cold ", cold, " fragmented ", fragmented, ": ", result.detail);
        REQUIRE(result.status == FillStatus::kOk);
        CHECK(job.sealed());
        CHECK(job.content() == bytes);
        job.check_digests(result);
        CHECK(job.done_bytes == size);
        if (cold && size > 8 * kMiB && has_direct(file)) CHECK(result.direct);
        if (!cold) CHECK_FALSE(result.direct);
      }
    }
  }
}

TEST_CASE("fill: parts of a cold file at odd places come right") {
  const auto bytes = pattern(9 * kMiB);
  const TempFile file(bytes);
  Pool pool(testing::pool_of(64));
  Job job(pool, {6 * kMiB + 100});
  job.files = {file.source()};
  job.pieces = {
      // the first is congruent with the file modulo a page, the second is not
      {0, PieceKind::kFile, 100, 3 * kMiB, 4096 + 100, 0, 0},
      {0, PieceKind::kFile, 100 + 3 * kMiB, 3 * kMiB, 5 * kMiB + 1, 0, 0},
      {0, PieceKind::kFile, 0, 100, 9 * kMiB - 100, 0, 0},
  };
  job.add_rows(0, {kMiB});
  file.make_cold();
  const FillResult result = job.run();
  REQUIRE(result.status == FillStatus::kOk);
  std::vector<uint8_t> expected(bytes.end() - 100, bytes.end());
  expected.insert(expected.end(), bytes.begin() + 4196, bytes.begin() + 4196 + 3 * int64_t(kMiB));
  expected.insert(expected.end(), bytes.begin() + 5 * int64_t(kMiB) + 1, bytes.begin() + 8 * int64_t(kMiB) + 1);
  CHECK(job.content() == expected);
  job.check_digests(result);
}

TEST_CASE("fill: the holes of a sparse file are zeros") {
  const TempFile file(pattern(kMiB));
  REQUIRE(truncate(file.path().c_str(), 20 * kMiB) == 0);
  Pool pool(testing::pool_of(64));
  FileJob job(pool, file);
  file.make_cold();
  REQUIRE(job.run().status == FillStatus::kOk);
  auto expected = pattern(kMiB);
  expected.resize(20 * kMiB);
  CHECK(job.content() == expected);
}

TEST_CASE("fill: a hundred thousand small tensors in one file have their digests") {
  const TempFile file(pattern(10 * kMiB));
  Pool pool(testing::pool_of(64));
  FileJob job(pool, file);
  job.add_rows(0, {1, 200, 100, 50, 0x80});
  REQUIRE(job.rows.size() > 100'000);
  const FillResult result = job.run();
  REQUIRE(result.status == FillStatus::kOk);
  job.check_digests(result);
}

TEST_CASE("fill: a file that is not the one its caller saw is refused before a byte moves, and says how") {
  const TempFile file(pattern(2 * kMiB));
  const auto refused = [&](const char* field, const std::function<void(FileSource&)>& spoil) {
    Pool pool(testing::pool_of(16));
    FileJob job(pool, file);
    spoil(job.files[0]);
    const FillResult result = job.run();
    CHECK(result.status == FillStatus::kSourceChanged);
    CHECK(result.detail.find(field) != std::string::npos);
    CHECK(job.done_bytes == 0);
    CHECK_FALSE(job.sealed());
  };
  refused("device", [](FileSource& source) { source.device += 1; });
  refused("inode", [](FileSource& source) { source.inode += 1; });
  refused("size", [](FileSource& source) { source.size += 1; });
  refused("mtime_ns", [](FileSource& source) { source.mtime_ns -= 1; });
}

TEST_CASE("fill: a file cut while it is read is an error, never zeros and never SIGBUS") {
  const TempFile file(pattern(20 * kMiB));
  file.make_cold();
  const FillResult result = fill_while(file, [&] { REQUIRE(truncate(file.path().c_str(), 3 * kMiB) == 0); });
  CHECK(result.status == FillStatus::kSourceChanged);
  CHECK(result.detail.find("size") != std::string::npos);
}

TEST_CASE("fill: a file cut and grown again to its size while it is read is an error") {
  const TempFile file(pattern(20 * kMiB));
  const FillResult result = fill_while(file, [&] {
    REQUIRE(truncate(file.path().c_str(), 3 * kMiB) == 0);
    REQUIRE(truncate(file.path().c_str(), 20 * kMiB) == 0);
  });
  CHECK(result.status == FillStatus::kSourceChanged);
  CHECK(result.detail.find("mtime_ns") != std::string::npos);
}

TEST_CASE("fill: a file written in place while it is read is an error though its size stays") {
  const TempFile file(pattern(8 * kMiB));
  const FillResult result = fill_while(file, [&] {
    const int fd = open(file.path().c_str(), O_WRONLY | O_CLOEXEC);
    CHECK(pwrite(fd, "other", 5, 5 * kMiB) == 5);
    close(fd);
  });
  CHECK(result.status == FillStatus::kSourceChanged);
}

TEST_CASE("fill: what is no regular file, and no descriptor at all, are errors of the source") {
  Pool pool(testing::pool_of(16));
  for (const bool pipe_end : {true, false}) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    Job job(pool, {10});
    job.files = {{pipe_end ? ends[0] : 987'654, 0, 0, 0, 10, 0}};
    job.pieces = {{0, PieceKind::kFile, 0, 10, 0, 0, 0}};
    const FillResult result = job.run();
    CHECK(result.status == FillStatus::kSourceError);
    CHECK(result.error == (pipe_end ? EINVAL : EBADF));
    close(ends[0]);
    close(ends[1]);
  }
}

TEST_CASE("fill: a descriptor that may not read is refused, though this process could open the file again") {
  const TempFile file(pattern(4 * kMiB));
  file.make_cold();
  for (const int flags : {O_WRONLY, O_PATH}) {
    Pool pool(testing::pool_of(16));
    FileJob job(pool, file);
    const int fd = open(file.path().c_str(), flags | O_CLOEXEC);
    job.files[0].fd = fd;
    const FillResult result = job.run();
    CHECK(result.status == FillStatus::kSourceError);
    CHECK(result.error == EBADF);
    close(fd);
  }
}

TEST_CASE("fill: copies between segments come after their sources, and are digested") {
  const auto bytes = pattern(11 * kMiB);
  const TempFile file(bytes);
  Pool pool(testing::pool_of(128));
  testing::fragment(pool);
  Job job(pool, {5 * kMiB, bytes.size()});
  job.files = {file.source()};
  job.pieces = {
      {0, PieceKind::kSegment, 0, 3 * kMiB, 7, 1, 0},
      {0, PieceKind::kSegment, 3 * kMiB, 2 * kMiB, 8 * kMiB + 1, 1, 0},
      {1, PieceKind::kFile, 0, bytes.size(), 0, 0, 0},
  };
  job.add_rows(0, {4 * kMiB + 5});
  job.add_rows(1, {4 * kMiB + 5});
  const FillResult result = job.run(4);
  REQUIRE(result.status == FillStatus::kOk);
  CHECK(result.bytes_copied == 5 * kMiB);
  const auto copied = job.content(0);
  CHECK(std::equal(copied.begin(), copied.begin() + 3 * int64_t(kMiB), bytes.begin() + 7));
  CHECK(std::equal(copied.begin() + 3 * int64_t(kMiB), copied.end(), bytes.begin() + 8 * int64_t(kMiB) + 1));
  job.check_digests(result);
}

TEST_CASE("fill: slots are filled too") {
  const auto bytes = pattern(5 * 10'000);
  const TempFile file(bytes);
  Pool pool(testing::pool_of(16));
  Job job(pool, {10'000, 10'000, 10'000, 10'000, 10'000});
  job.files = {file.source()};
  for (uint32_t i = 0; i < 5; ++i) {
    job.pieces.push_back({i, PieceKind::kFile, 0, 10'000, i * 10'000u, 0, 0});
    job.rows.push_back({i, 0, 0, 10'000});
  }
  const FillResult result = job.run();
  REQUIRE(result.status == FillStatus::kOk);
  job.check_digests(result);
  for (uint32_t i = 0; i < 5; ++i)
    CHECK(job.content(i) == std::vector<uint8_t>(bytes.begin() + i * 10'000, bytes.begin() + (i + 1) * 10'000));
}
