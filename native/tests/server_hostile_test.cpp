// The local server and clients that are slow, many, wrong or malicious: they cost nobody else anything.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <random>

#include "local_storage.hpp"
#include "raw_client.hpp"
#include "tc/connection.hpp"
#include "tc/message.hpp"
#include "tc/outbox.hpp"
#include "tc/socket.hpp"

namespace {

constexpr uint64_t kBig = 3u << 20;

// Sends bytes as they are and hangs up.
void say(const std::string& path, const std::string& bytes) {
  const tc::Fd socket = tc::connect_to(path, patient());
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

}  // namespace

TEST_CASE("a pin is ended only by its own session, and only once") {
  Storage storage;
  storage.publish("a", {pattern(kBig, 1)});
  RawClient one(storage.path), other(storage.path);
  const uint64_t first = one.attach("a", 1).pin, second = one.attach("a", 2).pin;
  other.unpin({first, second, 12345});
  other.settle();
  CHECK(storage.pins() == 2);
  one.unpin({first, first, first});
  one.settle();
  CHECK(storage.pins() == 1);
  CHECK(storage.pool.stats().pins == 1);
  one.lifeline.reset();
  CHECK(eventually([&] { return storage.pins() == 0; }));
  one.unpin({second});
  one.settle();
  CHECK(storage.pool.stats().pins == 0);
}

TEST_CASE("an attach on a lifeline that ended, or never was, is refused and pins nothing") {
  Storage storage;
  storage.publish("a", {pattern(kBig, 1)});
  RawClient client(storage.path);
  client.send(tc::AttachMessage{1000, 5, 0, "a", {}}.encode(1));
  CHECK(next_frame(client.socket.get()).kind() == tc::Kind::kReply);
  CHECK(storage.pool.stats().pins == 0);
}

TEST_CASE("a socket that closes releases nothing while its lifeline lives") {
  Storage storage;
  storage.publish("a", {pattern(kBig, 1)});
  RawClient client(storage.path);
  client.attach("a", 1);
  client.socket.reset();
  CHECK(eventually([&] { return !std::get<3>(storage.server.sessions().at(0)); }));
  CHECK(storage.pins() == 1);
  client.lifeline.reset();
  CHECK(eventually([&] { return storage.server.sessions().empty(); }));
  CHECK(storage.pool.stats().pins == 0);
}

TEST_CASE("bytes written to a lifeline, or a lifeline that is no pipe, cost nothing") {
  Storage storage;
  RawClient chatty(storage.path);
  REQUIRE(::write(chatty.lifeline.get(), "x", 1) == 1);
  chatty.settle();
  const tc::Fd socket = tc::connect_to(storage.path, patient());
  tc::Outbox outbox;
  outbox.push(0, tc::Hello{}.encode(), {socket.get()});
  REQUIRE(outbox.flush(socket.get()) == tc::Outbox::Flushed::kAll);
  const auto reply = tc::Reply::decode(next_frame(socket.get()).body);
  REQUIRE(reply);
  CHECK(reply->status == static_cast<uint32_t>(tc::Status::kBadRequest));
}

TEST_CASE("another version is answered with both") {
  Storage storage;
  const tc::Fd socket = tc::connect_to(storage.path, patient());
  const tc::Header header{tc::kMagic, 9, 1, 0, 0, 0, 0};
  REQUIRE(::send(socket.get(), &header, sizeof(header), 0) == sizeof(header));
  const auto reply = tc::Reply::decode(next_frame(socket.get()).body);
  REQUIRE(reply);
  CHECK(reply->status == static_cast<uint32_t>(tc::Status::kVersion));
  CHECK(reply->body.find("version " + std::to_string(tc::kWireVersion)) != std::string::npos);
  CHECK(reply->body.find("version 9") != std::string::npos);
}

TEST_CASE("random and mangled frames crash nothing and hurt nobody else") {
  Storage storage;
  storage.publish("a", {pattern(kBig, 1)});
  tc::Client good(storage.path, patient(), true);
  const tc::Attachment held = attached(good, "a");
  std::mt19937 random(7);
  const std::string hello = tc::Hello{}.encode();
  for (int round = 0; round < 400; ++round) {
    std::string bytes(random() % 400, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (round % 2 == 0) {
      // A sound header in front, so that the bytes reach the decoders.
      const tc::Header header{tc::kMagic,
                              tc::kWireVersion,
                              static_cast<uint16_t>(random() % 14),
                              random() % 3,
                              static_cast<uint32_t>(bytes.size()),
                              static_cast<uint16_t>(random() % 2),
                              0};
      bytes.insert(0, reinterpret_cast<const char*>(&header), sizeof(header));
    }
    say(storage.path, round % 3 == 0 ? hello + bytes : bytes);
  }
  RawClient greeted(storage.path);
  for (uint16_t kind = 0; kind < 14; ++kind) {
    RawClient one(storage.path);
    const tc::Header header{tc::kMagic, tc::kWireVersion, kind, 1, 8, 0, 0};
    one.send(std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + "\xff\xff\xff\xff\xff\xff\xff\xff");
  }
  CHECK(good.call("still here", patient()) == tc::Client::Answered{0, "still here"});
  greeted.settle();
  CHECK(holds(held.segment(1), pattern(kBig, 1)));
  CHECK(storage.pins() == 1);
}

TEST_CASE("a client that never reads is hung up on, and nobody waits for it") {
  Storage storage;
  RawClient deaf(storage.path);
  const std::string body(4u << 20, 'x');
  tc::Outbox outbox;
  for (uint64_t number = 1; number <= 60; ++number) outbox.push(number, tc::CallMessage{1000, body}.encode(number));
  const int deaf_fd = deaf.socket.get();
  CHECK(eventually([&] { return outbox.flush(deaf_fd) != tc::Outbox::Flushed::kBlocked; }));
  tc::Client good(storage.path, patient(), true);
  CHECK(good.call("x", patient()).second == "x");
  CHECK(eventually([&] { return storage.server.sessions().size() == 1; }));
}

TEST_CASE("what clients ask at once has a limit, and the refusal says so") {
  Storage storage;
  storage.answers_calls = false;
  RawClient client(storage.path);
  for (uint64_t number = 1; number <= tc::Connection::kRequestsMax + 1; ++number) {
    client.send(tc::CallMessage{1000, "x"}.encode(number));
  }
  const tc::Frame refused = next_frame(client.socket.get());
  CHECK(refused.header.request == tc::Connection::kRequestsMax + 1);
  CHECK(tc::Reply::decode(refused.body)->status == static_cast<uint32_t>(tc::Status::kBadRequest));
}

TEST_CASE("a thousand clients come and go") {
  Storage storage;
  std::vector<tc::Fd> many;
  for (int i = 0; i < 1000; ++i) many.push_back(tc::connect_to(storage.path, patient()));
  tc::Client good(storage.path, patient(), true);
  CHECK(good.call("x", patient()).second == "x");
  many.clear();
  CHECK(good.call("y", patient()).second == "y");
}

TEST_CASE("a server without free descriptors hangs up on newcomers and serves those it has") {
  Storage storage;
  tc::Client good(storage.path, patient(), true);
  const tc::Fd late = tc::unix_socket();
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{static_cast<rlim_t>(late.get()), before.rlim_max};  // every number below is in use
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  tc::connect_to(late.get(), storage.path, patient());
  pollfd entry{late.get(), POLLIN, 0};
  const bool told = ::poll(&entry, 1, static_cast<int>(kWaitMs)) == 1;
  const bool serves = good.call("x", patient()).second == "x";
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  char byte;
  CHECK(told);
  CHECK(::recv(late.get(), &byte, 1, 0) <= 0);
  CHECK(serves);
  tc::Client after(storage.path, patient(), true);
  CHECK(after.call("y", patient()).second == "y");
}
