// A storage for the tests of the local socket: a pool, the native server, and a thread that decides what a
// storage's Python would.
#pragma once
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "tc/client.hpp"
#include "tc/pool.hpp"
#include "tc/server.hpp"

inline constexpr uint64_t kWaitMs = 20'000;  // only reached when something is wrong

inline tc::Wait patient() { return tc::Wait::of_ms(kWaitMs); }

// Waits for what must become true; false when it did not.
inline bool eventually(const std::function<bool()>& happened) {
  const tc::Wait wait = patient();
  while (!happened()) {
    if (wait.left_ms() == 0) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

inline std::string pattern(uint64_t nbytes, uint32_t seed) {
  std::string bytes(nbytes, '\0');
  uint32_t x = seed * 2654435761u + 1;
  for (char& byte : bytes) {
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    byte = static_cast<char>(x);
  }
  return bytes;
}

struct Folder {
  Folder() {
    char name[] = "/tmp/tc-test-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() {
    ::unlink((path + "/s").c_str());
    ::rmdir(path.c_str());
  }
  std::string path;
};

class Storage {
 public:
  explicit Storage(uint64_t capacity_bytes = 96u << 20, const tc::ServerLimits& limits = {})
      : pool(tc::PoolOptions{capacity_bytes, 1u << 30, 0, 0}),
        path(folder_.path + "/s"),
        server(pool, path, {"hello", 0600, 2, limits}),
        decider_([this] { decide(); }) {}
  ~Storage() {
    stopping_ = true;
    decider_.join();
    server.stop();
  }

  tc::SegmentId segment(const std::string& bytes) {
    const tc::SegmentId id = pool.reserve(bytes.size());
    uint64_t done = 0;
    for (const tc::Range& range : pool.place(id).ranges) {
      std::memcpy(pool.address(range.offset), bytes.data() + done, range.nbytes);
      done += range.nbytes;
    }
    pool.seal(id);
    return id;
  }

  void publish(const std::string& art_id, const std::vector<std::string>& segments) {
    std::vector<tc::SegmentId> ids;
    for (const std::string& bytes : segments) ids.push_back(segment(bytes));
    const tc::SegmentId manifest = segment("manifest of " + art_id);
    server.publish(art_id, manifest, ids);
    pool.drop(manifest);
    for (tc::SegmentId id : ids) pool.drop(id);
  }

  uint64_t pins() const {
    uint64_t sum = 0;
    for (const auto& [session, pid, pins, connected] : server.sessions()) sum += pins;
    return sum;
  }

  size_t seen(tc::RequestKind kind) const {
    const std::lock_guard lock(m_);
    const auto it = seen_.find(kind);
    return it == seen_.end() ? 0 : it->second;
  }
  size_t fills(tc::FillStatus status) const {
    const std::lock_guard lock(m_);
    const auto it = fills_.find(status);
    return it == fills_.end() ? 0 : it->second;
  }
  std::vector<tc::Digest> last_digests() const {
    const std::lock_guard lock(m_);
    return last_digests_;
  }
  // What keep() returned, in order, and whose process has ended since.
  std::vector<uint64_t> kept() const {
    const std::lock_guard lock(m_);
    return kept_;
  }
  std::vector<uint64_t> deaths() const {
    const std::lock_guard lock(m_);
    return deaths_;
  }
  // The last attach that nobody answered.
  tc::Request attach() const {
    const std::lock_guard lock(m_);
    return attach_;
  }
  bool ended(uint64_t token) const {
    const std::lock_guard lock(m_);
    return loads_.contains(token);
  }
  // The end of a load, waited for.
  tc::FillDone load_done(uint64_t token) const {
    if (!eventually([&] { return ended(token); })) throw std::runtime_error("the load did not end");
    const std::lock_guard lock(m_);
    return loads_.at(token);
  }
  std::string content(tc::SegmentId id) const {
    std::string bytes;
    for (const tc::Range& range : pool.place(id).ranges)
      bytes.append(reinterpret_cast<const char*>(pool.address(range.offset)), range.nbytes);
    return bytes;
  }

 private:
  Folder folder_;

 public:
  tc::Pool pool;
  const std::string path;
  tc::Server server;
  std::atomic<bool> answers_calls{true};
  std::atomic<bool> answers_attaches{true};
  std::atomic<bool> accepts_puts{true};
  std::atomic<bool> keeps_puts{false};

 private:
  void decide() {
    while (!stopping_) {
      pollfd entry{server.event_fd(), POLLIN, 0};
      ::poll(&entry, 1, 10);
      for (tc::Event& event : server.events()) {
        if (auto* done = std::get_if<tc::FillDone>(&event)) {
          finish(*done);
        } else {
          handle(std::get<tc::Request>(event));
        }
      }
    }
  }

  void handle(const tc::Request& request) {
    {
      const std::lock_guard lock(m_);
      ++seen_[request.kind];
    }
    switch (request.kind) {
      case tc::RequestKind::kPut:
        puts_[request.id] = request;
        if (keeps_puts) keep(request);
        if (accepts_puts) accept(request.id);
        break;
      case tc::RequestKind::kCall:
        if (answers_calls) server.reply(request.id, 0, request.body);
        break;
      case tc::RequestKind::kAttach:
        if (answers_attaches) {
          server.reply(request.id, 1, "no " + request.art_id);
        } else {
          const std::lock_guard lock(m_);
          attach_ = request;
        }
        break;
      case tc::RequestKind::kDied: {
        const std::lock_guard lock(m_);
        deaths_.push_back(request.id);
        break;
      }
      case tc::RequestKind::kGone:
        break;
    }
  }

  // As a registration: answered at once, but for one whose bytes can only be streamed now.
  void keep(const tc::Request& request) {
    {
      const std::lock_guard lock(m_);
      kept_.push_back(server.keep(request.id));
    }
    if (request.source != "socket") server.reply(request.id, 0, "kept");
  }

  void accept(uint64_t id) {
    try {
      server.accept_put(id);
    } catch (const tc::PoolFull& full) {
      server.reply(id, 1, full.what());
    } catch (const tc::UnknownRequest&) {
    }
  }

  void finish(const tc::FillDone& done) {
    {
      const std::lock_guard lock(m_);
      if (done.id < tc::Server::kFirstRequest) {
        loads_[done.id] = done;
        return;
      }
      ++fills_[done.result.status];
      last_digests_ = done.result.digests;
    }
    const tc::Request request = puts_.at(done.id);
    if (done.result.status != tc::FillStatus::kOk) {
      server.reply(done.id, 1, done.result.detail);
      return;
    }
    const tc::SegmentId manifest = segment(request.body);
    server.publish(request.art_id, manifest, done.segments);
    pool.drop(manifest);
    for (tc::SegmentId id : done.segments) pool.drop(id);
    server.reply(done.id, 0, request.source);
  }

  mutable std::mutex m_;
  std::map<tc::RequestKind, size_t> seen_;
  std::map<tc::FillStatus, size_t> fills_;
  std::map<uint64_t, tc::Request> puts_;
  std::vector<tc::Digest> last_digests_;
  std::vector<uint64_t> kept_, deaths_;
  tc::Request attach_;
  std::map<uint64_t, tc::FillDone> loads_;
  std::atomic<bool> stopping_{false};
  std::thread decider_;
};

inline tc::PutOrder order_of(const std::string& art_id, const std::string& bytes) {
  tc::PutOrder order;
  order.art_id = art_id;
  order.draft = "draft of " + art_id;
  order.segment_bytes = {bytes.size()};
  order.pieces = {{0, tc::PieceKind::kMemory, 0, bytes.size(), reinterpret_cast<uint64_t>(bytes.data()), 0, 0}};
  order.rows = {{0, 0, 0, bytes.size()}};
  return order;
}

inline tc::Attachment attached(tc::Client& client, const std::string& art_id) {
  return std::get<tc::Attachment>(client.attach(art_id, patient(), false));
}

inline bool holds(std::span<const uint8_t> memory, const std::string& bytes) {
  return memory.size() == bytes.size() && std::memcmp(memory.data(), bytes.data(), bytes.size()) == 0;
}
