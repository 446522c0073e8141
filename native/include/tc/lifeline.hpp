// A client's lifelines, and what fork does to them. A lifeline is the write end of a pipe: never written,
// closed by exec, inherited by fork together with the mappings whose pins hang on it. The storage holds the
// read end and frees those pins once every copy is closed, so a pin outlives any process that may still read
// its blocks.
//
// A program may close descriptors that it does not know (daemons do). So a lifeline also has a page of shared memory,
// mapped writable for as long as the write end is open: fork copies that map too, and only munmap, exec or the end of
// the process take it away. The storage holds the memory's descriptor and asks the kernel whether anybody maps it.
//
// A map pin uses its lifeline from before ATTACH is sent until after munmap. A fork that finds pins mapped
// marks the lifeline `forked`: both processes may read those blocks now, so neither may say "unmapped" alone.
// Each closes its copy of the write end when its own last use ends. A fork that finds none leaves the
// lifeline to the parent. All of it is under one lock of the process that fork takes too (pthread_atfork; a
// raw clone() is not seen).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "tc/fd.hpp"

namespace tc {

// Which process this is: 0 in the first, one more in each forked child. No system call; safe anywhere.
uint64_t fork_depth();

// A descriptor that a forked child closes at once, so that the storage sees its client's end when the client
// ends.
class OwnFd {
 public:
  // `open` runs under the lock that fork takes: no child gets away with a copy.
  explicit OwnFd(const std::function<Fd()>& open);
  ~OwnFd();
  OwnFd(const OwnFd&) = delete;
  OwnFd& operator=(const OwnFd&) = delete;
  int get() const { return fd_.get(); }  // -1 in a child

 private:
  friend struct ForkRegistry;
  Fd fd_;
};

class Lifeline {
 public:
  // `read_end` becomes the other end. Throws std::system_error when no pipe or no memory can be had.
  Lifeline(uint64_t number, Fd& read_end);
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  uint64_t number() const { return number_; }
  Fd take_page() { return std::move(page_); }  // the page's descriptor, for the storage; once
  bool usable() const;                         // new pins may hang on it: not forked, not retired
  // No new pins: closes with its last use. The socket is gone.
  void retire();

 private:
  friend struct ForkRegistry;
  friend class LifelineUse;
  void close_if_over();
  void close();

  const uint64_t number_;
  Fd write_end_;
  Fd page_;
  void* mapped_ = nullptr;
  uint32_t uses_ = 0;    // map pins, coming, mapped or going
  uint32_t moving_ = 0;  // of these, coming or going: nobody can read them in a child forked now
  uint32_t forks_ = 0;   // that found pins mapped
  bool forked_ = false;
  bool retired_ = false;
};

// One map pin's use of a lifeline: coming (constructed), mapped(), going(), ended (destroyed).
class LifelineUse {
 public:
  // Empty when the lifeline takes no new pins.
  static std::unique_ptr<LifelineUse> begin(std::shared_ptr<Lifeline> lifeline);
  ~LifelineUse();
  LifelineUse(const LifelineUse&) = delete;
  LifelineUse& operator=(const LifelineUse&) = delete;

  const std::shared_ptr<Lifeline>& lifeline() const { return lifeline_; }
  void mapped();
  // Before munmap. True when no fork happened while it was mapped: then this process alone may say that it
  // unmapped.
  bool going();

 private:
  enum class Phase { kComing, kMapped, kGoing };
  explicit LifelineUse(std::shared_ptr<Lifeline> lifeline) : lifeline_(std::move(lifeline)) {}

  std::shared_ptr<Lifeline> lifeline_;
  Phase phase_ = Phase::kComing;
  uint32_t forks_before_ = 0;
  uint64_t moving_since_ = fork_depth();  // in which process it came, or goes
};

}  // namespace tc
