// Sending: frames that wait for room in a socket. Nothing here blocks and nothing here locks; the owner does.
// A frame that has begun is always finished, so that the next one starts at a frame's edge.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace tc {

class Outbox {
 public:
  enum class Flushed { kAll, kBlocked, kBroken };

  // `fds` must stay open until the frame's first byte is sent; `keep` is held that long. `tag` names the
  // frame.
  void push(uint64_t tag, std::string frame, std::vector<int> fds = {}, std::shared_ptr<void> keep = {});
  Flushed flush(int socket);
  void clear();  // for a socket that is shut down: frames may be cut
  bool empty() const { return waiting_.empty(); }
  bool holds(uint64_t tag) const;
  // Takes back a frame of which no byte was sent. False when it is gone or has begun.
  bool take_back(uint64_t tag);
  uint64_t bytes() const { return bytes_; }

 private:
  struct Waiting {
    uint64_t tag;
    std::string frame;
    std::vector<int> fds;
    std::shared_ptr<void> keep;
    size_t sent = 0;
  };

  std::deque<Waiting> waiting_;
  uint64_t bytes_ = 0;
};

}  // namespace tc
