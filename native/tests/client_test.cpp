// The client against a storage that is late, silent, or gone.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "local_storage.hpp"
#include "tc/socket.hpp"

namespace {

constexpr uint64_t kBig = 3u << 20;

// A storage that does only what a test tells it.
class FakeStorage {
 public:
  FakeStorage() : path(folder_.path + "/s"), listener_(tc::listen_at(path, 0600)) {}

  void greet() {
    REQUIRE(eventually([&] {
      socket_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      return static_cast<bool>(socket_);
    }));
    tc::Frame hello = next();
    lifeline = std::move(hello.fds.at(0));
    say(tc::Welcome{1, false, "fake"}.encode());
  }
  tc::Frame next() {
    tc::Frame frame;
    REQUIRE(eventually([&] { return reader_.read(socket_.get(), frame) == tc::Got::kFrame; }));
    return frame;
  }
  void say(std::string frame, std::vector<int> fds = {}) {
    tc::Outbox outbox;
    outbox.push(0, std::move(frame), std::move(fds));
    REQUIRE(outbox.flush(socket_.get()) == tc::Outbox::Flushed::kAll);
  }
  void hang_up() { socket_.reset(); }
  bool lifeline_ended() const {
    pollfd entry{lifeline.get(), 0, 0};
    return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP);
  }

 private:
  Folder folder_;

 public:
  const std::string path;
  tc::Fd lifeline;

 private:
  tc::Fd listener_, socket_;
  tc::FrameReader reader_{[](tc::Kind) { return tc::kBodyBytesMax; }};
};

struct Greeted {
  Greeted() : greeting([this] { storage.greet(); }), client(storage.path, patient(), true) { greeting.join(); }
  FakeStorage storage;
  std::thread greeting;
  tc::Client client;
};

tc::Fd memory_of(const std::string& bytes) {
  tc::Fd memory(::memfd_create("test", MFD_CLOEXEC));
  REQUIRE(::write(memory.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  return memory;
}

std::string attached_frame(uint64_t number, uint64_t pin, uint64_t nbytes) {
  tc::Attached message;
  message.pin = pin;
  message.fds = 1;
  message.segments = {{nbytes, tc::SegmentKind::kMapped, {{0, 0, 0, nbytes}}}};
  return message.encode(number, 1);
}

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 2048; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}

}  // namespace

TEST_CASE("an attach that comes after its deadline is unpinned, and its descriptors are closed") {
  Greeted g;
  const tc::Fd memory = memory_of(pattern(kBig, 1));
  const size_t before = open_descriptors();
  CHECK_THROWS_AS(g.client.attach("a", tc::Wait::of_ms(30), false), tc::WaitedTooLong);
  const tc::Frame asked = g.storage.next();
  CHECK(asked.kind() == tc::Kind::kAttach);
  CHECK(g.storage.next().kind() == tc::Kind::kCancel);
  g.storage.say(attached_frame(asked.header.request, 42, kBig), {memory.get()});
  const tc::Frame unpin = g.storage.next();
  REQUIRE(unpin.kind() == tc::Kind::kUnpin);
  CHECK(tc::Decoder(unpin.body).array<uint64_t>() == std::vector<uint64_t>{42});
  CHECK(open_descriptors() == before);
}

TEST_CASE("a call that gave up does not take the next one's answer") {
  Greeted g;
  CHECK_THROWS_AS(g.client.call("first", tc::Wait::of_ms(30)), tc::WaitedTooLong);
  const uint64_t late = g.storage.next().header.request;
  CHECK(g.storage.next().kind() == tc::Kind::kCancel);
  std::thread answering([&] {
    const uint64_t now = g.storage.next().header.request;
    g.storage.say(tc::Reply{0, "late"}.encode(late));
    g.storage.say(tc::Reply{0, "now"}.encode(now));
  });
  CHECK(g.client.call("second", patient()).second == "now");
  answering.join();
}

TEST_CASE("what the tick throws ends the call and leaves the link usable") {
  Greeted g;
  struct Interrupted {};
  tc::Wait wait = tc::Wait::of_ms(kWaitMs, [] { throw Interrupted(); });
  CHECK_THROWS_AS(g.client.call("x", wait), Interrupted);
  const uint64_t first = g.storage.next().header.request;
  CHECK(g.storage.next().kind() == tc::Kind::kCancel);
  g.storage.say(tc::Reply{3, "cancelled"}.encode(first));
  std::thread answering([&] { g.storage.say(tc::Reply{0, "y"}.encode(g.storage.next().header.request)); });
  CHECK(g.client.call("y", patient()).second == "y");
  answering.join();
}

TEST_CASE("answers out of order reach the threads that asked") {
  Greeted g;
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { right += g.client.call(std::to_string(t), patient()).second == std::to_string(t); });
  }
  std::vector<std::pair<uint64_t, std::string>> asked;
  for (int t = 0; t < kThreads; ++t) {
    const tc::Frame frame = g.storage.next();
    asked.emplace_back(frame.header.request, tc::CallMessage::decode(frame.body)->body);
  }
  for (auto it = asked.rbegin(); it != asked.rend(); ++it) g.storage.say(tc::Reply{0, it->second}.encode(it->first));
  for (std::thread& thread : threads) thread.join();
  CHECK(right == kThreads);
}

TEST_CASE("many threads on one link all get their own answers") {
  Storage storage;
  tc::Client client(storage.path, patient(), true);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const std::string body = std::to_string(t * 1000 + i);
        right += client.call(body, patient()).second == body;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 600);
}

TEST_CASE("a storage that hangs up ends waiting calls, and the client knows without asking") {
  Greeted g;
  std::thread hanging_up([&] {
    g.storage.next();
    g.storage.hang_up();
  });
  CHECK_THROWS_AS(g.client.call("x", patient()), tc::PeerGone);
  hanging_up.join();
  CHECK_FALSE(g.client.alive());
  Greeted idle;
  CHECK(idle.client.alive());
  idle.storage.hang_up();
  CHECK(eventually([&] { return !idle.client.alive(); }));
  CHECK(eventually([&] { return idle.storage.lifeline_ended(); }));
}

TEST_CASE("closing with living maps keeps the lifeline until the last of them") {
  Greeted g;
  const std::string bytes = pattern(kBig, 1);
  const tc::Fd memory = memory_of(bytes);
  std::thread answering(
      [&] { g.storage.say(attached_frame(g.storage.next().header.request, 7, kBig), {memory.get()}); });
  tc::Attachment got = attached(g.client, "a");
  answering.join();
  g.client.close();
  g.client.close();
  CHECK_FALSE(g.client.alive());
  CHECK_FALSE(g.storage.lifeline_ended());
  CHECK(holds(got.segment(0), bytes));
  CHECK(got.release() == 0);
  CHECK(g.storage.lifeline_ended());
}

TEST_CASE("a maimed answer to an attach raises and leaves nothing behind") {
  Greeted g;
  const tc::Fd memory = memory_of(pattern(kBig, 1));
  const size_t before = open_descriptors();
  std::thread answering([&] {
    tc::Attached message;
    message.pin = 5;
    message.fds = 1;
    message.segments = {{kBig, tc::SegmentKind::kMapped, {{0, 0, 100, kBig}}}};  // not at a page's edge
    g.storage.say(message.encode(g.storage.next().header.request, 1), {memory.get()});
  });
  CHECK_THROWS_AS(g.client.attach("a", patient(), false), std::invalid_argument);
  answering.join();
  CHECK(g.storage.next().kind() == tc::Kind::kUnpin);
  CHECK(open_descriptors() == before);
}

TEST_CASE("a storage that never reads does not hold up whoever frees a tensor or gives up a call") {
  Greeted g;
  const tc::Fd memory = memory_of(pattern(kBig, 1));
  std::thread answering(
      [&] { g.storage.say(attached_frame(g.storage.next().header.request, 7, kBig), {memory.get()}); });
  tc::Attachment got = attached(g.client, "a");
  answering.join();
  // The message fills the socket and stays half sent.
  CHECK_THROWS_AS(g.client.call(std::string(16u << 20, 'x'), tc::Wait::of_ms(60)), tc::WaitedTooLong);
  CHECK(got.release() == 0);
  CHECK(g.storage.next().kind() == tc::Kind::kCall);
  tc::Kind next = g.storage.next().kind();
  const tc::Kind after = g.storage.next().kind();
  if (next != tc::Kind::kCancel) next = after;
  CHECK(next == tc::Kind::kCancel);
}

TEST_CASE("no storage, or one that is too slow, is said with its path") {
  CHECK_THROWS_WITH_AS(tc::Client("/nonexistent/s", patient(), true), doctest::Contains("/nonexistent/s"),
                       tc::PeerGone);
  FakeStorage silent;
  CHECK_THROWS_AS(tc::Client(silent.path, tc::Wait::of_ms(60), true), tc::WaitedTooLong);
}
