#include "tc/ledger.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>

namespace tc {

namespace {

// A named FIFO does not count: one that nobody ever opened for writing never reports its end. The kernel's own name for
// the descriptor tells them apart, and no file system is asked.
bool is_pipe_read_end(int fd) {
  constexpr std::string_view kPipe = "pipe:[";
  char name[kPipe.size()];
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name, sizeof(name));
  if (n < 0 || std::string_view(name, static_cast<size_t>(n)) != kPipe) return false;
  return (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

// A writable shared map of it forbids this seal; once sealed it can have none.
bool is_mapped(int page) { return page >= 0 && ::fcntl(page, F_ADD_SEALS, F_SEAL_WRITE) != 0 && errno == EBUSY; }

}  // namespace

uint64_t Ledger::open_session(std::shared_ptr<Peer> peer) {
  const uint64_t id = next_++;
  sessions_[id].peer = std::move(peer);
  return id;
}

std::shared_ptr<Peer> Ledger::peer_of(uint64_t session) const {
  const auto it = sessions_.find(session);
  return it == sessions_.end() || !it->second.connected ? nullptr : it->second.peer;
}

bool Ledger::add_lifeline(uint64_t session, uint64_t number, Fd read_end, Fd page) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end() || !is_pipe_read_end(read_end.get())) return false;
  if (it->second.lifelines.size() >= kLifelinesMax || it->second.lifelines.contains(number)) return false;
  const uint64_t key = next_++;
  // No event is asked for: the end of the last writer (EPOLLHUP) is told always, and bytes written to it
  // never.
  epoll_event event{};
  event.data.u64 = lifeline_tag(key);
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, read_end.get(), &event) != 0) return false;
  it->second.lifelines[number] = key;
  lifelines_.emplace(key, Lifeline{session, number, std::move(read_end), std::move(page), {}});
  return true;
}

// Other processes may hold the same open pipe, so that closing alone would leave it in the epoll set.
void Ledger::close_lifeline(uint64_t key) {
  const auto it = lifelines_.find(key);
  epoll_event none{};
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, it->second.read_end.get(), &none);
  lifelines_.erase(it);
  still_mapped_.erase(key);
}

uint64_t Ledger::pin(uint64_t session, uint64_t lifeline, std::shared_ptr<Published> entry,
                     std::vector<SegmentId> segments) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return 0;
  const auto known = it->second.lifelines.find(lifeline);
  if (known == it->second.lifelines.end()) return 0;
  const uint64_t id = next_++;
  for (SegmentId segment : segments) pool_.pin(segment);
  ++entry->pins;
  ++it->second.pins;
  lifelines_.at(known->second).pins.insert(id);
  pins_.emplace(id, Pin{known->second, std::move(entry), std::move(segments)});
  return id;
}

bool Ledger::full(uint64_t session) const {
  const auto it = sessions_.find(session);
  return it != sessions_.end() && it->second.pins >= kPinsMax;
}

void Ledger::end_pin(uint64_t id) {
  const auto it = pins_.find(id);
  if (it == pins_.end()) return;
  const Pin pin = std::move(it->second);
  pins_.erase(it);
  Lifeline& lifeline = lifelines_.at(pin.lifeline);
  lifeline.pins.erase(id);
  --sessions_.at(lifeline.session).pins;
  --pin.entry->pins;
  for (SegmentId segment : pin.segments) pool_.unpin(segment);
}

void Ledger::unpin(uint64_t session, uint64_t pin) {
  const auto it = pins_.find(pin);
  if (it == pins_.end() || lifelines_.at(it->second.lifeline).session != session) return;
  end_pin(pin);
}

void Ledger::lifeline_ended(uint64_t key) {
  const auto it = lifelines_.find(key);
  if (it == lifelines_.end()) return;
  if (!it->second.pins.empty() && is_mapped(it->second.page.get())) {
    // Somebody closed descriptors he did not know, and maps on: nothing may be reused.
    epoll_event none{};
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, it->second.read_end.get(), &none);
    still_mapped_.insert(key);
    return;
  }
  const std::set<uint64_t> pins = it->second.pins;
  for (uint64_t pin : pins) end_pin(pin);
  const uint64_t session = it->second.session;
  sessions_.at(session).lifelines.erase(it->second.number);
  close_lifeline(key);
  forget_if_over(session);
}

void Ledger::look_again() {
  const std::set<uint64_t> keys = still_mapped_;
  for (uint64_t key : keys) lifeline_ended(key);
}

void Ledger::hung_up(uint64_t session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  it->second.connected = false;
  forget_if_over(session);
}

void Ledger::forget_if_over(uint64_t session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end() || it->second.connected || it->second.pins > 0) return;
  for (const auto& [number, key] : it->second.lifelines) close_lifeline(key);
  sessions_.erase(it);
}

bool Ledger::connected(uint64_t session) const {
  const auto it = sessions_.find(session);
  return it != sessions_.end() && it->second.connected;
}

std::vector<Ledger::SessionRow> Ledger::sessions() const {
  std::vector<SessionRow> rows;
  for (const auto& [id, s] : sessions_) rows.emplace_back(id, s.peer->pid(), s.pins, s.connected);
  return rows;
}

}  // namespace tc
