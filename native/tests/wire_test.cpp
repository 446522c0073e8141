// The words of the local protocol: what is written is read, and nothing else is.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <random>

#include "tc/connection.hpp"
#include "tc/frame.hpp"
#include "tc/message.hpp"
#include "tc/outbox.hpp"

namespace {

struct Pair {
  Pair() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    a.reset(ends[0]);
    b.reset(ends[1]);
  }
  tc::Fd a, b;
};

std::string body_of(const std::string& frame) { return frame.substr(sizeof(tc::Header)); }

tc::PutMessage some_put() {
  tc::PutMessage put;
  put.budget_ms = 5;
  put.flags = tc::PutMessage::kStreamed;
  put.ticket_address = 77;
  put.ticket[3] = 9;
  put.art_id = "m@1";
  put.draft = "draft";
  put.segment_bytes = {10, 20};
  put.pieces = {{1, tc::PieceKind::kFile, 2, 3, 4, 5, 0}};
  put.rows = {{1, 0, 8, 12}};
  put.inline_bytes = "abc";
  put.files = {{1, 2, 3, -4}};
  return put;
}

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}

}  // namespace

TEST_CASE("a put that was encoded is decoded to the same") {
  const std::string frame = some_put().encode(9, 1);
  tc::Header header;
  std::memcpy(&header, frame.data(), sizeof(header));
  CHECK(header.magic == tc::kMagic);
  CHECK(header.request == 9);
  CHECK(header.fds == 1);
  CHECK(header.body_bytes == frame.size() - sizeof(header));
  const auto put = tc::PutMessage::decode(body_of(frame));
  REQUIRE(put);
  CHECK(put->art_id == "m@1");
  CHECK(put->segment_bytes == std::vector<uint64_t>{10, 20});
  CHECK(put->pieces[0].src_index == 5);
  CHECK(put->rows[0].nbytes == 12);
  CHECK(put->files[0].mtime_ns == -4);
  CHECK(put->ticket[3] == 9);
}

TEST_CASE("every body that is cut short or too long is refused") {
  const std::string body = body_of(some_put().encode(9, 1));
  for (size_t n = 0; n < body.size(); ++n) CHECK_FALSE(tc::PutMessage::decode(body.substr(0, n)));
  CHECK_FALSE(tc::PutMessage::decode(body + "x"));
  tc::Attached attached;
  attached.segments = {{5, tc::SegmentKind::kMapped, {{0, 0, 4096, 5}}}};
  const std::string answer = body_of(attached.encode(1, 0));
  for (size_t n = 0; n < answer.size(); ++n) CHECK_FALSE(tc::Attached::decode(answer.substr(0, n)));
}

TEST_CASE("random bytes are never decoded beyond their end") {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string body(random() % 300, '\0');
    for (char& byte : body) byte = static_cast<char>(random() % 4 == 0 ? random() : 0);
    tc::PutMessage::decode(body);
    tc::Attached::decode(body);
    tc::Reply::decode(body);
    tc::Hello::decode(body);
    tc::Welcome::decode(body);
  }
}

TEST_CASE("a body over the limit is refused before it is sent") {
  CHECK_THROWS_AS((tc::Reply{0, std::string(tc::kBodyBytesMax, 'x')}.encode(1)), std::invalid_argument);
}

TEST_CASE("frames that arrive byte by byte with descriptors come out whole") {
  Pair pair;
  const tc::Fd sent(::memfd_create("sent", MFD_CLOEXEC));
  const std::string frame = some_put().encode(3, 1);
  tc::Outbox first;
  first.push(0, frame, {sent.get()});
  REQUIRE(first.flush(pair.a.get()) == tc::Outbox::Flushed::kAll);
  const std::string second = tc::Reply{1, "later"}.encode(4);
  tc::FrameReader reader(&tc::Connection::body_limit);
  tc::Frame got;
  REQUIRE(reader.read(pair.b.get(), got) == tc::Got::kFrame);
  CHECK(got.fds.size() == 1);
  CHECK((::fcntl(got.fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
  tc::FrameReader any([](tc::Kind) { return tc::kBodyBytesMax; });
  for (size_t i = 0; i < second.size(); ++i) {
    REQUIRE(::send(pair.a.get(), second.data() + i, 1, 0) == 1);
    const tc::Got now = any.read(pair.b.get(), got);
    CHECK(now == (i + 1 == second.size() ? tc::Got::kFrame : tc::Got::kNothing));
  }
  CHECK(tc::Reply::decode(got.body)->body == "later");
}

TEST_CASE("a header that lies about its length costs no memory and is refused over the limit") {
  Pair pair;
  tc::Header header{tc::kMagic, tc::kWireVersion, static_cast<uint16_t>(tc::Kind::kCall), 1, tc::kBodyBytesMax, 0, 0};
  REQUIRE(::send(pair.a.get(), &header, sizeof(header), 0) == sizeof(header));
  tc::FrameReader reader(&tc::Connection::body_limit);
  tc::Frame frame;
  CHECK(reader.read(pair.b.get(), frame) == tc::Got::kNothing);
  Pair other;
  header.body_bytes = tc::kBodyBytesMax + 1;
  REQUIRE(::send(other.a.get(), &header, sizeof(header), 0) == sizeof(header));
  tc::FrameReader strict(&tc::Connection::body_limit);
  CHECK(strict.read(other.b.get(), frame) == tc::Got::kBroken);
}

TEST_CASE("another version is told apart from nonsense") {
  Pair pair;
  const tc::Header header{tc::kMagic, 7, 1, 0, 0, 0, 0};
  REQUIRE(::send(pair.a.get(), &header, sizeof(header), 0) == sizeof(header));
  tc::FrameReader reader(&tc::Connection::body_limit);
  tc::Frame frame;
  CHECK(reader.read(pair.b.get(), frame) == tc::Got::kOtherVersion);
  CHECK(reader.other_version() == 7);
}

TEST_CASE("descriptors that a message does not name are closed with it") {
  const size_t before = open_descriptors();
  {
    Pair pair;
    const tc::Fd extra(::memfd_create("sent", MFD_CLOEXEC));
    tc::Outbox outbox;
    outbox.push(0, tc::Encoder(tc::Kind::kCancel, 1).finish(0), {extra.get(), extra.get(), extra.get()});
    REQUIRE(outbox.flush(pair.a.get()) == tc::Outbox::Flushed::kAll);
    tc::FrameReader reader(&tc::Connection::body_limit);
    tc::Frame frame;
    CHECK(reader.read(pair.b.get(), frame) == tc::Got::kBroken);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("250 descriptors fit one message") {
  Pair pair;
  const tc::Fd one(::memfd_create("sent", MFD_CLOEXEC));
  tc::Outbox outbox;
  outbox.push(0, tc::Encoder(tc::Kind::kFds, 1).finish(tc::kMessageFdsMax),
              std::vector<int>(tc::kMessageFdsMax, one.get()));
  REQUIRE(outbox.flush(pair.a.get()) == tc::Outbox::Flushed::kAll);
  tc::FrameReader reader(&tc::Connection::body_limit);
  tc::Frame frame;
  REQUIRE(reader.read(pair.b.get(), frame) == tc::Got::kFrame);
  CHECK(frame.fds.size() == tc::kMessageFdsMax);
}

TEST_CASE("a frame of which nothing was sent can be taken back, one that began cannot") {
  Pair pair;
  tc::Outbox outbox;
  outbox.push(1, std::string(8u << 20, 'x'));
  outbox.push(2, "second");
  CHECK(outbox.flush(pair.a.get()) == tc::Outbox::Flushed::kBlocked);
  CHECK_FALSE(outbox.take_back(1));
  CHECK(outbox.take_back(2));
  CHECK_FALSE(outbox.holds(2));
  CHECK(outbox.holds(1));
}
