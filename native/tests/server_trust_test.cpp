// What the local server believes of its clients: not their pid, not their ids' bytes, not the kind of what they send.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>

#include "local_storage.hpp"
#include "raw_client.hpp"

namespace {

constexpr uint64_t kBig = 3u << 20;

// A connection made by a process that has ended since.
tc::Fd connected_by_another_process(const std::string& path) {
  tc::Fd socket = tc::unix_socket();
  const pid_t child = ::fork();
  if (child == 0) {
    tc::connect_to(socket.get(), path, patient());
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  return socket;
}

void send(int socket, std::string frame, std::vector<int> fds = {}) {
  tc::Outbox outbox;
  outbox.push(0, std::move(frame), std::move(fds));
  REQUIRE(eventually([&] { return outbox.flush(socket) == tc::Outbox::Flushed::kAll; }));
}

tc::Hello put_hello(uint64_t session) {
  tc::Hello hello;
  hello.pid = static_cast<uint32_t>(::getpid());
  hello.flags = tc::Hello::kForPut;
  hello.session = session;
  return hello;
}

// Whether the server answers with a refusal of these words and hangs up.
bool refused(int socket, const std::string& words) {
  const tc::Frame frame = next_frame(socket);
  if (frame.kind() != tc::Kind::kReply) return false;
  const auto reply = tc::Reply::decode(frame.body);
  return reply && reply->status == static_cast<uint32_t>(tc::Status::kBadRequest) &&
         reply->body.find(words) != std::string::npos;
}

bool refuses_hello_with(const std::string& path, int fd, const std::string& words) {
  const tc::Fd socket = tc::connect_to(path, patient());
  tc::Hello hello;
  hello.pid = static_cast<uint32_t>(::getpid());
  hello.flags = tc::Hello::kNoVmRead;
  send(socket.get(), hello.encode(), {fd});
  return refused(socket.get(), words);
}

uint64_t address_space_bytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("who only claims a client's pid does not put out of that client's memory") {
  Storage storage;
  const tc::Client victim(storage.path, patient(), true);
  REQUIRE(victim.vm_read());
  const uint64_t session = std::get<0>(storage.server.sessions().at(0));
  const tc::Fd claims = connected_by_another_process(storage.path);
  send(claims.get(), put_hello(session).encode());
  CHECK(refused(claims.get(), "not this process's"));
  const tc::Fd own = tc::connect_to(storage.path, patient());
  send(own.get(), put_hello(session).encode());
  CHECK(next_frame(own.get()).kind() == tc::Kind::kWelcome);
}

TEST_CASE("an artifact id that is not UTF-8 ends its connection and reaches nobody") {
  Storage storage;
  for (const std::string bad : {"\xff", "a\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\xe0\x80\x80"}) {
    RawClient attaching(storage.path);
    attaching.send(tc::AttachMessage{1000, 1, 0, bad, {}}.encode(1));
    CHECK(refused(attaching.socket.get(), "malformed"));
    tc::PutMessage put;
    put.art_id = bad;
    RawClient session(storage.path);
    const tc::Fd socket = tc::connect_to(storage.path, patient());
    send(socket.get(), put_hello(std::get<0>(storage.server.sessions().back())).encode() + put.encode(1, 0));
    CHECK(next_frame(socket.get()).kind() == tc::Kind::kWelcome);
    CHECK(refused(socket.get(), "malformed"));
  }
  CHECK(storage.seen(tc::RequestKind::kAttach) == 0);
  CHECK(storage.seen(tc::RequestKind::kPut) == 0);
  tc::Client client(storage.path, patient(), true);
  for (const std::string good :
       {"a", "\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\xa6\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(std::get<tc::Client::Answered>(client.attach(good, patient(), false)).second == "no " + good);
}

TEST_CASE("a lifeline that is a named FIFO is refused, since its end may never be told") {
  Storage storage;
  Folder folder;
  const std::string name = folder.path + "/s";
  REQUIRE(::mkfifo(name.c_str(), 0600) == 0);
  const tc::Fd fifo(::open(name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(fifo);
  CHECK(refuses_hello_with(storage.path, fifo.get(), "lifeline"));
  CHECK(eventually([&] { return storage.server.sessions().empty(); }));
}

TEST_CASE("sockets and pipe ends to write are not taken in, whatever they come with") {
  Storage storage;
  int ends[2], pair[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  tc::Fd read_end(ends[0]), write_end(ends[1]);
  const tc::Fd one(pair[0]), other(pair[1]);
  for (const int fd : {write_end.get(), one.get()}) {
    CHECK(refuses_hello_with(storage.path, fd, "neither a regular file"));
    RawClient session(storage.path);
    const tc::Fd data = tc::connect_to(storage.path, patient());
    send(data.get(), put_hello(std::get<0>(storage.server.sessions().back())).encode());
    CHECK(next_frame(data.get()).kind() == tc::Kind::kWelcome);
    send(data.get(), tc::Encoder(tc::Kind::kFds, 1).finish(1), {fd});
    CHECK(refused(data.get(), "neither a regular file"));
  }
  write_end.reset();
  pollfd end{read_end.get(), POLLIN, 0};
  CHECK(::poll(&end, 1, static_cast<int>(kWaitMs)) == 1);  // the server kept no copy
}

TEST_CASE("rows that the storage gives replace those that a client names") {
  Storage storage;
  storage.accepts_puts = false;
  const std::string bytes = pattern(kBig, 5);
  std::thread putting([&] {
    tc::Client client(storage.path, patient(), true);
    tc::PutOrder order = order_of("a", bytes);
    order.rows.assign(3, tc::Row{0, 0, 0, 1});
    client.put(order, patient());
  });
  REQUIRE(eventually([&] { return storage.seen(tc::RequestKind::kPut) == 1; }));
  storage.server.accept_put(tc::Server::kFirstRequest, std::vector<tc::Row>{{0, 0, 0, kBig}});
  putting.join();
  REQUIRE(storage.last_digests().size() == 1);
  CHECK(storage.last_digests()[0] == tc::tensor_digest({reinterpret_cast<const uint8_t*>(bytes.data()), kBig}));
}

TEST_CASE("what a client maps is not withdrawn as idle, and goes once it is unmapped") {
  Storage storage;
  storage.publish("a", {pattern(kBig, 1)});
  tc::Client client(storage.path, patient(), true);
  tc::Attachment held = attached(client, "a");
  CHECK_FALSE(storage.server.withdraw_idle("a"));
  CHECK_FALSE(storage.server.withdraw_idle("never published"));
  CHECK(holds(attached(client, "a").segment(1), pattern(kBig, 1)));
  CHECK(held.release() == 0);
  REQUIRE(eventually([&] { return storage.pins() == 0; }));
  CHECK(storage.server.withdraw_idle("a"));
  CHECK_FALSE(storage.server.withdraw_idle("a"));
  CHECK(storage.pool.stats().dropped_pinned_bytes == 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow memory knows no such limit
TEST_CASE("a message that finds no memory ends its connection, not the storage") {
  Storage storage;
  RawClient large(storage.path);
  tc::Client good(storage.path, patient(), true);
  tc::Outbox outbox;
  outbox.push(1, tc::CallMessage{1000, std::string(60u << 20, 'x')}.encode(1));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit tight{address_space_bytes() + (8u << 20), before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_AS, &tight) == 0);
  const int fd = large.socket.get();
  const bool ended = eventually([&] { return outbox.flush(fd) == tc::Outbox::Flushed::kBroken; });
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(ended);
  CHECK(good.call("x", patient()).second == "x");
}
#endif
