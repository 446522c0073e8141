// Background threads that fault free pool memory in ahead of demand: a fresh memfd costs more in page faults
// than reading the same bytes from disk. They run at low priority and sleep without waking while enough
// memory is ready.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "tc/growth.hpp"

namespace tc {

class Prefaulter {
 public:
  // `mutex` guards `growth`; both outlive this.
  Prefaulter(std::mutex& mutex, Growth& growth);
  ~Prefaulter();
  Prefaulter(const Prefaulter&) = delete;
  Prefaulter& operator=(const Prefaulter&) = delete;

  void wake() { changed_.notify_all(); }  // free memory was taken
  void stop();                            // idempotent; call without the lock

 private:
  void loop(unsigned index);

  std::mutex& mutex_;
  Growth& growth_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::mutex joining_;
  std::vector<std::thread> threads_;
};

}  // namespace tc
