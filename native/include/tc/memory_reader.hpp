// Brings the bytes of another process: read out of its memory (process_vm_readv), or received from its
// socket. Both fill the fragments of one unit completely or throw Trouble.
#pragma once
#include <sys/types.h>
#include <chrono>
#include <cstdint>
#include <span>

#include "tc/crew.hpp"
#include "tc/fill_plan.hpp"

namespace tc {

class MemoryReader {
 public:
  MemoryReader(pid_t pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}

  // Throws kGone when the process has ended. A pid alone may name another process by now; as long as the
  // pidfd is alive before and after, it did not.
  void check_alive() const;

  void read(std::span<const Fragment> fragments, const Crew& crew) const;

 private:
  [[noreturn]] void failed(uint64_t address, int error) const;

  pid_t pid_;
  int pidfd_;
};

class StreamReader {
 public:
  static constexpr std::chrono::milliseconds kIdleMax{30'000};  // a sender that stops holds a thread

  // `pidfd` (or -1) tells when the sender has ended though its socket has not. After `idle_max` without a byte the
  // stream counts as ended.
  StreamReader(int fd, int pidfd, std::chrono::milliseconds idle_max = kIdleMax)
      : fd_(fd), pidfd_(pidfd), idle_max_(idle_max) {}

  void read(std::span<const Fragment> fragments, const Crew& crew);

 private:
  void wait(const Crew& crew) const;

  int fd_;
  int pidfd_;
  std::chrono::milliseconds idle_max_;
  uint64_t received_ = 0;
};

}  // namespace tc
