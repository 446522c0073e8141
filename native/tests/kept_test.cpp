// Registrations: what a storage keeps of a put, reads later or never, and hears of its owner's end.
#include "tc/kept.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "local_storage.hpp"

namespace {

constexpr uint64_t kBig = (3u << 20) + 5;
using Status = tc::FillStatus;

// A storage that keeps every put, and a client that registers one.
struct Registered {
  Storage storage;
  tc::Client client{storage.path, patient(), true};
  tc::Ticket ticket;
  std::string bytes = pattern(kBig, 9);

  Registered() {
    storage.keeps_puts = true;
    storage.accepts_puts = false;
  }
  uint64_t put(const tc::Ticket* shown) {
    tc::PutOrder order = order_of("r", bytes);
    order.ticket = shown;
    REQUIRE(client.put(order, patient()) == tc::Client::Answered{0, "kept"});
    return storage.kept().back();
  }
  tc::FillDone load(uint64_t token, uint64_t source, std::optional<tc::KeptPlan> plan = std::nullopt) {
    const uint64_t nbytes = plan ? plan->segment_bytes.at(0) : bytes.size();
    storage.server.load_kept(token, source, {{0, 0, 0, nbytes}}, std::move(plan), kWaitMs);
    return storage.load_done(token);
  }
  // All of the pool is free again.
  bool left_nothing() {
    return eventually([&] { return storage.pool.stats().segments == 0; });
  }
};

tc::KeptPlan plan_of(const char* from, uint64_t nbytes) {
  return {{nbytes}, {{0, tc::PieceKind::kMemory, 0, nbytes, reinterpret_cast<uint64_t>(from), 0, 0}}, {}};
}

// Another process that registers `count` times as soon as it is told a path, and then waits for its end. Forked while
// this one has no threads.
class Owner {
 public:
  explicit Owner(int count) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    pid = ::fork();
    if (pid == 0) register_at(ends[0], count);
    ::close(ends[0]);
    orders_.reset(ends[1]);
  }
  ~Owner() { kill(); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  void register_at(const std::string& path) {
    REQUIRE(::write(orders_.get(), path.c_str(), path.size() + 1) == static_cast<ssize_t>(path.size() + 1));
  }
  void kill() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = 0;
  }

  pid_t pid = 0;

 private:
  [[noreturn]] static void register_at(int orders, int count) {
    char path[256] = {};
    if (::read(orders, path, sizeof(path) - 1) <= 0) ::_exit(1);
    tc::Client client(path, patient(), true);
    const tc::Ticket ticket;
    const std::string bytes = pattern(kBig, 9);
    tc::PutOrder order = order_of("r", bytes);
    order.ticket = &ticket;
    for (int i = 0; i < count; ++i) client.put(order, patient());
    for (;;) ::pause();
  }

  tc::Fd orders_;
};

}  // namespace

TEST_CASE("what was registered is read later, byte for byte, as often as it is wanted") {
  Registered r;
  const uint64_t source = r.put(&r.ticket);
  CHECK(r.storage.pool.stats().segments == 0);
  for (const uint64_t token : {1, 2}) {
    const tc::FillDone done = r.load(token, source);
    REQUIRE(done.result.detail == "");
    REQUIRE(done.segments.size() == 1);
    CHECK(r.storage.content(done.segments[0]) == r.bytes);
    CHECK(done.result.digests.at(0) ==
          tc::tensor_digest({reinterpret_cast<const uint8_t*>(r.bytes.data()), r.bytes.size()}));
    r.storage.pool.drop(done.segments[0]);
  }
  r.storage.server.let_go(source);
  CHECK_THROWS_AS(r.load(3, source), tc::UnknownRequest);
  r.storage.server.let_go(source);
  CHECK(r.left_nothing());
}

TEST_CASE("memory whose ticket has ended is gone, though every byte of it was read") {
  Registered r;
  const uint64_t source = r.put(&r.ticket);
  r.ticket.end();
  const tc::FillDone done = r.load(1, source);
  CHECK(done.result.status == Status::kGone);
  CHECK(done.segments.empty());
  CHECK(r.left_nothing());
}

TEST_CASE("a put without a ticket of its caller's is over with its answer") {
  Registered r;
  CHECK(r.load(1, r.put(nullptr)).result.status == Status::kGone);
  CHECK(r.left_nothing());
}

TEST_CASE("a plan of the storage's own reads within the memory that was registered, and nothing beside it") {
  Registered r;
  const uint64_t source = r.put(&r.ticket);
  const tc::FillDone done = r.load(1, source, plan_of(r.bytes.data() + 1000, 5000));
  REQUIRE(done.result.status == Status::kOk);
  CHECK(r.storage.content(done.segments[0]) == r.bytes.substr(1000, 5000));
  r.storage.pool.drop(done.segments[0]);
  CHECK_THROWS_AS(r.load(2, source, plan_of(r.bytes.data() + 1, kBig)), std::invalid_argument);
  CHECK_THROWS_AS(r.load(2, source, plan_of(r.bytes.data() - 1, 2)), std::invalid_argument);
  CHECK_THROWS_AS(r.load(2, source, plan_of(nullptr, 1)), std::invalid_argument);
  CHECK_THROWS_AS(r.load(2, source, plan_of(r.bytes.data() + 1, UINT64_MAX)), std::invalid_argument);
  tc::KeptPlan of_pool{{1}, {{0, tc::PieceKind::kPool, 0, 1, 0, 0, 0}}, {}};
  CHECK_THROWS_AS(r.load(2, source, of_pool), std::invalid_argument);
  tc::KeptPlan of_file{{1}, {{0, tc::PieceKind::kFile, 0, 1, 0, 0, 0}}, {}};
  CHECK(r.load(3, source, of_file).result.status == Status::kBadPlan);
  CHECK(r.left_nothing());
}

TEST_CASE("a load that finds no room, or a token in use, leaves the registration as it was") {
  Registered r;
  const uint64_t source = r.put(&r.ticket);
  tc::KeptPlan huge = plan_of(r.bytes.data(), 8);
  huge.segment_bytes = {1ull << 40};
  CHECK_THROWS_AS(r.storage.server.load_kept(1, source, {}, huge, kWaitMs), tc::PoolFull);
  CHECK_THROWS_AS(r.storage.server.load_kept(tc::Server::kFirstRequest, source, {}, std::nullopt, kWaitMs),
                  std::invalid_argument);
  const tc::FillDone done = r.load(1, source);
  REQUIRE(done.result.status == Status::kOk);
  r.storage.pool.drop(done.segments[0]);
  CHECK(r.left_nothing());
}

TEST_CASE("letting go during a load ends in one answer and no leak") {
  Registered r;
  for (uint64_t token = 1; token <= 20; ++token) {
    const uint64_t source = r.put(&r.ticket);
    r.storage.server.load_kept(token, source, {}, std::nullopt, kWaitMs);
    r.storage.server.let_go(source);
    const tc::FillDone done = r.storage.load_done(token);
    CHECK(done.result.status == Status::kOk);
    for (tc::SegmentId segment : done.segments) r.storage.pool.drop(segment);
  }
  CHECK(r.left_nothing());
}

TEST_CASE("a server that stops ends loads of what it kept") {
  Registered r;
  const uint64_t source = r.put(&r.ticket);
  for (uint64_t token = 1; token <= 8; ++token) r.storage.server.load_kept(token, source, {}, std::nullopt, kWaitMs);
  r.storage.server.stop();
  for (uint64_t token = 1; token <= 8; ++token) {
    for (tc::SegmentId segment : r.storage.load_done(token).segments) r.storage.pool.drop(segment);
  }
  CHECK_THROWS_AS(r.storage.server.load_kept(9, source, {}, std::nullopt, kWaitMs), std::invalid_argument);
  CHECK(r.left_nothing());
}

TEST_CASE("what is streamed is taken at once, and only its process is kept") {
  Storage storage;
  storage.keeps_puts = true;
  tc::Client client(storage.path, patient(), false);
  const std::string bytes = pattern(kBig, 3);
  CHECK(client.put(order_of("s", bytes), patient()) == tc::Client::Answered{0, "socket"});
  REQUIRE(storage.kept().size() == 1);
  CHECK_THROWS_AS(storage.server.load_kept(1, storage.kept()[0], {}, std::nullopt, kWaitMs), std::invalid_argument);
  CHECK(holds(attached(client, "s").segment(1), bytes));
}

TEST_CASE("the end of a process is told once of each registration, and never of one that was let go") {
  Owner owner(3);
  Storage storage;
  storage.keeps_puts = true;
  storage.accepts_puts = false;
  owner.register_at(storage.path);
  REQUIRE(eventually([&] { return storage.kept().size() == 3; }));
  const std::vector<uint64_t> kept = storage.kept();
  storage.server.load_kept(1, kept[0], {}, std::nullopt, kWaitMs);
  const tc::FillDone before = storage.load_done(1);
  REQUIRE(before.result.status == Status::kOk);
  CHECK(storage.content(before.segments[0]) == pattern(kBig, 9));
  storage.pool.drop(before.segments[0]);
  CHECK(storage.deaths().empty());
  storage.server.let_go(kept[1]);
  owner.kill();
  CHECK(eventually([&] { return storage.deaths().size() == 2; }));
  storage.server.load_kept(2, kept[0], {}, std::nullopt, kWaitMs);
  CHECK(storage.load_done(2).result.status == Status::kGone);
  std::vector<uint64_t> told = storage.deaths();
  std::sort(told.begin(), told.end());
  CHECK(told == std::vector<uint64_t>{kept[0], kept[2]});
  CHECK(storage.pool.stats().segments == 0);
}

TEST_CASE("a process that ends during loads of its memory leaves right bytes or none") {
  Owner owner(1);
  Storage storage;
  storage.keeps_puts = true;
  storage.accepts_puts = false;
  owner.register_at(storage.path);
  REQUIRE(eventually([&] { return storage.kept().size() == 1; }));
  for (uint64_t token = 1; token <= 8; ++token)
    storage.server.load_kept(token, storage.kept()[0], {}, std::nullopt, kWaitMs);
  owner.kill();
  for (uint64_t token = 1; token <= 8; ++token) {
    const tc::FillDone done = storage.load_done(token);
    for (tc::SegmentId segment : done.segments) {
      CHECK(storage.content(segment) == pattern(kBig, 9));
      storage.pool.drop(segment);
    }
  }
  CHECK(eventually([&] { return storage.pool.stats().segments == 0; }));
}

TEST_CASE("registrations are bounded, and letting one go makes room for another") {
  tc::KeptSources sources(-1);
  const auto nobody = std::make_shared<tc::Peer>();  // cannot be told apart: counts by session
  tc::PutMessage put;
  rlimit open_files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &open_files) == 0);
  const uint64_t most = std::min<uint64_t>(tc::KeptSources::kSourcesMax, open_files.rlim_cur / 2);
  for (uint64_t i = 0; i < most; ++i) sources.keep(put, {}, nobody, 1);
  CHECK_THROWS_AS(sources.keep(put, {}, nobody, 1), std::invalid_argument);
  sources.let_go(1);
  CHECK(sources.keep(put, {}, nobody, 1) == most + 1);
  CHECK(sources.hung_up(2).empty());
  CHECK(sources.hung_up(1).size() == most);
  CHECK(sources.hung_up(1).empty());
}

TEST_CASE("the plans of one process are bounded") {
  tc::KeptSources sources(-1);
  const auto nobody = std::make_shared<tc::Peer>();
  tc::PutMessage put;
  put.inline_bytes.assign(tc::KeptSources::kPlanBytesMax / 2, 'x');
  const uint64_t first = sources.keep(put, {}, nobody, 1);
  sources.keep(put, {}, nobody, 1);
  CHECK_THROWS_AS(sources.keep(put, {}, nobody, 1), std::invalid_argument);
  sources.let_go(first);
  CHECK(sources.keep(put, {}, nobody, 1) == 3);
  put.flags = tc::PutMessage::kStreamed;
  CHECK(sources.keep(put, {}, nobody, 1) == 4);  // keeps no plan
}

TEST_CASE("a registration that cannot be watched is none, and costs no descriptor") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const tc::Fd one(ends[0]), other(ends[1]);
  const auto self = tc::Peer::identify(one.get(), ::getpid());
  REQUIRE(self->known());
  tc::KeptSources sources(-1);  // takes no watch
  const auto next = [] { return tc::Fd(::dup(0)).get(); };
  const int free = next();
  for (int i = 0; i < 3; ++i) CHECK_THROWS_AS(sources.keep({}, {}, self, 1), std::system_error);
  CHECK(next() == free);
  CHECK_FALSE(sources.watched(1));
  CHECK(sources.pull(1, std::nullopt) == nullptr);
  CHECK(sources.hung_up(1).empty());
}
