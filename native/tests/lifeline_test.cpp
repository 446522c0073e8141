// Lifelines and maps across fork: who may say that a pin is over, and when.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "local_storage.hpp"
#include "tc/lifeline.hpp"

namespace {

constexpr uint64_t kBig = 3u << 20;

bool hung_up_on(const tc::Fd& read_end) {
  pollfd entry{read_end.get(), 0, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP);
}

// A forked child that does `work` and then stays until told to go; nothing of it runs afterwards.
class Child {
 public:
  explicit Child(const std::function<bool()>& work) {
    REQUIRE(::pipe2(orders_, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(news_, O_CLOEXEC) == 0);
    pid_ = ::fork();
    if (pid_ != 0) {
      ::close(orders_[0]);
      ::close(news_[1]);
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(orders_[1]);
    char order;
    while (::read(orders_[0], &order, 1) == 1) {
      const char news = work() ? 'y' : 'n';
      if (::write(news_[1], &news, 1) != 1) break;
    }
    ::_exit(0);
  }
  // Runs the work there once, and says what it returned.
  bool run() {
    char news = 0;
    REQUIRE(::write(orders_[1], "x", 1) == 1);
    REQUIRE(::read(news_[0], &news, 1) == 1);
    return news == 'y';
  }
  void end() {
    if (pid_ <= 0) return;
    ::close(orders_[1]);
    ::close(news_[0]);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  ~Child() { end(); }

 private:
  int orders_[2], news_[2];
  pid_t pid_;
};

}  // namespace

TEST_CASE("a lifeline without maps stays with the parent at a fork") {
  tc::Fd read_end;
  auto lifeline = std::make_shared<tc::Lifeline>(1, read_end);
  Child child([] { return true; });
  REQUIRE(child.run());
  CHECK(lifeline->usable());
  lifeline.reset();
  CHECK(hung_up_on(read_end));
}

TEST_CASE("a lifeline with maps at a fork ends with the last of both processes, in either order") {
  for (const bool parent_first : {true, false}) {
    tc::Fd read_end;
    auto lifeline = std::make_shared<tc::Lifeline>(1, read_end);
    auto use = tc::LifelineUse::begin(lifeline);
    use->mapped();
    Child child([&] {
      use->going();
      use.reset();
      return true;
    });
    CHECK_FALSE(lifeline->usable());
    CHECK(tc::LifelineUse::begin(lifeline) == nullptr);
    if (!parent_first) CHECK(child.run());
    CHECK_FALSE(hung_up_on(read_end));
    CHECK_FALSE(use->going());  // no word of its own: the other may still read
    use.reset();
    CHECK(hung_up_on(read_end) == !parent_first);
    if (parent_first) {
      CHECK(child.run());
      CHECK(hung_up_on(read_end));
    }
  }
}

TEST_CASE("a child that ends without a word counts as unmapped") {
  tc::Fd read_end;
  auto lifeline = std::make_shared<tc::Lifeline>(1, read_end);
  auto use = tc::LifelineUse::begin(lifeline);
  use->mapped();
  Child child([] { return true; });
  REQUIRE(child.run());
  use->going();
  use.reset();
  CHECK_FALSE(hung_up_on(read_end));
  child.end();
  CHECK(hung_up_on(read_end));
}

TEST_CASE("an attach that was under way at a fork belongs to the parent alone") {
  tc::Fd read_end;
  auto lifeline = std::make_shared<tc::Lifeline>(1, read_end);
  auto mapped = tc::LifelineUse::begin(lifeline);
  mapped->mapped();
  auto coming = tc::LifelineUse::begin(lifeline);
  Child child([&] {
    mapped->going();
    mapped.reset();
    return true;
  });
  REQUIRE(child.run());
  coming->mapped();
  CHECK(coming->going());
  coming.reset();
  CHECK_FALSE(mapped->going());
  mapped.reset();
  CHECK(hung_up_on(read_end));
}

TEST_CASE("a forked child reads right bytes after parent, withdrawal and refill; its end frees the blocks") {
  Storage storage(32u << 20);
  const std::string bytes = pattern(8u << 20, 1);
  storage.publish("a", {bytes});
  tc::Client client(storage.path, patient(), true);
  auto got = std::make_unique<tc::Attachment>(attached(client, "a"));
  Child child([&] { return holds(got->segment(1), bytes); });
  REQUIRE(child.run());
  got.reset();
  CHECK(client.call("everything before is handled", patient()).first == 0);
  CHECK(storage.pins() == 1);
  storage.server.withdraw("a");
  for (uint32_t i = 2; i < 8; ++i) {
    // All other memory of the pool is written over, several times.
    storage.publish("b", {pattern(8u << 20, i), pattern(4u << 20, i)});
    storage.server.withdraw("b");
  }
  CHECK(child.run());
  // What the parent attaches from now on is its own: it can say itself that it unmapped.
  storage.publish("c", {pattern(kBig, 9)});
  {
    const tc::Attachment fresh = attached(client, "c");
  }
  CHECK(eventually([&] { return storage.pins() == 1; }));
  child.end();
  CHECK(eventually([&] { return storage.pins() == 0; }));
  CHECK(storage.pool.stats().dropped_pinned_bytes == 0);
}

TEST_CASE("a child can use nothing of the parent's client, and closing it there changes nothing") {
  Storage storage;
  auto client = std::make_unique<tc::Client>(storage.path, patient(), true);
  Child child([&] {
    bool refused = !client->alive();
    try {
      client->call("x", patient());
      refused = false;
    } catch (const tc::PeerGone&) {
    }
    client->close();
    client.reset();
    return refused;
  });
  CHECK(child.run());
  CHECK(client->call("x", patient()).second == "x");
}

TEST_CASE("forks amid attaches and releases of other threads lose no pin and free nothing early") {
  Storage storage(96u << 20);
  storage.publish("a", {pattern(kBig, 1)});
  storage.publish("large", {pattern(20u << 20, 2)});
  tc::Client client(storage.path, patient(), true);
  const auto kept = std::make_unique<tc::Attachment>(attached(client, "large"));  // populated while forks happen
  std::atomic<bool> stop{false}, wrong{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) wrong = wrong || !holds(attached(client, "a").segment(1), pattern(kBig, 1));
    });
  }
  for (int i = 0; i < 25; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const std::span<uint8_t> bytes = kept->segment(1);
      ::_exit(bytes[0] == static_cast<uint8_t>(pattern(1u << 20, 2)[0]) ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    CHECK(WEXITSTATUS(status) == 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(wrong);
  CHECK(eventually([&] { return storage.pins() == 1; }));
}

TEST_CASE("a child unmaps what was being populated in the parent, and its lifeline ends") {
  Storage storage(96u << 20);
  storage.publish("large", {pattern(64u << 20, 2)});
  tc::Client client(storage.path, patient(), true);
  auto got = std::make_unique<tc::Attachment>(attached(client, "large"));
  Child child([&] { return got->release() == 0; });
  got.reset();
  CHECK(child.run());
  CHECK(eventually([&] { return storage.pins() == 0; }));
}
