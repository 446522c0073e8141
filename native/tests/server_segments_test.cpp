// Segments that change hands on the server: answered without being published, exchanged under readers, read by loads.
#include <doctest/doctest.h>

#include "local_storage.hpp"
#include "raw_client.hpp"

namespace {

constexpr uint64_t kBig = (2u << 20) + 77;
using Answer = std::variant<tc::Client::Answered, tc::Attachment>;

// A client that asks for what the storage does not know, on a thread of its own.
struct Asking {
  Storage storage;
  tc::Client client{storage.path, patient(), true};
  std::optional<Answer> answer;

  std::thread ask(bool manifest_only, const std::string& body) {
    storage.answers_attaches = false;
    std::thread asking(
        [this, manifest_only, body] { answer.emplace(client.attach("view of a", patient(), manifest_only, body)); });
    REQUIRE(eventually([&] { return storage.attach().id != 0; }));
    return asking;
  }
  uint64_t segments() { return storage.pool.stats().segments; }
};

}  // namespace

TEST_CASE("an attach brings its words to the storage, which answers with segments that are published nowhere") {
  Asking a;
  std::thread asking = a.ask(false, "a wish");
  const tc::Request request = a.storage.attach();
  CHECK(request.body == "a wish");
  CHECK_FALSE(request.manifest_only);
  const std::string bytes = pattern(kBig, 1);
  const tc::SegmentId manifest = a.storage.segment("of one"), rows = a.storage.segment(bytes);
  a.storage.server.attach_segments(request.id, manifest, {rows});
  CHECK_THROWS_AS(a.storage.server.attach_segments(request.id, manifest, {rows}), tc::UnknownRequest);
  a.storage.pool.drop(manifest);
  a.storage.pool.drop(rows);
  asking.join();
  {
    tc::Attachment got = std::get<tc::Attachment>(std::move(*a.answer));
    CHECK(holds(got.segment(0), "of one"));
    CHECK(holds(got.segment(1), bytes));
    CHECK(a.storage.server.usage().empty());
    CHECK(a.storage.pins() == 1);
    CHECK(a.segments() == 1);  // the manifest went as a copy
    CHECK(got.release() == 0);
  }
  CHECK(eventually([&] { return a.segments() == 0; }));
}

TEST_CASE("segments that are not sealed, or an asker that hung up, leave everything as it was") {
  Storage storage;
  storage.answers_attaches = false;
  auto asker = std::make_unique<RawClient>(storage.path);
  asker->send(tc::AttachMessage{1000, 1, 0, "x", "?"}.encode(1));
  REQUIRE(eventually([&] { return storage.attach().id != 0; }));
  const uint64_t request = storage.attach().id;
  const tc::SegmentId manifest = storage.segment("m"), open = storage.pool.reserve(10);
  CHECK_THROWS_AS(storage.server.attach_segments(request, manifest, {open}), std::invalid_argument);
  asker.reset();
  CHECK(eventually([&] { return storage.seen(tc::RequestKind::kGone) == 1; }));
  CHECK_THROWS_AS(storage.server.attach_segments(request, manifest, {}), tc::UnknownRequest);
  storage.pool.drop(manifest);
  storage.pool.drop(open);
  CHECK(storage.pool.stats().segments == 0);
}

TEST_CASE("a client that dies with an unpublished answer mapped gives it back") {
  Storage storage;
  storage.answers_attaches = false;
  auto asker = std::make_unique<RawClient>(storage.path);
  asker->send(tc::AttachMessage{1000, 1, 0, "x", ""}.encode(1));
  REQUIRE(eventually([&] { return storage.attach().id != 0; }));
  const tc::SegmentId manifest = storage.segment("m"), rows = storage.segment(pattern(kBig, 2));
  storage.server.attach_segments(storage.attach().id, manifest, {rows});
  storage.pool.drop(manifest);
  storage.pool.drop(rows);
  CHECK(next_frame(asker->socket.get()).kind() == tc::Kind::kAttached);
  CHECK(storage.pool.stats().pins == 1);
  asker.reset();
  CHECK(eventually([&] { return storage.pool.stats().segments == 0; }));
}

TEST_CASE("the storage's words on another place or on a manifest alone reach the asker as they are") {
  for (const tc::Status status : {tc::Status::kMoved, tc::Status::kManifest}) {
    Asking a;
    std::thread asking = a.ask(true, {});
    CHECK(a.storage.attach().manifest_only);
    a.storage.server.reply(a.storage.attach().id, static_cast<uint32_t>(status), "there");
    asking.join();
    CHECK(std::get<tc::Client::Answered>(*a.answer) == tc::Client::Answered{static_cast<uint32_t>(status), "there"});
  }
}

TEST_CASE("what is published is answered natively, whatever words came with the attach") {
  Storage storage;
  tc::Client client(storage.path, patient(), true);
  const std::string bytes = pattern(kBig, 4);
  storage.publish("a", {bytes});
  const auto got = client.attach("a", patient(), false, std::string(1u << 20, 'w'));
  CHECK(holds(std::get<tc::Attachment>(got).segment(1), bytes));
  CHECK(storage.seen(tc::RequestKind::kAttach) == 0);
  CHECK_THROWS_AS(client.attach("a", patient(), false, std::string(tc::kBodyBytesMax, 'w')), std::invalid_argument);
  CHECK(client.call("still here", patient()) == tc::Client::Answered{0, "still here"});
}

TEST_CASE("an artifact moves to other segments under its readers: old maps stay, new ones see the new") {
  Storage storage;
  tc::Client client(storage.path, patient(), true);
  const std::string old_bytes = pattern(kBig, 5), new_bytes = pattern(kBig / 2, 6);
  storage.publish("a", {old_bytes});
  tc::Attachment before = attached(client, "a");
  const tc::SegmentId manifest = storage.segment("moved"), rows = storage.segment(new_bytes);
  storage.server.republish("a", manifest, {rows});
  storage.pool.drop(manifest);
  storage.pool.drop(rows);
  tc::Attachment after = attached(client, "a");
  CHECK(holds(before.segment(1), old_bytes));
  CHECK(holds(after.segment(0), "moved"));
  CHECK(holds(after.segment(1), new_bytes));
  CHECK(storage.pool.stats().segments == 3);  // the old rows live by their pin alone
  CHECK(before.release() == 0);
  CHECK(eventually([&] { return storage.pool.stats().segments == 2; }));
  CHECK(after.release() == 0);
  CHECK(storage.server.withdraw("a"));
  CHECK(eventually([&] { return storage.pool.stats().segments == 0; }));
}

TEST_CASE("nobody meets an artifact missing or mixed while it moves") {
  Storage storage;
  tc::Client client(storage.path, patient(), true);
  std::atomic<bool> over{false};
  storage.publish("a", {"0", "0"});
  std::thread moving([&] {
    for (int i = 1; i <= 300; ++i) {
      const std::string mark = std::to_string(i);
      const tc::SegmentId m = storage.segment(mark), x = storage.segment(mark), y = storage.segment(mark);
      storage.server.republish("a", m, {x, y});
      for (tc::SegmentId id : {m, x, y}) storage.pool.drop(id);
    }
    over = true;
  });
  size_t mixed = 0;
  while (!over) {
    const tc::Attachment got = attached(client, "a");
    const auto one = got.segment(1), other = got.segment(2);
    mixed += !std::equal(one.begin(), one.end(), other.begin(), other.end());
  }
  moving.join();
  CHECK(mixed == 0);
}

TEST_CASE("what is not published, or not sealed, is not republished and keeps no users") {
  Storage storage;
  storage.publish("a", {"x"});
  const tc::SegmentId manifest = storage.segment("m"), open = storage.pool.reserve(5);
  CHECK_THROWS_AS(storage.server.republish("b", manifest, {}), std::invalid_argument);
  CHECK_THROWS_AS(storage.server.republish("a", manifest, {open}), std::invalid_argument);
  storage.pool.drop(manifest);
  storage.pool.drop(open);
  CHECK(storage.pool.stats().segments == 2);
  tc::Client client(storage.path, patient(), true);
  CHECK(holds(attached(client, "a").segment(1), "x"));
}

TEST_CASE("a load holds its source segments until it is done") {
  Storage storage;
  const std::string bytes = pattern(kBig, 7);
  for (uint64_t token = 1; token <= 10; ++token) {
    const tc::SegmentId source = storage.segment(bytes);
    storage.server.load(token, {kBig - 9}, {{0, tc::PieceKind::kPool, 0, kBig - 9, 9, 0, 0}}, {}, {}, {}, {source},
                        kWaitMs);
    storage.pool.drop(source);
    const tc::FillDone done = storage.load_done(token);
    REQUIRE(done.result.status == tc::FillStatus::kOk);
    CHECK(storage.content(done.segments[0]) == bytes.substr(9));
    CHECK(storage.pool.stats().segments == 1);
    storage.pool.drop(done.segments[0]);
  }
}

TEST_CASE("a load whose sources are not sealed, or that does not start, holds nothing") {
  Storage storage;
  const tc::SegmentId source = storage.segment("sealed"), open = storage.pool.reserve(6);
  const std::vector<tc::Piece> piece{{0, tc::PieceKind::kPool, 0, 6, 0, 0, 0}};
  const auto load = [&](uint64_t nbytes, const std::vector<tc::SegmentId>& sources) {
    storage.server.load(1, {nbytes}, piece, {}, {}, {}, sources, kWaitMs);
  };
  CHECK_THROWS_AS(load(6, {source, open}), std::invalid_argument);
  CHECK_THROWS_AS(load(6, {source, 999'999}), std::invalid_argument);
  CHECK_THROWS_AS(load(1ull << 40, {source}), tc::PoolFull);
  load(6, {});  // a plan that names a source it has not
  CHECK(storage.load_done(1).result.status == tc::FillStatus::kBadPlan);
  storage.server.stop();
  CHECK_THROWS_AS(storage.server.load(2, {6}, piece, {}, {}, {}, {source}, kWaitMs), std::invalid_argument);
  storage.pool.drop(source);
  storage.pool.drop(open);
  CHECK(storage.pool.stats().segments == 0);
}
