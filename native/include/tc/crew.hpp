// The threads of one fill: they take work units one after another until all are done or one goes wrong.
// Readers report trouble by throwing Trouble; nothing leaves a thread. The first trouble wins and stops the
// others at their next check(), which every loop over bytes makes.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "tc/fill.hpp"

namespace tc {

// Why a fill ends early.
struct Trouble {
  FillStatus status;
  int error;
  std::string detail;
};

class Crew {
 public:
  using Clock = std::chrono::steady_clock;
  using Work = std::function<void(size_t unit)>;

  // `cancelled` may be null; it and the deadline are looked at by every check().
  Crew(Clock::time_point deadline, const std::atomic<bool>* cancelled) : deadline_(deadline), cancelled_(cancelled) {}

  // Runs work(0) ... work(units - 1) on up to `threads` threads, the caller's among them, in this order of
  // beginning. Throws the first Trouble once all threads have ended.
  void run(size_t units, unsigned threads, const Work& work);

  // `look` is called by every check() from now on; set before run().
  void watch(std::function<void()> look) { look_ = std::move(look); }

  void check() const;                    // throws Trouble when the deadline passed, on cancel, or when another failed
  int slice_ms(int slice_ms_max) const;  // how long a wait may last before the next check()

 private:
  void work_off(size_t units, const Work& work);
  void fail(Trouble trouble);

  const Clock::time_point deadline_;
  const std::atomic<bool>* cancelled_;
  std::function<void()> look_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::optional<Trouble> first_;
};

}  // namespace tc
