// What clients say to the local server. Called by the serving thread with the lock held.
#include <sys/epoll.h>

#include <algorithm>

#include "server_state.hpp"
#include "tc/wait.hpp"

namespace tc {

using Stage = Connection::Stage;

namespace {

// The read end of its pipe, and its page. A client may do without the page, at its own risk.
bool is_lifeline(const Frame& frame) { return frame.fds.size() == 1 || frame.fds.size() == 2; }

Fd page_of(Frame& frame) { return frame.fds.size() == 2 ? std::move(frame.fds[1]) : Fd(); }

}  // namespace

bool Server::State::on_frame(const std::shared_ptr<Connection>& c, Frame frame, std::string& why) {
  why = "a message of kind " + std::to_string(frame.header.kind) + " is not due here, or is malformed";
  switch (c->stage) {
    case Stage::kNew:
      return frame.kind() == Kind::kHello && on_hello(c, frame, why);
    case Stage::kControl:
      return on_control(c, frame, why);
    case Stage::kData:
      if (frame.kind() == Kind::kFds) {
        std::move(frame.fds.begin(), frame.fds.end(), std::back_inserter(c->files));
        return c->files.size() <= kPutFilesMax;
      }
      return frame.kind() == Kind::kPut && on_put(c, frame, why);
    case Stage::kProbing:
    case Stage::kPutting:
      break;
  }
  return false;
}

bool Server::State::on_hello(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why) {
  const std::optional<Hello> hello = Hello::decode(frame.body);
  if (!hello) return false;
  c->peer = Peer::identify(c->socket.get(), static_cast<pid_t>(hello->pid));
  if (hello->flags & Hello::kForPut) return on_put_hello(c, *hello, why);
  if (!is_lifeline(frame)) return false;
  c->session = ledger->open_session(c->peer);
  c->stage = Stage::kProbing;
  if (!ledger->add_lifeline(c->session, 1, std::move(frame.fds[0]), page_of(frame))) {
    why = "the lifeline must be the read end of a pipe";
    return false;
  }
  probe(c, *hello);
  return true;
}

bool Server::State::on_put_hello(const std::shared_ptr<Connection>& c, const Hello& hello, std::string& why) {
  const std::shared_ptr<Peer> owner = ledger->peer_of(hello.session);
  // A pid that is only claimed must not open the way to the memory of the process that has it.
  if (!owner || owner->known() != c->peer->known() || owner->pid() != c->peer->pid()) {
    why = "session " + std::to_string(hello.session) + " is over, or not this process's: connect again";
    return false;
  }
  c->session = hello.session;
  c->peer = owner;
  c->stage = Stage::kData;
  send(*c, Welcome{c->session, owner->vm_read(), {}}.encode());
  return true;
}

bool Server::State::on_control(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why) {
  switch (frame.kind()) {
    case Kind::kAttach:
      return on_attach(c, frame, why);
    case Kind::kCall:
      return on_call(c, frame, why);
    case Kind::kUnpin:
      return on_unpin(c, frame);
    case Kind::kCancel:
      on_cancel(c, frame.header.request);
      return true;
    case Kind::kLifeline:
      why = "the lifeline was refused: no read end of a pipe, a number in use, or too many of them";
      return is_lifeline(frame) &&
             ledger->add_lifeline(c->session, frame.header.request, std::move(frame.fds[0]), page_of(frame));
    default:
      return false;
  }
}

bool Server::State::on_attach(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why) {
  std::optional<AttachMessage> attach = AttachMessage::decode(frame.body);
  if (!attach) return false;
  const bool manifest_only = attach->flags & AttachMessage::kManifestOnly;
  if (const auto entry = catalog->find(attach->art_id)) {
    attached(*c, frame.header.request, attach->lifeline, manifest_only, entry);
    return true;
  }
  Pending wanted;
  wanted.kind = RequestKind::kAttach;
  wanted.number = frame.header.request;
  wanted.art_id = attach->art_id;
  wanted.lifeline = attach->lifeline;
  wanted.manifest_only = manifest_only;
  wanted.body_bytes = attach->body.size();
  Request request;
  request.kind = RequestKind::kAttach;
  request.art_id = std::move(attach->art_id);
  request.body = std::move(attach->body);
  request.manifest_only = manifest_only;
  request.budget_ms = attach->budget_ms;
  return admit(c, std::move(wanted), std::move(request), why);
}

bool Server::State::on_call(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why) {
  std::optional<CallMessage> call = CallMessage::decode(frame.body);
  if (!call) return false;
  Pending wanted;
  wanted.number = frame.header.request;
  wanted.body_bytes = call->body.size();
  Request request;
  request.body = std::move(call->body);
  request.budget_ms = call->budget_ms;
  return admit(c, std::move(wanted), std::move(request), why);
}

bool Server::State::on_unpin(const std::shared_ptr<Connection>& c, const Frame& frame) {
  Decoder in(frame.body);
  const std::vector<uint64_t> pins = in.array<uint64_t>();
  if (!in.done()) return false;
  for (uint64_t pin : pins) ledger->unpin(c->session, pin);
  return true;
}

void Server::State::on_cancel(const std::shared_ptr<Connection>& c, uint64_t number) {
  const auto known = c->requests.find(number);
  if (known == c->requests.end()) return;  // answered already; the client knows what to do with a late answer
  gone(pending.find(known->second));
  answer(*c, number, Status::kBadRequest, "cancelled by its caller");
}

bool Server::State::on_put(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why) {
  std::optional<PutMessage> message = PutMessage::decode(frame.body);
  if (!message) return false;
  std::move(frame.fds.begin(), frame.fds.end(), std::back_inserter(c->files));
  if (c->files.size() != message->files.size()) {
    why = "a put names " + std::to_string(message->files.size()) + " files but brought " +
          std::to_string(c->files.size());
    return false;
  }
  c->stage = Stage::kPutting;
  watch(*c, EPOLL_CTL_MOD);
  const auto is = [&](PieceKind kind) {
    return std::any_of(message->pieces.begin(), message->pieces.end(),
                       [kind](const Piece& p) { return p.kind == kind; });
  };
  const bool streamed = message->flags & PutMessage::kStreamed;
  if (is(PieceKind::kMemory) && !streamed && !c->peer->vm_read()) {
    answer(*c, frame.header.request, Status::kStream, {});
    return true;
  }
  Request request;
  request.kind = RequestKind::kPut;
  request.art_id = message->art_id;
  request.body = std::move(message->draft);
  request.files = message->files;
  // The storage compares a plan over files with its draft, and cuts views of registered memory by its pieces.
  if (!streamed) request.pieces = message->pieces;
  request.segment_bytes = message->segment_bytes;
  request.source = is(PieceKind::kMemory) && !streamed ? "vm_read"
                   : is(PieceKind::kFile) && !streamed ? "file"
                                                       : "socket";
  request.budget_ms = message->budget_ms;
  Pending wanted;
  wanted.kind = RequestKind::kPut;
  wanted.number = frame.header.request;
  wanted.art_id = message->art_id;
  wanted.body_bytes = frame.body.size();
  wanted.files = std::move(c->files);
  wanted.deadline = Wait::of_ms(message->budget_ms).deadline;
  wanted.put = std::make_shared<PutMessage>(std::move(*message));
  return admit(c, std::move(wanted), std::move(request), why);
}

bool Server::State::admit(const std::shared_ptr<Connection>& c, Pending wanted, Request request, std::string& why) {
  if (c->requests.size() >= Connection::kRequestsMax ||
      c->request_bytes + wanted.body_bytes > Connection::kRequestBytesMax) {
    answer(*c, wanted.number, Status::kBadRequest,
           "this process has " + std::to_string(c->requests.size()) + " requests of " +
               std::to_string(c->request_bytes) + " bytes waiting at the storage, which is the limit: wait for some");
    return true;
  }
  const uint64_t id = next_request++;
  if (!c->requests.emplace(wanted.number, id).second) {
    why = "request number " + std::to_string(wanted.number) + " is in use";
    return false;
  }
  c->request_bytes += wanted.body_bytes;
  asked_bytes += wanted.body_bytes;
  request.id = id;
  request.session = wanted.session = c->session;
  request.pid = c->peer->pid();
  wanted.asker = c;
  pending.emplace(id, std::move(wanted));
  events.push(std::move(request));
  return true;
}

}  // namespace tc
