// How long a blocking call may wait, and what it looks at meanwhile. One Wait covers one whole call; every
// sleep inside is at most kSliceMs, after which `tick` runs and may throw (Python's signals arrive that way).
// `let_go` runs before a sleep that may be long, once an answer has not come within kBriefUs: who holds
// Python's lock keeps it for a short answer (taking it back beside a busy thread costs milliseconds) and
// gives it up for a long one.
#pragma once
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

namespace tc {

// The deadline of a call passed; what() is the phase it was in ("connect", "send", "answer", "stream").
struct WaitedTooLong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Wait {
  static constexpr int kSliceMs = 50;
  static constexpr long kBriefUs = 200;
  static constexpr uint64_t kBudgetMsMax = 7ull * 24 * 3600 * 1000;

  std::chrono::steady_clock::time_point deadline;
  std::function<void()> tick;
  std::function<void()> let_go;

  static Wait of_ms(uint64_t budget_ms, std::function<void()> tick = {}) {
    const auto span = std::chrono::milliseconds(std::min(budget_ms, kBudgetMsMax));
    return {std::chrono::steady_clock::now() + span, std::move(tick), {}};
  }

  // What is left, in whole milliseconds; 0 when nothing is.
  uint64_t left_ms() const {
    const auto left = deadline - std::chrono::steady_clock::now();
    return left.count() <= 0 ? 0 : std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
  }

  int slice_ms() const { return static_cast<int>(std::min<uint64_t>(left_ms(), kSliceMs)); }

  // Ends the call when its time is over; else lets the caller look around.
  void check(const char* phase) const {
    if (left_ms() == 0) throw WaitedTooLong(phase);
    if (tick) tick();
  }

  // Sleeps until one of `events` at `fd`, at most one slice. Returns what happened there, 0 for nothing yet.
  short poll_once(int fd, short events, const char* phase) const {
    pollfd entry{fd, events, 0};
    if (let_go) {
      const timespec brief{0, kBriefUs * 1000};
      if (::ppoll(&entry, 1, &brief, nullptr) > 0) return entry.revents;
      let_go();
    }
    if (::poll(&entry, 1, slice_ms()) > 0) return entry.revents;
    check(phase);
    return 0;
  }
};

}  // namespace tc
