#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "fill_job.hpp"
#include "temp.hpp"

namespace {

using namespace tc;
using testing::Job;
using testing::kMiB;
using testing::pattern;
using Clock = std::chrono::steady_clock;

// A process that only waits to be killed; its memory is what this one's was at the fork.
class Child {
 public:
  Child() {
    pid_ = fork();
    if (pid_ == 0)
      while (true) pause();
    REQUIRE(pid_ > 0);
    pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    REQUIRE(pidfd_ >= 0);
  }
  ~Child() {
    end();
    close(pidfd_);
  }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_; }

 private:
  pid_t pid_ = 0;
  int pidfd_ = -1;
};

uint64_t address(const uint8_t* at) { return reinterpret_cast<uint64_t>(at); }

struct Sockets {
  int ours = -1, theirs = -1;
  Sockets() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    ours = ends[0];
    theirs = ends[1];
  }
  ~Sockets() {
    close(ours);
    hang_up();
  }
  void send(const uint8_t* from, size_t nbytes) const {
    while (nbytes > 0) {
      const ssize_t sent = ::send(theirs, from, std::min<size_t>(nbytes, 100'003), MSG_NOSIGNAL);
      if (sent < 0) return;
      from += sent;
      nbytes -= static_cast<size_t>(sent);
    }
  }
  void hang_up() {
    if (theirs >= 0) close(theirs);
    theirs = -1;
  }
};

}  // namespace

TEST_CASE("fill: memory of another process comes in order of its pieces, big and small, in one run and in many") {
  const auto bytes = pattern(9 * kMiB + 77);
  auto later = bytes;  // freed or changed here, still there in the child
  const Child child;
  std::fill(later.begin(), later.end(), uint8_t(0));
  for (const bool fragmented : {false, true}) {
    Pool pool(testing::pool_of(64));
    if (fragmented) testing::fragment(pool);
    Job job(pool, {bytes.size() + 16});
    job.pid = child.pid();
    job.pidfd = child.pidfd();
    job.inline_bytes = "header of 16 by.";
    job.pieces.push_back({0, PieceKind::kInline, 0, 16, 0, 0, 0});
    uint64_t at = 0;
    for (uint64_t i = 0; at < bytes.size(); ++i) {
      const uint64_t nbytes = std::min<uint64_t>(i % 3000 == 0 ? 3 * kMiB + 1 : i % 97, bytes.size() - at);
      job.pieces.push_back({0, PieceKind::kMemory, 16 + at, nbytes, address(later.data()) + at, 0, 0});
      at += nbytes;
    }
    job.add_rows(0, {16, 4 * kMiB + 9, 33, kMiB});
    const FillResult result = job.run();
    INFO(result.detail);
    REQUIRE(result.status == FillStatus::kOk);
    const auto content = job.content();
    CHECK(std::equal(bytes.begin(), bytes.end(), content.begin() + 16));
    job.check_digests(result);
    CHECK(job.done_bytes == bytes.size() + 16);
  }
}

TEST_CASE("fill: a process that has ended is gone, also where its pid names a living one") {
  const auto bytes = pattern(kMiB);
  Child child;
  Pool pool(testing::pool_of(16));
  Job job(pool, {kMiB});
  job.pid = child.pid();
  job.pidfd = child.pidfd();
  job.pieces = {{0, PieceKind::kMemory, 0, kMiB, address(bytes.data()), 0, 0}};
  child.end();
  CHECK(job.run().status == FillStatus::kGone);
  job.pid = getpid();  // as if the pid had been given to somebody else since
  CHECK(job.run().status == FillStatus::kGone);
  CHECK_FALSE(job.sealed());
}

TEST_CASE("fill: a process killed in the middle is gone, or all its bytes were in before") {
  const auto bytes = pattern(16 * kMiB);
  for (int round = 0; round < 20; ++round) {
    Child child;
    Pool pool(testing::pool_of(64));
    Job job(pool, {bytes.size()});
    job.pid = child.pid();
    job.pidfd = child.pidfd();
    job.pieces = {{0, PieceKind::kMemory, 0, bytes.size(), address(bytes.data()), 0, 0}};
    FillResult result;
    std::thread filler([&] { result = job.run(2); });
    CHECK(testing::eventually([&] { return job.done_bytes >= uint64_t(round) * kMiB / 2; }));
    child.end();
    filler.join();
    CHECK((result.status == FillStatus::kOk || result.status == FillStatus::kGone));
    CHECK(job.sealed() == (result.status == FillStatus::kOk));
    if (result.status == FillStatus::kOk) CHECK(job.content() == bytes);
  }
}

TEST_CASE("fill: memory that the living process does not have is an error of the source") {
  const Child child;
  auto* hole = static_cast<uint8_t*>(mmap(nullptr, 2 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  Pool pool(testing::pool_of(16));
  Job job(pool, {kMiB});
  job.pid = child.pid();
  job.pidfd = child.pidfd();
  job.pieces = {{0, PieceKind::kMemory, 0, kMiB, address(hole), 0, 0}};
  const FillResult result = job.run();
  CHECK(result.status == FillStatus::kSourceError);
  CHECK(result.error == EFAULT);
  munmap(hole, 2 * kMiB);
}

TEST_CASE("fill: a stream's bytes go straight to their places, in the order of the pieces") {
  const auto bytes = pattern(7 * kMiB + 5);
  Pool pool(testing::pool_of(64));
  testing::fragment(pool);
  const Sockets sockets;
  Job job(pool, {4 * kMiB, 3 * kMiB + 5});
  job.stream_fd = sockets.ours;
  job.pieces = {
      // the second segment first
      {1, PieceKind::kMemory, 5, 3 * kMiB, 0, 0, 0},
      {0, PieceKind::kMemory, 0, 4 * kMiB, 0, 0, 0},
      {1, PieceKind::kMemory, 0, 5, 0, 0, 0},
  };
  job.add_rows(0, {kMiB});
  job.add_rows(1, {2 * kMiB + 1});
  FillResult result;
  std::thread filler([&] { result = job.run(3); });
  sockets.send(bytes.data(), bytes.size());
  sockets.send(bytes.data(), 100);  // what follows is not the fill's
  filler.join();
  REQUIRE(result.status == FillStatus::kOk);
  const auto first = job.content(0), second = job.content(1);
  CHECK(std::equal(second.begin() + 5, second.end(), bytes.begin()));
  CHECK(std::equal(first.begin(), first.end(), bytes.begin() + 3 * int64_t(kMiB)));
  CHECK(std::equal(second.begin(), second.begin() + 5, bytes.end() - 5));
  job.check_digests(result);
  uint8_t rest[200];
  CHECK(recv(sockets.ours, rest, sizeof rest, MSG_DONTWAIT) == 100);
}

TEST_CASE("fill: a stream that ends early is short") {
  Pool pool(testing::pool_of(16));
  Sockets sockets;
  Job job(pool, {kMiB});
  job.stream_fd = sockets.ours;
  job.pieces = {{0, PieceKind::kMemory, 0, kMiB, 0, 0, 0}};
  const auto bytes = pattern(1000);
  sockets.send(bytes.data(), bytes.size());
  sockets.hang_up();
  const FillResult result = job.run();
  CHECK(result.status == FillStatus::kSourceShort);
  CHECK(result.detail.find("1000 bytes") != std::string::npos);
  CHECK_FALSE(job.sealed());
}

TEST_CASE("fill: a sender that ended while its socket is still held elsewhere is gone") {
  Pool pool(testing::pool_of(16));
  const Sockets sockets;
  Child child;
  Job job(pool, {kMiB});
  job.stream_fd = sockets.ours;
  job.pidfd = child.pidfd();
  job.pieces = {{0, PieceKind::kMemory, 0, kMiB, 0, 0, 0}};
  FillResult result;
  std::thread filler([&] { result = job.run(); });
  child.end();
  filler.join();
  CHECK(result.status == FillStatus::kGone);
}

TEST_CASE("fill: a silent stream ends at the deadline, and at once when cancelled") {
  Pool pool(testing::pool_of(16));
  const Sockets sockets;
  Job late(pool, {kMiB});
  late.stream_fd = sockets.ours;
  late.pieces = {{0, PieceKind::kMemory, 0, kMiB, 0, 0, 0}};
  late.deadline = Clock::now() + std::chrono::milliseconds(100);
  CHECK(late.run().status == FillStatus::kDeadline);
  CHECK(Clock::now() < late.deadline + testing::kSlack);

  Job cancelled(pool, {kMiB});
  cancelled.stream_fd = sockets.ours;
  cancelled.pieces = late.pieces;
  FillResult result;
  std::thread filler([&] { result = cancelled.run(); });
  const auto asked = Clock::now();
  cancelled.cancelled = true;
  filler.join();
  CHECK(result.status == FillStatus::kCancelled);
  CHECK(Clock::now() < asked + testing::kSlack);
  CHECK_FALSE(cancelled.sealed());
}

TEST_CASE("fill: a file that ends before its size is short, and one failing source stops the others") {
  // The kernel's own files say 4096 and end earlier.
  const int fd = open("/sys/devices/system/cpu/online", O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  struct stat seen{};
  REQUIRE(fstat(fd, &seen) == 0);
  REQUIRE(seen.st_size == 4096);
  Pool pool(testing::pool_of(16));
  const Sockets sockets;  // nothing ever comes
  Job job(pool, {kMiB, 4096});
  job.stream_fd = sockets.ours;
  job.files = {{fd, 0, seen.st_dev, seen.st_ino, 4096, seen.st_mtim.tv_sec * 1'000'000'000 + seen.st_mtim.tv_nsec}};
  job.pieces = {{0, PieceKind::kMemory, 0, kMiB, 0, 0, 0}, {1, PieceKind::kFile, 0, 4096, 0, 0, 0}};
  const FillResult result = job.run(2);
  CHECK(result.status == FillStatus::kSourceShort);
  CHECK(result.detail.find("4096 bytes") != std::string::npos);
  CHECK(Clock::now() < job.deadline);
  CHECK_FALSE(job.sealed());
  close(fd);
}

TEST_CASE("fill: a segment dropped while it is filled is freed after, and the fill says so") {
  Pool pool(testing::pool_of(16));
  const Sockets sockets;
  Job job(pool, {kMiB});
  job.stream_fd = sockets.ours;
  job.pieces = {{0, PieceKind::kMemory, 0, kMiB, 0, 0, 0}};
  const auto bytes = pattern(kMiB);
  FillResult result;
  std::thread filler([&] { result = job.run(); });
  sockets.send(bytes.data(), kMiB / 2);
  CHECK(testing::eventually([&] { return job.done_bytes >= kMiB / 2; }));  // it is surely writing
  pool.drop(job.segments[0]);
  CHECK(pool.stats().free_bytes < pool.stats().capacity_bytes);
  sockets.send(bytes.data(), kMiB / 2);
  filler.join();
  CHECK(result.status == FillStatus::kCancelled);
  CHECK(pool.stats().free_bytes == pool.stats().capacity_bytes);
}
