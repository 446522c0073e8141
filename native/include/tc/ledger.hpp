// The map pins of a storage's clients: which segments which process may still have mapped. A pin hangs on one
// lifeline of one session and ends in exactly two ways: the client says that it unmapped, or the lifeline
// reaches EOF, which means that every process that could have inherited the maps is gone or has unmapped them
// too. A control connection that closes ends nothing: its session stays, quarantined, while pins hang on it.
// Not locked: the server's lock covers it. The read ends are watched by the server's epoll, under
// lifeline_tag(key).
#pragma once
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tc/catalog.hpp"
#include "tc/fd.hpp"
#include "tc/peer.hpp"

namespace tc {

class Ledger {
 public:
  using SessionRow = std::tuple<uint64_t, int, uint64_t, bool>;  // session, pid, pins, connected

  static constexpr uint64_t lifeline_tag(uint64_t key) { return key | 1ull << 63; }

  Ledger(Pool& pool, int epoll) : pool_(pool), epoll_(epoll) {}

  uint64_t open_session(std::shared_ptr<Peer> peer);
  std::shared_ptr<Peer> peer_of(uint64_t session) const;  // empty when unknown

  // A lifeline of the session under the client's own number. False when it is refused: the number is taken,
  // there are too many, or the descriptor is no read end of a pipe.
  // `page` is its shared page; without one the pipe alone speaks.
  bool add_lifeline(uint64_t session, uint64_t number, Fd read_end, Fd page = {});

  // Pins `segments` of `entry` for the session's lifeline; 0 when the session has no such lifeline (any
  // more).
  uint64_t pin(uint64_t session, uint64_t lifeline, std::shared_ptr<Published> entry, std::vector<SegmentId> segments);
  bool full(uint64_t session) const;  // it has kPinsMax
  // A pin that is unknown, or another session's, is none of this session's: nothing happens.
  void unpin(uint64_t session, uint64_t pin);
  void lifeline_ended(uint64_t key);
  // Lifelines whose pipe ended while their page was still mapped: how long to wait until the next look, or -1.
  int look_in_ms() const { return still_mapped_.empty() ? -1 : kLookMs; }
  void look_again();
  void hung_up(uint64_t session);
  bool connected(uint64_t session) const;

  std::vector<SessionRow> sessions() const;

  static constexpr uint64_t kPinsMax = 65'536;  // of one session
  static constexpr int kLookMs = 250;           // between looks at pages that outlived their pipe

 private:
  static constexpr size_t kLifelinesMax = 1024;  // of one session: one a fork that left maps behind

  struct Session {
    std::shared_ptr<Peer> peer;
    bool connected = true;
    std::map<uint64_t, uint64_t> lifelines;  // client's number -> key
    uint64_t pins = 0;
  };
  struct Lifeline {
    uint64_t session;
    uint64_t number;
    Fd read_end;
    Fd page;
    std::set<uint64_t> pins;
  };
  struct Pin {
    uint64_t lifeline;
    std::shared_ptr<Published> entry;
    std::vector<SegmentId> segments;
  };

  void end_pin(uint64_t id);
  void close_lifeline(uint64_t key);
  void forget_if_over(uint64_t session);

  Pool& pool_;
  const int epoll_;
  uint64_t next_ = 1;
  std::map<uint64_t, Session> sessions_;
  std::unordered_map<uint64_t, Lifeline> lifelines_;
  std::unordered_map<uint64_t, Pin> pins_;
  std::set<uint64_t> still_mapped_;  // keys of lifelines
};

}  // namespace tc
