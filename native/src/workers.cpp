#include "tc/workers.hpp"

#include <system_error>

#include "tc/thread.hpp"

namespace tc {

bool Workers::post(std::function<void()> work) {
  const std::lock_guard lock(m_);
  if (stopping_) return false;
  waiting_.push_back(std::move(work));
  if (idle_ < waiting_.size() && threads_.size() < threads_max_) {
    try {
      threads_.push_back(native_thread([this] { run(); }));
    } catch (const std::system_error&) {
      // No room for one more thread: those there are will come to it.
      if (threads_.empty()) {
        waiting_.pop_back();
        return false;
      }
    }
  }
  cv_.notify_one();
  return true;
}

void Workers::post_last(std::function<void()> work) {
  const std::lock_guard lock(m_);
  waiting_.push_back(std::move(work));
  cv_.notify_one();
}

void Workers::run() {
  std::unique_lock lock(m_);
  for (;;) {
    ++idle_;
    cv_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

void Workers::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(m_);
    stopping_ = true;
    threads.swap(threads_);
  }
  cv_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tc
