// One thread talking to a storage over one connection: what a client does at its greeting, and for a put,
// which has a connection of its own, so that its bytes never delay an attach and closing it takes the put
// back.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tc/frame.hpp"
#include "tc/lifeline.hpp"
#include "tc/outbox.hpp"
#include "tc/socket.hpp"

namespace tc {

class Talk {
 public:
  // Connects. Throws as connect_to does.
  Talk(std::string path, const Wait& wait);

  // Puts a frame into the socket, whole. A connection that breaks is left for receive() to explain.
  void send(std::string frame, const std::vector<int>& fds, const Wait& wait);
  // Sends raw bytes of this process. False when the storage said something, or hung up, before it took them
  // all.
  bool send_bytes(uint64_t address, uint64_t nbytes, const Wait& wait);
  // The next frame. Throws PeerGone, WaitedTooLong("answer"); a refusal of the connection itself is PeerGone
  // too.
  Frame receive(const Wait& wait);

  const std::shared_ptr<OwnFd>& socket() const { return socket_; }

 private:
  const std::string path_;
  std::shared_ptr<OwnFd> socket_;
  FrameReader reader_;
};

// The largest body of any answer.
uint32_t answer_body_limit(Kind kind);
// What to throw for anything but a frame (got is not kFrame, not kNothing).
PeerGone talk_over(const std::string& path, Got got, const FrameReader& reader);

}  // namespace tc
