// Threads for work that may block: fills and the probing of clients. Made when there is work and nobody free,
// up to a limit; more work waits in order.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tc {

class Workers {
 public:
  explicit Workers(unsigned threads_max) : threads_max_(threads_max == 0 ? 1 : threads_max) {}
  ~Workers() { stop(); }

  // False after stop(): the work is not taken. Work must not throw.
  bool post(std::function<void()> work);
  // The same for what a worker leaves behind as its last act: taken even after stop(), since that worker is still there
  // to run it.
  void post_last(std::function<void()> work);
  // Runs what was posted and ends the threads; idempotent.
  void stop();

 private:
  void run();

  const unsigned threads_max_;
  std::mutex m_;
  std::condition_variable cv_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  unsigned idle_ = 0;
  bool stopping_ = false;
};

}  // namespace tc
