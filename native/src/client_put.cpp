// The client's put: one connection of its own, from its message to its answer.
#include "tc/client.hpp"

namespace tc {

namespace {

// The descriptors of a put's files, in messages of at most 250; the last ones go with the PUT itself.
std::vector<int> send_most_files(Talk& talk, const PutOrder& order, const Wait& wait) {
  std::vector<int> fds;
  for (const FileSource& file : order.files) {
    if (fds.size() == kMessageFdsMax) {
      talk.send(Encoder(Kind::kFds, 1).finish(kMessageFdsMax), fds, wait);
      fds.clear();
    }
    fds.push_back(file.fd);
  }
  return fds;
}

std::string message_of(const PutOrder& order, const Ticket& ticket, const Wait& wait, bool streamed) {
  PutMessage put;
  put.budget_ms = wait.left_ms();
  put.flags = streamed ? PutMessage::kStreamed : 0;
  put.ticket_address = ticket.address();
  put.ticket = ticket.cookie();
  put.art_id = order.art_id;
  put.draft = order.draft;
  put.segment_bytes = order.segment_bytes;
  put.pieces = order.pieces;
  put.rows = order.rows;
  put.inline_bytes = order.inline_bytes;
  for (const FileSource& file : order.files) {
    put.files.push_back({file.device, file.inode, file.size, file.mtime_ns});
  }
  const size_t last_fds = order.files.empty() ? 0 : (order.files.size() - 1) % kMessageFdsMax + 1;
  return put.encode(1, static_cast<uint16_t>(last_fds));
}

void stream(Talk& talk, const PutOrder& order, const Wait& wait) {
  for (const Piece& piece : order.pieces) {
    if (piece.kind == PieceKind::kMemory && !talk.send_bytes(piece.src, piece.nbytes, wait)) return;
  }
}

}  // namespace

Client::Answered Client::put(const PutOrder& order, const Wait& wait) {
  if (!link_->in_own_process()) {
    throw PeerGone("this client of " + path_ + " belongs to the parent process: a forked child makes its own");
  }
  if (!link_->alive()) throw PeerGone(hung_up(path_));
  if (order.art_id.size() > kArtIdBytesMax || order.segment_bytes.size() > kPutSegmentsMax ||
      order.files.size() > kPutFilesMax) {
    throw std::invalid_argument("a put has an id of at most 4096 bytes, 4096 segments and 4096 files: split " +
                                order.art_id.substr(0, 64));
  }
  if (vm_read_) {
    Answered answered = put_once(order, wait, false);
    if (answered.first != static_cast<uint32_t>(Status::kStream)) return answered;
    vm_read_ = false;  // the kernel does not let the storage read this process (any more)
  }
  return put_once(order, wait, true);
}

// Leaving early, by whatever exception, closes the connection, and that cancels the put at the storage.
Client::Answered Client::put_once(const PutOrder& order, const Wait& wait, bool streamed) {
  const Ticket call;  // over with this call
  const Ticket& ticket = order.ticket ? *order.ticket : call;
  std::string message = message_of(order, ticket, wait, streamed);
  Talk talk(path_, wait);
  Hello hello;
  hello.pid = static_cast<uint32_t>(pid_);
  hello.flags = Hello::kForPut;
  hello.session = session_;
  talk.send(hello.encode(), {}, wait);
  const std::vector<int> fds = send_most_files(talk, order, wait);
  talk.send(std::move(message), fds, wait);
  for (;;) {
    Frame frame = talk.receive(wait);
    switch (frame.kind()) {
      case Kind::kWelcome:
        break;
      case Kind::kGo:
        if (streamed) stream(talk, order, wait);
        break;
      case Kind::kReply: {
        std::optional<Reply> reply = Reply::decode(frame.body);
        if (reply) return {reply->status, std::move(reply->body)};
        [[fallthrough]];
      }
      default:
        throw PeerGone("what answers at " + path_ + " makes no sense: a message of kind " +
                       std::to_string(frame.header.kind) + " came for a put");
    }
  }
}

}  // namespace tc
