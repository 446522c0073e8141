// What clients may hold of the storage: its threads, its memory, its connections and its pins.
#include <doctest/doctest.h>
#include <linux/userfaultfd.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <future>

#include "fill_job.hpp"
#include "local_storage.hpp"
#include "raw_client.hpp"
#include "tc/memory_reader.hpp"
#include "tc/pulls.hpp"

namespace {

using testing::kMiB;

// A page of this process that nobody can read until it is let go.
class Unreadable {
 public:
  Unreadable() : fd_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC))) {
    if (!fd_) return;
    void* const at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    page_ = reinterpret_cast<uint64_t>(at);
    uffdio_api api{UFFD_API, 0, 0};
    REQUIRE(::ioctl(fd_.get(), UFFDIO_API, &api) == 0);
    uffdio_register range{{page_, 4096}, UFFDIO_REGISTER_MODE_MISSING, 0};
    REQUIRE(::ioctl(fd_.get(), UFFDIO_REGISTER, &range) == 0);
  }
  ~Unreadable() {
    let_go();
    if (page_ != 0) ::munmap(reinterpret_cast<void*>(page_), 4096);
  }
  void let_go() { fd_.reset(); }
  bool possible() const { return page_ != 0; }
  uint64_t address() const { return page_; }

 private:
  tc::Fd fd_;
  uint64_t page_ = 0;
};

// A client that says HELLO with a cookie at `address`, and keeps its lifeline.
struct Greeting {
  Greeting(const std::string& path, uint64_t address) : socket(tc::connect_to(path, patient())) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const tc::Fd read_end(ends[0]);
    lifeline.reset(ends[1]);
    tc::Hello hello;
    hello.pid = static_cast<uint32_t>(::getpid());
    hello.cookie_address = address;
    tc::Outbox outbox;
    outbox.push(0, hello.encode(), {read_end.get()});
    REQUIRE(outbox.flush(socket.get()) == tc::Outbox::Flushed::kAll);
  }
  tc::Fd socket, lifeline;
};

std::shared_ptr<tc::Pull> pull_of(tc::Pool& pool, uint64_t id, uint64_t asker, std::function<void()> before) {
  const auto pull = std::make_shared<tc::Pull>();
  pull->id = id;
  pull->asker = asker;
  pull->before = std::move(before);
  pull->job.segment_bytes = {5};
  pull->job.segments = tc::reserve_all(pool, pull->job.segment_bytes);
  pull->job.pieces = {{0, tc::PieceKind::kInline, 0, 5, 0, 0, 0}};
  pull->job.inline_bytes = "12345";
  pull->job.deadline = patient().deadline;
  return pull;
}

bool hangs_up(int socket) {
  pollfd end{socket, POLLRDHUP, 0};
  return ::poll(&end, 1, static_cast<int>(kWaitMs)) == 1;
}

}  // namespace

TEST_CASE("a client whose memory cannot be probed is welcomed without it, and keeps nobody else waiting") {
  Unreadable page;
  if (!page.possible()) {
    MESSAGE("userfaultfd is not allowed here: nothing was tested");
    return;
  }
  Storage storage;
  std::vector<std::unique_ptr<Greeting>> stuck;
  for (int i = 0; i < 20; ++i) stuck.push_back(std::make_unique<Greeting>(storage.path, page.address()));
  for (const auto& one : stuck) {
    const tc::Frame frame = next_frame(one->socket.get());
    REQUIRE(frame.kind() == tc::Kind::kWelcome);
    CHECK_FALSE(tc::Welcome::decode(frame.body)->vm_read);
  }
  // This process's turn is still taken, so another client of it is welcomed without, too, and works.
  tc::Client late(storage.path, patient(), true);
  CHECK_FALSE(late.vm_read());
  CHECK(late.put(order_of("a", pattern(kMiB, 1)), patient()) == tc::Client::Answered{0, "socket"});
  page.let_go();
  CHECK(eventually([&] { return tc::Client(storage.path, patient(), true).vm_read(); }));
}

TEST_CASE("one asker never has all threads, and its waiting pulls all come to an end") {
  tc::Pool pool(testing::pool_of(64));
  std::promise<void> gate;
  const std::shared_future<void> open = gate.get_future().share();
  std::mutex m;
  std::vector<uint64_t> done;
  const auto ended = [&](uint64_t id) {
    const std::lock_guard lock(m);
    return std::find(done.begin(), done.end(), id) != done.end();
  };
  tc::Pulls pulls(pool, 3, [&](const std::shared_ptr<tc::Pull>& pull, tc::FillResult result) {
    CHECK(result.status == tc::FillStatus::kOk);
    const std::lock_guard lock(m);
    done.push_back(pull->id);
  });
  for (uint64_t id = 1; id <= 6; ++id) REQUIRE(pulls.start(pull_of(pool, id, 1, [open] { open.wait(); })));
  REQUIRE(pulls.start(pull_of(pool, 7, 2, [] {})));
  CHECK(eventually([&] { return ended(7); }));
  CHECK_FALSE(ended(1));
  gate.set_value();
  for (uint64_t id = 1; id <= 6; ++id) CHECK(eventually([&] { return ended(id); }));
}

TEST_CASE("pulls that wait for their asker's turn are told as cancelled when all stops") {
  tc::Pool pool(testing::pool_of(64));
  std::promise<void> gate;
  const std::shared_future<void> open = gate.get_future().share();
  std::atomic<int> cancelled{0};
  tc::Pulls pulls(pool, 1, [&](const std::shared_ptr<tc::Pull>&, const tc::FillResult& result) {
    cancelled += result.status == tc::FillStatus::kCancelled;
  });
  std::vector<std::shared_ptr<tc::Pull>> all;
  for (uint64_t id = 1; id <= 4; ++id) {
    all.push_back(pull_of(pool, id, 1, [open] { open.wait(); }));
    REQUIRE(pulls.start(all.back()));
  }
  std::thread stopping([&] { pulls.stop(); });
  for (const auto& pull : all) CHECK(eventually([&] { return pull->job.cancelled.load(); }));
  gate.set_value();
  stopping.join();
  CHECK(cancelled == 4);
}

TEST_CASE("a stream of which no byte comes for too long ends as short") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const tc::Fd ours(ends[0]), theirs(ends[1]);
  tc::Crew crew(patient().deadline, nullptr);
  std::vector<uint8_t> into(4);
  const auto fragment = [&](uint64_t from, uint64_t nbytes) {
    tc::Fragment one{};
    one.kind = tc::PieceKind::kMemory;
    one.to = std::span(into).subspan(from, nbytes);
    return one;
  };
  tc::StreamReader stream(ours.get(), -1, std::chrono::milliseconds(1));
  REQUIRE(::send(theirs.get(), "ab", 2, 0) == 2);
  stream.read(std::vector{fragment(0, 2)}, crew);
  CHECK(into[1] == 'b');
  try {
    stream.read(std::vector{fragment(2, 2)}, crew);
    FAIL("nothing was sent, and yet it came");
  } catch (const tc::Trouble& trouble) {
    CHECK(trouble.status == tc::FillStatus::kSourceShort);
    CHECK(trouble.detail.find("after 2 bytes") != std::string::npos);
  }
}

TEST_CASE("of all bodies that clients hold at the storage the largest goes when there are too many") {
  tc::ServerLimits limits;
  limits.asked_bytes_max = 12 * kMiB;
  Storage storage(96u << 20, limits);
  storage.answers_calls = false;
  RawClient small(storage.path), large(storage.path), last(storage.path);
  small.send(tc::CallMessage{1000, std::string(2 * kMiB, 'x')}.encode(1));
  large.send(tc::CallMessage{1000, std::string(7 * kMiB, 'x')}.encode(1));
  REQUIRE(eventually([&] { return storage.seen(tc::RequestKind::kCall) == 2; }));
  // Half a message counts as well.
  std::string half = tc::CallMessage{1000, std::string(6 * kMiB, 'x')}.encode(1);
  half.resize(half.size() / 8 * 7);
  last.send(std::move(half));
  CHECK(hangs_up(large.socket.get()));
  CHECK(eventually([&] { return storage.seen(tc::RequestKind::kGone) == 1; }));
  storage.answers_calls = true;
  small.send(tc::CallMessage{1000, "?"}.encode(2));
  CHECK(next_frame(small.socket.get()).header.request == 2);
}

TEST_CASE("of all answers that nobody reads the largest outbox goes when there are too many bytes") {
  tc::ServerLimits limits;
  limits.unsent_bytes_max = 12 * kMiB;
  Storage storage(96u << 20, limits);
  RawClient small(storage.path), large(storage.path), last(storage.path);
  small.send(tc::CallMessage{1000, std::string(3 * kMiB, 'x')}.encode(1));
  large.send(tc::CallMessage{1000, std::string(8 * kMiB, 'x')}.encode(1));
  REQUIRE(eventually([&] { return storage.seen(tc::RequestKind::kCall) == 2; }));
  last.send(tc::CallMessage{1000, std::string(6 * kMiB, 'x')}.encode(1));
  CHECK(hangs_up(large.socket.get()));
  for (RawClient* client : {&small, &last}) CHECK(next_frame(client->socket.get()).kind() == tc::Kind::kReply);
}

TEST_CASE("one user's connections have a limit, which is said, and ended ones do not count") {
  tc::ServerLimits limits;
  limits.connections_of_uid_max = 3;
  Storage storage(96u << 20, limits);
  RawClient one(storage.path), two(storage.path);
  {
    RawClient three(storage.path);
    const tc::Fd over = tc::connect_to(storage.path, patient());
    const auto reply = tc::Reply::decode(next_frame(over.get()).body);
    REQUIRE(reply);
    CHECK(reply->body.find("3 connections") != std::string::npos);
    CHECK(hangs_up(over.get()));
    three.settle();
  }
  REQUIRE(eventually([&] { return storage.server.sessions().size() == 2; }));
  RawClient again(storage.path);
  again.settle();
}

TEST_CASE("a session's pins have a limit") {
  tc::Pool pool(testing::pool_of(64));
  const tc::Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const tc::Fd write_end(ends[1]);
  tc::Ledger ledger(pool, epoll.get());
  const uint64_t session = ledger.open_session(std::make_shared<tc::Peer>());
  REQUIRE(ledger.add_lifeline(session, 1, tc::Fd(ends[0])));
  const auto entry = std::make_shared<tc::Published>();
  for (uint64_t i = 0; i + 1 < tc::Ledger::kPinsMax; ++i) ledger.pin(session, 1, entry, {});
  CHECK_FALSE(ledger.full(session));
  const uint64_t last = ledger.pin(session, 1, entry, {});
  CHECK(ledger.full(session));
  ledger.unpin(session, last);
  CHECK_FALSE(ledger.full(session));
}
