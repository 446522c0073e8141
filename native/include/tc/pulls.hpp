// Fills on worker threads. A fill from a client's memory or from files runs on a few threads; one that a
// client streams has a thread of its own, so that a client that stops sending holds up nobody else. One asker, whose
// memory or files may never come, gets all threads but one; its other pulls wait for their turn. Segments are the
// pull's until it ends well; otherwise they are freed here.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tc/fd.hpp"
#include "tc/fill.hpp"
#include "tc/message.hpp"
#include "tc/peer.hpp"
#include "tc/workers.hpp"

namespace tc {

// One fill, from its start until its end was told.
struct Pull {
  uint64_t id = 0;
  FillJob job;
  uint64_t total_bytes = 0;
  std::vector<Fd> files;
  std::vector<SegmentId> held;  // one user of each until the end: the job's sources
  std::shared_ptr<Peer> peer;   // whose memory is read; empty when none is
  uint64_t ticket_address = 0;
  Cookie ticket{};
  bool kept = false;             // from what a registration kept: without its ticket the owner is gone
  uint64_t asker = 0;            // whose pulls count together
  std::shared_ptr<void> stream;  // keeps job.stream_fd open
  std::function<void()> before;  // runs on the worker, just before the fill
};

// All segments or none. Throws PoolFull.
std::vector<SegmentId> reserve_all(Pool& pool, const std::vector<uint64_t>& segment_bytes);

class Pulls {
 public:
  using Done = std::function<void(const std::shared_ptr<Pull>&, FillResult)>;

  // `done` runs on a worker; on kOk the segments are the receiver's.
  Pulls(Pool& pool, unsigned threads, Done done);
  ~Pulls() { stop(); }

  // False when stopped, or `id` runs already: the caller still owns the segments.
  bool start(std::shared_ptr<Pull> pull);
  void cancel(uint64_t id);
  std::pair<uint64_t, uint64_t> progress(uint64_t id) const;  // bytes done, bytes in all; zeroes when unknown
  // Cancels everything and waits for its end; idempotent.
  void stop();

 private:
  static constexpr unsigned kStreamsMax = 64;

  // The pulls of one asker: how many are with the threads, and those that wait.
  struct Turns {
    unsigned out = 0;
    std::deque<std::shared_ptr<Pull>> waiting;
  };

  bool post(const std::shared_ptr<Pull>& pull);
  void run(const std::shared_ptr<Pull>& pull);
  void next_of(uint64_t asker);

  Pool& pool_;
  const unsigned threads_;
  const Done done_;
  mutable std::mutex m_;
  std::unordered_map<uint64_t, std::shared_ptr<Pull>> running_;
  std::unordered_map<uint64_t, Turns> turns_;
  unsigned filling_ = 0;
  bool stopped_ = false;
  Workers pullers_;
  Workers streamers_;
};

}  // namespace tc
