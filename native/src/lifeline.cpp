#include "tc/lifeline.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <set>
#include <system_error>

namespace tc {

// The one thing of this library that belongs to the process and not to an object: what fork must look at. It
// is never destroyed, since tensors may be freed after everything else at exit.
struct ForkRegistry {
  std::mutex m;
  std::set<OwnFd*> own;
  std::set<Lifeline*> lifelines;
  std::atomic<uint64_t> depth{0};

  static ForkRegistry& of_process();
  static void prepare() { of_process().m.lock(); }
  static void in_parent();
  static void in_child();
};

ForkRegistry& ForkRegistry::of_process() {
  static ForkRegistry* const registry = [] {
    auto* made = new ForkRegistry;
    ::pthread_atfork(&ForkRegistry::prepare, &ForkRegistry::in_parent, &ForkRegistry::in_child);
    return made;
  }();
  return *registry;
}

void ForkRegistry::in_parent() {
  ForkRegistry& registry = of_process();
  for (Lifeline* lifeline : registry.lifelines) {
    if (lifeline->uses_ == lifeline->moving_) continue;
    lifeline->forked_ = true;
    ++lifeline->forks_;
  }
  registry.m.unlock();
}

// Threads that were making or ending pins do not exist here, so those uses are over.
void ForkRegistry::in_child() {
  ForkRegistry& registry = of_process();
  registry.depth.fetch_add(1);
  for (OwnFd* fd : registry.own) fd->fd_.reset();
  for (Lifeline* lifeline : registry.lifelines) {
    lifeline->uses_ -= lifeline->moving_;
    lifeline->moving_ = 0;
    lifeline->forked_ = true;
    ++lifeline->forks_;
    lifeline->close_if_over();
  }
  registry.m.unlock();
}

uint64_t fork_depth() { return ForkRegistry::of_process().depth.load(std::memory_order_relaxed); }

OwnFd::OwnFd(const std::function<Fd()>& open) {
  ForkRegistry& registry = ForkRegistry::of_process();
  const std::lock_guard lock(registry.m);
  fd_ = open();
  registry.own.insert(this);
}

OwnFd::~OwnFd() {
  ForkRegistry& registry = ForkRegistry::of_process();
  const std::lock_guard lock(registry.m);
  registry.own.erase(this);
  fd_.reset();
}

Lifeline::Lifeline(uint64_t number, Fd& read_end) : number_(number) {
  ForkRegistry& registry = ForkRegistry::of_process();
  const std::lock_guard lock(registry.m);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "no pipe could be made for a lifeline");
  }
  read_end.reset(ends[0]);
  write_end_.reset(ends[1]);
  const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  page_.reset(::memfd_create("tensorcast-lifeline", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (page_ && ::ftruncate(page_.get(), static_cast<off_t>(page_bytes)) == 0)
    mapped_ = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_.get(), 0);
  if (mapped_ == nullptr || mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    throw std::system_error(errno, std::generic_category(), "no shared page could be made for a lifeline");
  }
  registry.lifelines.insert(this);
}

Lifeline::~Lifeline() {
  ForkRegistry& registry = ForkRegistry::of_process();
  const std::lock_guard lock(registry.m);
  registry.lifelines.erase(this);
  close();
}

bool Lifeline::usable() const {
  const std::lock_guard lock(ForkRegistry::of_process().m);
  return !forked_ && !retired_;
}

void Lifeline::retire() {
  const std::lock_guard lock(ForkRegistry::of_process().m);
  retired_ = true;
  close_if_over();
}

void Lifeline::close_if_over() {
  if (uses_ == 0 && (forked_ || retired_)) close();
}

// The page first: at the pipe's end the storage looks whether it is still mapped.
void Lifeline::close() {
  if (mapped_ != nullptr) ::munmap(mapped_, static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
  mapped_ = nullptr;
  page_.reset();
  write_end_.reset();
}

std::unique_ptr<LifelineUse> LifelineUse::begin(std::shared_ptr<Lifeline> lifeline) {
  const std::lock_guard lock(ForkRegistry::of_process().m);
  if (lifeline->forked_ || lifeline->retired_) return nullptr;
  ++lifeline->uses_;
  ++lifeline->moving_;
  return std::unique_ptr<LifelineUse>(new LifelineUse(std::move(lifeline)));
}

void LifelineUse::mapped() {
  const std::lock_guard lock(ForkRegistry::of_process().m);
  phase_ = Phase::kMapped;
  --lifeline_->moving_;
  forks_before_ = lifeline_->forks_;
}

bool LifelineUse::going() {
  const std::lock_guard lock(ForkRegistry::of_process().m);
  if (phase_ != Phase::kMapped) return true;
  phase_ = Phase::kGoing;
  moving_since_ = fork_depth();
  ++lifeline_->moving_;
  return lifeline_->forks_ == forks_before_;
}

LifelineUse::~LifelineUse() {
  const std::lock_guard lock(ForkRegistry::of_process().m);
  // A use that was coming or going when this child was forked was counted out then.
  if (phase_ != Phase::kMapped) {
    if (moving_since_ != fork_depth()) return;
    --lifeline_->moving_;
  }
  --lifeline_->uses_;
  lifeline_->close_if_over();
}

}  // namespace tc
