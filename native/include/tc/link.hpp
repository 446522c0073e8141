// The client's control connection, shared by all threads of its process. Calls are told apart by their
// number; whichever caller finds nobody receiving receives for all (no thread in between, no wake-up on the
// short path). A caller that gives up leaves its slot behind, so that a late answer is understood: what it
// pinned is unpinned, its descriptors are closed. A janitor thread watches for the storage's end, sends
// unpins and reads late answers. Everything here does nothing in a forked child.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tc/frame.hpp"
#include "tc/lifeline.hpp"
#include "tc/message.hpp"
#include "tc/outbox.hpp"
#include "tc/talk.hpp"

namespace tc {

// The final answer to one request, and for an attach the use of the lifeline that its pin hangs on.
struct Answer {
  Kind kind = Kind::kReply;
  std::string body;
  std::vector<Fd> fds;
  std::unique_ptr<LifelineUse> use;
};

class Link {
 public:
  // Takes over a greeted connection; starts the janitor.
  Link(std::string path, std::shared_ptr<OwnFd> socket, std::shared_ptr<Lifeline> lifeline);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  uint64_t next_number();
  // Sends `frame` (numbered) and waits for its answer. Throws PeerGone, WaitedTooLong("send" or "answer"),
  // and whatever the wait's tick throws.
  Answer ask(uint64_t number, std::string frame, std::unique_ptr<LifelineUse> use, const Wait& wait);
  // A lifeline for one more pin; a new one when the last was forked.
  std::unique_ptr<LifelineUse> use_lifeline();
  // Says that a pin's maps are gone. Never blocks, from any thread, at any time.
  void unpin(uint64_t pin) noexcept;

  bool alive() const;
  bool in_own_process() const { return fork_depth() == depth_; }
  // Hangs up; callers in other threads get PeerGone. Idempotent.
  void close();

 private:
  struct Slot {
    std::condition_variable changed;
    Answer answer;
    bool done = false;
    bool lost = false;       // the connection ended first
    bool abandoned = false;  // nobody waits; the answer must be undone
  };

  void check_process() const;
  std::shared_ptr<OwnFd> socket() const;
  void send_off(const OwnFd& socket, uint64_t number, const Wait& wait);
  void await(const OwnFd& socket, Slot& slot, const Wait& wait);
  void give_up(uint64_t number, const std::shared_ptr<Slot>& slot);
  PeerGone gone() const;
  // These want m_ held.
  void take(Got got, Frame frame);
  void pass_on();
  void undo(Answer& answer);
  void lose(const std::string& why);

  // janitor.cpp
  void tend();
  bool tend_once();
  void receive_late(const OwnFd& socket);
  void send_unpins();
  void wake() noexcept;

  const std::string path_;
  const uint64_t depth_ = fork_depth();
  const std::shared_ptr<OwnFd> wake_;

  mutable std::mutex m_;
  std::shared_ptr<OwnFd> socket_;
  std::map<uint64_t, std::shared_ptr<Slot>> slots_;
  Outbox outbox_;
  FrameReader reader_{&answer_body_limit};  // of whoever has receiving_
  bool receiving_ = false;
  uint64_t abandoned_ = 0;
  uint64_t next_number_ = 1;
  uint64_t next_lifeline_ = 2;
  std::shared_ptr<Lifeline> lifeline_;
  bool alive_ = true;
  bool hung_up_ = false;  // the other end closed; what it sent before may still be unread
  bool closing_ = false;
  std::string why_;

  std::mutex unpins_m_;
  std::vector<uint64_t> unpins_;
  std::thread janitor_;
};

}  // namespace tc
