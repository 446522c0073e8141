#include "tc/thread.hpp"

#include <csignal>

namespace tc {

namespace {

// Faults stay deliverable: a crash report must name the thread that crashed.
sigset_t quiet_signals() {
  sigset_t set;
  sigfillset(&set);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) sigdelset(&set, fault);
  return set;
}

}  // namespace

std::thread native_thread(std::function<void()> body) {
  const sigset_t quiet = quiet_signals();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &quiet, &before);
  struct Restore {
    sigset_t* set;
    ~Restore() { pthread_sigmask(SIG_SETMASK, set, nullptr); }
  } restore{&before};
  return std::thread(std::move(body));
}

}  // namespace tc
