#include "tc/link.hpp"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "tc/thread.hpp"

namespace tc {

Link::Link(std::string path, std::shared_ptr<OwnFd> socket, std::shared_ptr<Lifeline> lifeline)
    : path_(std::move(path)),
      wake_(std::make_shared<OwnFd>([] { return Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); })),
      socket_(std::move(socket)),
      lifeline_(std::move(lifeline)) {
  if (wake_->get() < 0) throw std::system_error(errno, std::generic_category(), "no eventfd could be made");
  janitor_ = native_thread([this] { tend(); });
}

Link::~Link() { close(); }

void Link::close() {
  if (!in_own_process()) return;
  {
    const std::lock_guard lock(m_);
    if (std::exchange(closing_, true)) return;
    alive_ = false;
    wake();
  }
  janitor_.join();
  const std::lock_guard lock(m_);
  ::shutdown(socket_->get(), SHUT_RDWR);
  lose("this client of " + path_ + " was closed: make a new one");
  socket_.reset();
}

bool Link::alive() const {
  if (!in_own_process()) return false;
  const std::lock_guard lock(m_);
  return alive_;
}

uint64_t Link::next_number() {
  check_process();
  const std::lock_guard lock(m_);
  return next_number_++;
}

PeerGone Link::gone() const { return PeerGone(why_.empty() ? hung_up(path_) : why_); }

// A child may not even lock: another thread of the parent may have held the lock at the fork.
void Link::check_process() const {
  if (in_own_process()) return;
  throw PeerGone("this client of " + path_ + " belongs to the parent process: a forked child makes its own");
}

std::shared_ptr<OwnFd> Link::socket() const {
  check_process();
  const std::lock_guard lock(m_);
  if (!alive_) throw gone();
  return socket_;
}

std::unique_ptr<LifelineUse> Link::use_lifeline() {
  check_process();
  const std::lock_guard lock(m_);
  for (;;) {
    if (!alive_) throw gone();
    if (auto use = LifelineUse::begin(lifeline_)) return use;
    const auto ends = std::make_shared<std::pair<Fd, Fd>>();
    lifeline_ = std::make_shared<Lifeline>(next_lifeline_, ends->first);
    ends->second = lifeline_->take_page();
    const std::vector<int> fds{ends->first.get(), ends->second.get()};
    outbox_.push(0, Encoder(Kind::kLifeline, next_lifeline_++).finish(2), fds, ends);
  }
}

Answer Link::ask(uint64_t number, std::string frame, std::unique_ptr<LifelineUse> use, const Wait& wait) {
  const std::shared_ptr<OwnFd> held = socket();
  const auto slot = std::make_shared<Slot>();
  slot->answer.use = std::move(use);
  {
    const std::lock_guard lock(m_);
    if (!alive_) throw gone();
    slots_.emplace(number, slot);
    outbox_.push(number, std::move(frame));
  }
  try {
    send_off(*held, number, wait);
    await(*held, *slot, wait);
  } catch (...) {
    give_up(number, slot);
    throw;
  }
  const std::lock_guard lock(m_);
  if (slot->lost) throw gone();
  return std::move(slot->answer);
}

// A connection that breaks here is left to await(): the storage may have said why.
void Link::send_off(const OwnFd& socket, uint64_t number, const Wait& wait) {
  for (;;) {
    {
      const std::lock_guard lock(m_);
      if (outbox_.flush(socket.get()) == Outbox::Flushed::kBroken || !outbox_.holds(number)) return;
    }
    wait.poll_once(socket.get(), POLLOUT, "send");
    if (wait.left_ms() == 0) wait.check("send");
  }
}

void Link::await(const OwnFd& socket, Slot& slot, const Wait& wait) {
  std::unique_lock lock(m_);
  while (!slot.done && !slot.lost) {
    if (receiving_) {
      if (wait.let_go) wait.let_go();
      slot.changed.wait_for(lock, std::chrono::milliseconds(std::max(wait.slice_ms(), 1)));
      if (slot.done || slot.lost || !receiving_) continue;
      lock.unlock();
      wait.check("answer");
      lock.lock();
      continue;
    }
    receiving_ = true;
    lock.unlock();
    Frame frame;
    Got got = Got::kNothing;
    std::exception_ptr stop;
    try {
      got = reader_.read(socket.get(), frame);
      if (got == Got::kNothing) wait.poll_once(socket.get(), POLLIN, "answer");
      if (wait.left_ms() == 0) wait.check("answer");
    } catch (...) {
      stop = std::current_exception();
    }
    lock.lock();
    receiving_ = false;
    take(got, std::move(frame));
    if (stop && !slot.done) {
      pass_on();
      std::rethrow_exception(stop);
    }
  }
  pass_on();
}

// Whoever stops receiving hands that on: to a caller that waits, else to the janitor when something is owed.
void Link::pass_on() {
  if (receiving_) return;
  for (const auto& [number, slot] : slots_) {
    if (slot->abandoned) continue;
    slot->changed.notify_one();
    return;
  }
  if (abandoned_ > 0 || hung_up_) wake();
}

void Link::take(Got got, Frame frame) {
  if (got == Got::kNothing || got == Got::kMore) return;
  if (got != Got::kFrame) {
    lose(talk_over(path_, got, reader_).what());
    return;
  }
  const auto it = slots_.find(frame.header.request);
  if (it == slots_.end()) {
    const std::optional<Reply> reply = frame.kind() == Kind::kReply ? Reply::decode(frame.body) : std::nullopt;
    lose("the storage at " + path_ + " ended the connection: " + (reply ? reply->body : "an answer to nothing came"));
    return;
  }
  const std::shared_ptr<Slot> slot = it->second;
  Answer& answer = slot->answer;
  std::move(frame.fds.begin(), frame.fds.end(), std::back_inserter(answer.fds));
  if (frame.kind() == Kind::kFds) return;
  answer.kind = frame.kind();
  answer.body = std::move(frame.body);
  slots_.erase(it);
  slot->done = true;
  if (slot->abandoned) {
    --abandoned_;
    undo(answer);
  }
  slot->changed.notify_one();
}

// Nobody wants this answer: nothing of it was mapped, so what it pinned is free again.
void Link::undo(Answer& answer) {
  if (answer.kind == Kind::kAttached) {
    const std::optional<Attached> attached = Attached::decode(answer.body);
    if (attached && attached->pin != 0) unpin(attached->pin);
  }
  answer = Answer{};
}

void Link::give_up(uint64_t number, const std::shared_ptr<Slot>& slot) {
  const std::lock_guard lock(m_);
  if (slot->lost) return;
  if (slot->done) {
    undo(slot->answer);
    return;
  }
  if (outbox_.take_back(number)) {
    slots_.erase(number);
    return;
  }
  slot->abandoned = true;
  ++abandoned_;
  outbox_.push(0, Encoder(Kind::kCancel, number).finish());
  wake();
}

void Link::lose(const std::string& why) {
  alive_ = false;
  if (why_.empty()) why_ = why;
  for (auto& [number, slot] : slots_) {
    slot->lost = true;
    if (slot->abandoned) slot->answer = Answer{};
    slot->changed.notify_one();
  }
  slots_.clear();
  abandoned_ = 0;
  hung_up_ = true;
  if (lifeline_) lifeline_->retire();
}

}  // namespace tc
