#include "tc/prefault.hpp"

#include <sys/resource.h>
#include <chrono>
#include <cstdlib>
#include <system_error>

#include "tc/thread.hpp"

namespace tc {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kThreadsMax = 2;
constexpr unsigned kCoresForTwo = 4;
constexpr auto kShortOfMemoryWait = 1s;
constexpr int kNice = 5;  // readers and fills go first

// A second thread only helps where another core has nothing to do.
bool another_core_idle() {
  double load = 0;
  const unsigned cores = std::thread::hardware_concurrency();
  return cores >= kCoresForTwo && getloadavg(&load, 1) == 1 && load + 2 < cores;
}

}  // namespace

Prefaulter::Prefaulter(std::mutex& mutex, Growth& growth) : mutex_(mutex), growth_(growth) {
  const unsigned threads = std::thread::hardware_concurrency() >= kCoresForTwo ? kThreadsMax : 1;
  for (unsigned index = 0; index < threads; ++index) {
    try {
      threads_.push_back(native_thread([this, index] { loop(index); }));
    } catch (const std::system_error&) {
      return;  // no threads to be had: fills fault their own pages, only slower
    }
  }
}

Prefaulter::~Prefaulter() { stop(); }

void Prefaulter::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  const std::lock_guard joining(joining_);
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void Prefaulter::loop(unsigned index) {
  setpriority(PRIO_PROCESS, 0, kNice);  // of this thread only, on Linux
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    std::optional<Run> run;
    bool waits_for_memory = false;
    try {
      if (index == 0 || another_core_idle()) run = growth_.next_fault();
      waits_for_memory = growth_.short_of_memory();
    } catch (const std::exception&) {
      waits_for_memory = true;  // no descriptor or no memory for an extent: a reserve will say so, this one retries
    }
    if (run) {
      lock.unlock();
      const int error = populate(growth_.extents().origin() + run->first * kBlockBytes, run->count * kBlockBytes);
      lock.lock();
      growth_.end_fault(*run, error == 0);
      if (error == 0) continue;
      waits_for_memory = true;
    }
    if (waits_for_memory) {
      changed_.wait_for(lock, kShortOfMemoryWait);
    } else {
      changed_.wait(lock);
    }
  }
}

}  // namespace tc
