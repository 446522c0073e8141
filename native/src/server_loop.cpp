// The local server's one serving thread: waits for sockets, accepts, receives, buries. It never waits for a
// client.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "server_state.hpp"

namespace tc {

namespace {

constexpr uint64_t kListenerTag = 0;
constexpr uint64_t kWakeTag = 1;
constexpr uint64_t kLifelineBit = 1ull << 63;
constexpr int kFramesAtOnce = 16;    // then the others get their turn
constexpr int kNoDescriptorMs = 10;  // between looks for a free descriptor

}  // namespace

void Server::State::serve() {
  epoll_event ready_now[64];
  for (;;) {
    const int n = ::epoll_wait(epoll.get(), ready_now, 64, sleep_ms());
    if (n < 0 && errno != EINTR) return;
    for (int i = 0; i < n; ++i) {
      const uint64_t tag = ready_now[i].data.u64;
      if (tag == kWakeTag) {
        const std::lock_guard lock(m);
        if (stopping) return;
      } else if (tag == kListenerTag) {
        accept_all();
      } else if (tag & kLifelineBit) {
        const std::lock_guard lock(m);
        if (ready_now[i].events & EPOLLHUP) ledger->lifeline_ended(tag & ~kLifelineBit);
      } else if (tag & KeptSources::kTagBit) {
        const std::lock_guard lock(m);
        if (const auto source = kept->process_ended(tag & ~KeptSources::kTagBit)) owner_ended(*source);
      } else {
        ready(tag, ready_now[i].events);
      }
    }
  }
}

// What is due by time is done here; how long nothing more is due, or -1 for ever.
int Server::State::sleep_ms() {
  const int welcome = welcome_late();
  const std::lock_guard lock(m);
  if (ledger->look_in_ms() < 0) return welcome;
  ledger->look_again();
  return welcome < 0 ? ledger->look_in_ms() : std::min(welcome, Ledger::kLookMs);
}

void Server::State::accept_all() {
  for (;;) {
    Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE) return;
      // No descriptor is left: spend the spare one on telling this client so by hanging up.
      spare.reset();
      socket.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      socket.reset();
      spare.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!spare) ::poll(nullptr, 0, kNoDescriptorMs);
      return;
    }
    const std::lock_guard lock(m);
    take_in(std::make_shared<Connection>(next_connection++, std::move(socket)));
  }
}

void Server::State::ready(uint64_t id, uint32_t what) {
  std::shared_ptr<Connection> c;
  {
    const std::lock_guard lock(m);
    const auto it = connections.find(id);
    if (it == connections.end()) return;
    c = it->second;
    if (what & EPOLLOUT) send(*c, {});
    const bool over = c->stage == Connection::Stage::kPutting && (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
    if (c->doomed || over) {
      bury(c);
      return;
    }
  }
  if (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) receive(c);
}

// Whatever one client makes go wrong, memory included, is that client's end and nobody else's.
Got Server::State::listen_to(Connection& c, Frame& frame, std::string& why) {
  try {
    const Got got = c.reader.read(c.socket.get(), frame);
    why = c.reader.why();
    return got;
  } catch (const std::bad_alloc&) {
    why = "the storage has no memory left for this message: send it again later, or in smaller parts";
    return Got::kBroken;
  }
}

bool Server::State::heard(const std::shared_ptr<Connection>& c, Frame frame, std::string& why) {
  try {
    return on_frame(c, std::move(frame), why);
  } catch (const std::exception& e) {
    why = e.what();
    return false;
  }
}

void Server::State::receive(const std::shared_ptr<Connection>& c) {
  for (int i = 0; i < kFramesAtOnce; ++i) {
    Frame frame;
    std::string why;
    const Got got = listen_to(*c, frame, why);
    if (!keeps_asked(c)) return;
    if (got == Got::kNothing || got == Got::kMore) return;  // what is left wakes this thread again
    const std::lock_guard lock(m);
    if (got == Got::kFrame && heard(c, std::move(frame), why)) {
      if (!c->doomed && c->stage != Connection::Stage::kPutting) continue;
      if (c->doomed) bury(c);
      return;
    }
    if (got == Got::kOtherVersion) {
      answer(*c, 0, Status::kVersion,
             "the storage speaks version " + std::to_string(kWireVersion) +
                 " of the local protocol and this client version " + std::to_string(c->reader.other_version()) +
                 ": run the same release on both sides");
    } else if (got != Got::kEnd) {
      answer(*c, 0, Status::kBadRequest, why);
    }
    bury(c);
    return;
  }
}

}  // namespace tc
