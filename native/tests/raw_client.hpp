// A client of the wire alone: says exactly what a test tells it, sense or not.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>

#include <string>
#include <vector>

#include "local_storage.hpp"
#include "tc/connection.hpp"
#include "tc/message.hpp"
#include "tc/outbox.hpp"
#include "tc/socket.hpp"

inline tc::Frame next_frame(int socket) {
  tc::FrameReader reader([](tc::Kind) { return tc::kBodyBytesMax; });
  tc::Frame frame;
  REQUIRE(eventually([&] {
    const tc::Got got = reader.read(socket, frame);
    return got != tc::Got::kNothing && got != tc::Got::kMore;
  }));
  return frame;
}

// A client of the wire alone, greeted, with a lifeline of its own.
struct RawClient {
  explicit RawClient(const std::string& path) : socket(tc::connect_to(path, patient())) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const tc::Fd read_end(ends[0]);
    lifeline.reset(ends[1]);
    tc::Hello hello;
    hello.pid = static_cast<uint32_t>(::getpid());
    hello.flags = tc::Hello::kNoVmRead;
    send(hello.encode(), {read_end.get()});
    CHECK(next_frame(socket.get()).kind() == tc::Kind::kWelcome);
  }
  void send(std::string frame, std::vector<int> fds = {}) {
    tc::Outbox outbox;
    outbox.push(0, std::move(frame), std::move(fds));
    REQUIRE(eventually([&] { return outbox.flush(socket.get()) == tc::Outbox::Flushed::kAll; }));
  }
  tc::Attached attach(const std::string& art_id, uint64_t number) {
    send(tc::AttachMessage{1000, 1, 0, art_id, {}}.encode(number));
    const tc::Frame frame = next_frame(socket.get());
    REQUIRE(frame.kind() == tc::Kind::kAttached);
    return *tc::Attached::decode(frame.body);
  }
  void unpin(std::vector<uint64_t> pins) { send(tc::Encoder(tc::Kind::kUnpin, 0).array(pins).finish()); }
  // Everything sent before was handled once this is answered.
  void settle() {
    send(tc::CallMessage{1000, "?"}.encode(999));
    CHECK(next_frame(socket.get()).kind() == tc::Kind::kReply);
  }

  tc::Fd socket, lifeline;
};
