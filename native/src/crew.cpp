#include "tc/crew.hpp"

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "tc/thread.hpp"

namespace tc {
namespace {

constexpr unsigned kThreadsMax = 64;

}  // namespace

void Crew::run(size_t units, unsigned threads, const Work& work) {
  next_.store(0);
  const auto crew = static_cast<unsigned>(std::min<size_t>({units, threads, kThreadsMax}));
  std::vector<std::thread> others;
  try {
    for (unsigned i = 1; i < crew; ++i) others.push_back(native_thread([&] { work_off(units, work); }));
  } catch (const std::system_error&) {
    // No more threads to be had: those that run do all the work.
  }
  work_off(units, work);
  for (std::thread& thread : others) thread.join();
  if (first_) throw *first_;
}

void Crew::work_off(size_t units, const Work& work) {
  try {
    while (true) {
      check();
      const size_t unit = next_.fetch_add(1, std::memory_order_relaxed);
      if (unit >= units) return;
      work(unit);
    }
  } catch (const Trouble& trouble) {
    fail(trouble);
  } catch (const std::bad_alloc&) {
    fail({FillStatus::kSourceError, ENOMEM, "out of memory while filling"});
  } catch (const std::exception& error) {
    fail({FillStatus::kSourceError, EIO, error.what()});
  }
}

void Crew::check() const {
  if (failed_.load(std::memory_order_acquire))
    throw Trouble{FillStatus::kCancelled, 0, "another part of the fill failed"};
  if (cancelled_ != nullptr && cancelled_->load(std::memory_order_acquire))
    throw Trouble{FillStatus::kCancelled, 0, "cancelled"};
  if (Clock::now() >= deadline_) throw Trouble{FillStatus::kDeadline, 0, "the deadline passed while bytes were moving"};
  if (look_) look_();
}

int Crew::slice_ms(int slice_ms_max) const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, slice_ms_max));
}

void Crew::fail(Trouble trouble) {
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = std::move(trouble);
  failed_.store(true, std::memory_order_release);
}

}  // namespace tc
