// The link's janitor: a thread that sleeps until the storage hangs up, a pin ended, or an answer came too
// late for its caller. It never waits for the storage and never needs Python.
#include <poll.h>
#include <sys/socket.h>

#include "tc/link.hpp"

namespace tc {

namespace {

constexpr size_t kUnpinsAtOnce = 4096;  // pins of one message; its body stays below the server's limit

}  // namespace

void Link::wake() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_->get(), &one, sizeof(one));
}

void Link::unpin(uint64_t pin) noexcept {
  if (!in_own_process()) return;
  try {
    const std::lock_guard lock(unpins_m_);
    unpins_.push_back(pin);
  } catch (...) {
    return;  // no memory for eight bytes: the pin ends with its lifeline
  }
  wake();
}

void Link::tend() {
  while (tend_once()) {
  }
}

bool Link::tend_once() {
  pollfd entries[2] = {{wake_->get(), POLLIN, 0}, {-1, POLLRDHUP, 0}};
  {
    const std::lock_guard lock(m_);
    send_unpins();
    const bool broken = outbox_.flush(socket_->get()) == Outbox::Flushed::kBroken;
    if (closing_) return false;
    if (broken) alive_ = false;
    if (!hung_up_) {
      entries[1].fd = socket_->get();
      if (!outbox_.empty() && !broken) entries[1].events |= POLLOUT;
      if (abandoned_ > 0 && !receiving_) entries[1].events |= POLLIN;
    }
  }
  ::poll(entries, 2, -1);
  uint64_t count;
  if (entries[0].revents) [[maybe_unused]]
    const ssize_t n = ::read(wake_->get(), &count, sizeof(count));
  const std::shared_ptr<OwnFd> held = socket_;  // only close() changes it, after this thread ended
  const std::lock_guard lock(m_);
  if (entries[1].revents & (POLLRDHUP | POLLHUP | POLLERR)) {
    hung_up_ = true;
    alive_ = false;
    if (lifeline_) lifeline_->retire();
  }
  if (!receiving_ && (hung_up_ || abandoned_ > 0)) receive_late(*held);
  return true;
}

// m_ is held: reading does not block, and nobody else is receiving.
void Link::receive_late(const OwnFd& socket) {
  for (;;) {
    Frame frame;
    const Got got = reader_.read(socket.get(), frame);
    take(got, std::move(frame));
    if (got != Got::kFrame && got != Got::kMore) return;
  }
}

void Link::send_unpins() {
  std::vector<uint64_t> pins;
  {
    const std::lock_guard lock(unpins_m_);
    pins.swap(unpins_);
  }
  for (size_t first = 0; first < pins.size(); first += kUnpinsAtOnce) {
    const size_t last = std::min(pins.size(), first + kUnpinsAtOnce);
    const auto from = pins.begin() + static_cast<ptrdiff_t>(first);
    outbox_.push(0, Encoder(Kind::kUnpin, 0)
                        .array(std::vector<uint64_t>(from, pins.begin() + static_cast<ptrdiff_t>(last)))
                        .finish());
  }
}

}  // namespace tc
