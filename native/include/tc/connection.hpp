// One accepted connection, as the server sees it. The serving thread alone reads from it; everything else is
// under the server's lock. The socket closes with the last holder: a worker may still read a put's bytes from
// it.
#pragma once
#include <sys/types.h>

#include <map>
#include <memory>

#include "tc/fd.hpp"
#include "tc/frame.hpp"
#include "tc/outbox.hpp"
#include "tc/peer.hpp"

namespace tc {

struct Connection {
  static constexpr uint64_t kSendBytesMax = 160u << 20;     // waiting for a client that does not read
  static constexpr uint64_t kRequestsMax = 1024;            // asked and not answered
  static constexpr uint64_t kRequestBytesMax = 256u << 20;  // of their bodies

  // kNew -> (kProbing ->) kControl, or kNew -> kData -> kPutting, where no more frames are read.
  enum class Stage { kNew, kProbing, kControl, kData, kPutting };

  Connection(uint64_t id_, Fd socket_) : id(id_), socket(std::move(socket_)), reader(body_limit) {}

  // The largest body that a client may send, by kind.
  static uint32_t body_limit(Kind kind);

  const uint64_t id;
  const Fd socket;
  FrameReader reader;
  Stage stage = Stage::kNew;
  bool doomed = false;      // hung up on by this side; the serving thread buries it
  bool wants_room = false;  // EPOLLOUT is armed
  uint64_t session = 0;
  std::shared_ptr<Peer> peer;
  Outbox outbox;
  std::map<uint64_t, uint64_t> requests;  // the client's number -> the server's id
  uint64_t request_bytes = 0;
  uint64_t partial_bytes = 0;  // of a message that is half received
  uid_t uid = 0;               // as the kernel saw it connect
  std::vector<Fd> files;       // came in FDS frames, for the PUT that follows
};

}  // namespace tc
