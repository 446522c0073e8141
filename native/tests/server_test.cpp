// The local server with real clients: round trips, pins, hang-ups, races, and its socket.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "local_storage.hpp"
#include "raw_client.hpp"
#include "tc/message.hpp"
#include "tc/outbox.hpp"
#include "tc/socket.hpp"

namespace {

constexpr uint64_t kBig = 3u << 20;

}  // namespace

TEST_CASE("a put is read from the client's memory, attached by another client, and freed when all is over") {
  Storage storage;
  const std::string bytes = pattern(kBig + 777, 1);
  tc::Client writer(storage.path, patient(), true), reader(storage.path, patient(), true);
  CHECK(writer.greeting() == "hello");
  REQUIRE(writer.vm_read());
  CHECK(writer.put(order_of("a", bytes), patient()) == tc::Client::Answered{0, "vm_read"});
  tc::Attachment got = attached(reader, "a");
  CHECK(got.segments() == 2);
  CHECK(holds(got.segment(0), "draft of a"));
  CHECK(holds(got.segment(1), bytes));
  CHECK(storage.pins() == 1);
  CHECK(storage.server.withdraw("a"));
  CHECK(storage.pool.stats().dropped_pinned_bytes >= kBig);
  CHECK(holds(got.segment(1), bytes));
  CHECK(got.release() == 0);
  CHECK(eventually([&] { return storage.pins() == 0; }));
  CHECK(storage.pool.stats().dropped_pinned_bytes == 0);
}

TEST_CASE("a put is streamed where memory may not be read") {
  Storage storage;
  const std::string bytes = pattern(2 * kBig + 5, 2);
  tc::Client client(storage.path, patient(), false);
  CHECK_FALSE(client.vm_read());
  CHECK(client.put(order_of("a", bytes), patient()) == tc::Client::Answered{0, "socket"});
  CHECK(holds(attached(client, "a").segment(1), bytes));
}

TEST_CASE("a put of more files than fit one message brings them all") {
  Storage storage;
  Folder folder;
  const std::string name = folder.path + "/s";
  tc::Fd file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const std::string bytes = pattern(600, 3);
  REQUIRE(::write(file.get(), bytes.data(), bytes.size()) == 600);
  file.reset(::open(name.c_str(), O_RDONLY | O_CLOEXEC));  // what is still open for writing is not read
  struct stat info{};
  REQUIRE(::fstat(file.get(), &info) == 0);
  tc::PutOrder order;
  order.art_id = "f";
  order.segment_bytes = {600};
  for (uint32_t i = 0; i < 600; ++i) {
    order.files.push_back(
        {file.get(), 0, info.st_dev, info.st_ino, 600, info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec});
    order.pieces.push_back({0, tc::PieceKind::kFile, i, 1, i, i, 0});
  }
  tc::Client client(storage.path, patient(), true);
  CHECK(client.put(order, patient()) == tc::Client::Answered{0, "file"});
  CHECK(holds(attached(client, "f").segment(1), bytes));
}

TEST_CASE("small segments beyond what a message carries inline are copied out of the extent") {
  Storage storage;
  std::vector<std::string> segments;
  for (uint32_t i = 0; i < 80; ++i) segments.push_back(pattern((200u << 10) + i, i));
  storage.publish("many", segments);
  tc::Client client(storage.path, patient(), true);
  const tc::Attachment got = attached(client, "many");
  REQUIRE(got.segments() == 81);
  CHECK(got.mapped_bytes() == 0);
  for (uint32_t i = 0; i < 80; ++i) CHECK(holds(got.segment(i + 1), segments[i]));
}

TEST_CASE("an attach of only the manifest pins nothing") {
  Storage storage;
  storage.publish("a", {pattern(kBig, 1)});
  tc::Client client(storage.path, patient(), true);
  const auto got = std::get<tc::Attachment>(client.attach("a", patient(), true));
  CHECK(got.segments() == 1);
  CHECK(holds(got.segment(0), "manifest of a"));
  CHECK(storage.pins() == 0);
}

TEST_CASE("a put whose caller hangs up before or during its fill frees everything and is told as gone") {
  Storage storage;
  const uint64_t free_bytes = storage.pool.stats().free_bytes;
  storage.accepts_puts = false;
  tc::Client client(storage.path, patient(), true);
  const std::string bytes = pattern(kBig, 1);
  CHECK_THROWS_AS(client.put(order_of("a", bytes), tc::Wait::of_ms(50)), tc::WaitedTooLong);
  CHECK(eventually([&] { return storage.seen(tc::RequestKind::kGone) == 1; }));
  storage.accepts_puts = true;
  {
    // A streamed put that sends nothing after GO: the fill waits for bytes until the hang-up.
    RawClient session(storage.path);
    const tc::Fd socket = tc::connect_to(storage.path, patient());
    tc::Hello hello;
    hello.pid = static_cast<uint32_t>(::getpid());
    hello.flags = tc::Hello::kForPut;
    hello.session = std::get<0>(storage.server.sessions().back());
    tc::PutMessage put;
    put.flags = tc::PutMessage::kStreamed;
    put.budget_ms = kWaitMs;
    put.segment_bytes = {kBig};
    put.pieces = {{0, tc::PieceKind::kMemory, 0, kBig, 0, 0, 0}};
    tc::Outbox outbox;
    outbox.push(0, hello.encode());
    outbox.push(0, put.encode(1, 0));
    REQUIRE(outbox.flush(socket.get()) == tc::Outbox::Flushed::kAll);
    CHECK(next_frame(socket.get()).kind() == tc::Kind::kWelcome);
    CHECK(next_frame(socket.get()).kind() == tc::Kind::kGo);
  }
  // Either the serving thread saw the hang-up first, or the fill saw its stream end and was answered.
  CHECK(eventually(
      [&] { return storage.seen(tc::RequestKind::kGone) + storage.fills(tc::FillStatus::kSourceShort) >= 2; }));
  CHECK(eventually([&] { return storage.pool.stats().free_bytes == free_bytes; }));
  CHECK(storage.fills(tc::FillStatus::kOk) == 0);
}

TEST_CASE("a put that was given up is not committed from memory read later") {
  Storage storage;
  RawClient control(storage.path);
  tc::Client real(storage.path, patient(), true);
  REQUIRE(real.vm_read());
  uint64_t session = 0;
  for (const auto& row : storage.server.sessions()) session = std::max(session, std::get<0>(row));
  const std::string bytes = pattern(kBig, 1);
  alignas(8) tc::Cookie ticket{};
  ticket[0] = 1;
  const auto put_with = [&](tc::Cookie claimed) {
    const tc::Fd socket = tc::connect_to(storage.path, patient());
    tc::Hello hello;
    hello.pid = static_cast<uint32_t>(::getpid());
    hello.flags = tc::Hello::kForPut;
    hello.session = session;
    const tc::PutOrder order = order_of("a", bytes);
    tc::PutMessage put;
    put.budget_ms = kWaitMs;
    put.ticket_address = reinterpret_cast<uint64_t>(ticket.data());
    put.ticket = claimed;
    put.art_id = "a";
    put.segment_bytes = order.segment_bytes;
    put.pieces = order.pieces;
    tc::Outbox outbox;
    outbox.push(0, hello.encode());
    outbox.push(0, put.encode(1, 0));
    REQUIRE(outbox.flush(socket.get()) == tc::Outbox::Flushed::kAll);
    CHECK(next_frame(socket.get()).kind() == tc::Kind::kWelcome);
    return tc::Reply::decode(next_frame(socket.get()).body)->status;
  };
  tc::Cookie stale = ticket;
  stale[0] = 2;
  CHECK(put_with(stale) == 1);
  CHECK(storage.fills(tc::FillStatus::kCancelled) == 1);
  CHECK(put_with(ticket) == 0);
}

TEST_CASE("attach, unpin, publish and withdraw race without wrong bytes or lost blocks") {
  Storage storage;
  const uint64_t free_bytes = storage.pool.stats().free_bytes;
  std::atomic<bool> wrong{false};
  std::atomic<int> readers{3};
  std::vector<std::thread> threads;
  tc::Client client(storage.path, patient(), true);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int seen = 0; seen < 40;) {
        auto got = client.attach("a", patient(), false);
        if (auto* attachment = std::get_if<tc::Attachment>(&got)) {
          const std::span<uint8_t> bytes = attachment->segment(1);
          for (size_t at = 0; at < bytes.size(); at += 4096) wrong = wrong || bytes[at] != bytes[0];
          ++seen;
        }
      }
      --readers;
    });
  }
  for (char version = 'a'; readers > 0; version = version == 'z' ? 'a' : static_cast<char>(version + 1)) {
    storage.publish("a", {std::string(kBig, version)});
    ::poll(nullptr, 0, 1);
    storage.server.withdraw("a");
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(wrong);
  CHECK(eventually([&] { return storage.pool.stats().free_bytes == free_bytes; }));
}

TEST_CASE("stopping while fills run ends them, frees their memory and tells their clients") {
  Storage storage;
  const uint64_t free_bytes = storage.pool.stats().free_bytes;
  tc::Client client(storage.path, patient(), false);
  const std::string bytes = pattern(48u << 20, 1);
  std::atomic<bool> ended{false};
  std::thread putting([&] {
    try {
      client.put(order_of("a", bytes), patient());
    } catch (const tc::PeerGone&) {
    }
    ended = true;
  });
  CHECK(eventually([&] { return storage.seen(tc::RequestKind::kPut) == 1; }));
  storage.server.stop();
  putting.join();
  CHECK(ended);
  storage.server.withdraw("a");
  CHECK(eventually([&] { return storage.pool.stats().free_bytes == free_bytes; }));
  CHECK(eventually([&] { return !client.alive(); }));
}

TEST_CASE("a stale socket is replaced, a served one and a plain file are not") {
  Folder folder;
  const std::string path = folder.path + "/s";
  {
    const tc::Fd stale = tc::listen_at(path, 0600);
  }
  const tc::Fd served = tc::listen_at(path, 0600);
  CHECK_THROWS_AS(tc::listen_at(path, 0600), std::system_error);
  struct stat info{};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  ::unlink(path.c_str());
  const tc::Fd file(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  CHECK_THROWS_AS(tc::listen_at(path, 0600), std::system_error);
}

TEST_CASE("a path of 180 bytes works") {
  Folder folder;
  const std::string deep = folder.path + "/" + std::string(150, 'd');
  REQUIRE(::mkdir(deep.c_str(), 0700) == 0);
  const std::string path = deep + "/socket";
  {
    const tc::Fd served = tc::listen_at(path, 0600);
    CHECK(tc::connect_to(path, patient()));
  }
  CHECK_THROWS_AS(tc::connect_to(path, patient()), tc::PeerGone);
  ::unlink(path.c_str());
  ::rmdir(deep.c_str());
}
