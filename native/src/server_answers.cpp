// What the local server tells clients, and how their requests and connections end. The lock is held.
#include <sys/epoll.h>
#include <sys/socket.h>

#include "server_state.hpp"
#include "tc/attach_answer.hpp"

namespace tc {

// Sends at once what the socket takes; the rest waits for room. An empty frame only tries again.
void Server::State::send(Connection& c, std::string frame, std::vector<int> fds) {
  if (c.doomed) return;
  unsent_bytes -= c.outbox.bytes();
  if (!frame.empty()) c.outbox.push(0, std::move(frame), std::move(fds));
  const Outbox::Flushed flushed = c.outbox.flush(c.socket.get());
  unsent_bytes += c.outbox.bytes();
  if (flushed == Outbox::Flushed::kBroken || c.outbox.bytes() > Connection::kSendBytesMax) {
    doom(c);
    return;
  }
  if (unsent_bytes > options.limits.unsent_bytes_max) doom_deafest();
  if (c.doomed) return;
  const bool wants_room = flushed == Outbox::Flushed::kBlocked;
  if (wants_room == c.wants_room) return;
  c.wants_room = wants_room;
  watch(c, EPOLL_CTL_MOD);
}

void Server::State::answer(Connection& c, uint64_t number, Status status, std::string_view body) {
  send(c, Reply{static_cast<uint32_t>(status), std::string(body)}.encode(number));
}

void Server::State::attached(Connection& c, uint64_t number, uint64_t lifeline, bool manifest_only,
                             const std::shared_ptr<Published>& entry) {
  AttachAnswer found = answer_attach(pool, *entry, manifest_only);
  entry->used_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  if (!found.borrowed.empty()) {
    if (ledger->full(c.session)) {
      answer(c, number, Status::kBadRequest,
             "this process maps " + std::to_string(Ledger::kPinsMax) +
                 " artifacts, which is the limit: release some before it attaches more");
      return;
    }
    found.message.pin = ledger->pin(c.session, lifeline, entry, std::move(found.borrowed));
    if (found.message.pin == 0) {
      answer(c, number, Status::kBadRequest, "the lifeline named by an attach is not known here: connect again");
      return;
    }
  }
  std::vector<int> fds = std::move(found.fds);
  const size_t early = fds.empty() ? 0 : (fds.size() - 1) / kMessageFdsMax * kMessageFdsMax;
  std::string frame;
  try {
    frame = found.message.encode(number, static_cast<uint16_t>(fds.size() - early));
  } catch (const std::invalid_argument& e) {
    ledger->unpin(c.session, found.message.pin);
    answer(c, number, Status::kBadRequest,
           "the artifact lies in too many places to be described: " + std::string(e.what()));
    return;
  }
  for (size_t first = 0; first < early; first += kMessageFdsMax) {
    const auto from = fds.begin() + static_cast<ptrdiff_t>(first);
    send(c, Encoder(Kind::kFds, number).finish(kMessageFdsMax), {from, from + kMessageFdsMax});
  }
  send(c, std::move(frame), {fds.begin() + static_cast<ptrdiff_t>(early), fds.end()});
}

std::unordered_map<uint64_t, Pending>::iterator Server::State::pending_attach(uint64_t request) {
  const auto it = pending.find(request);
  if (it == pending.end() || it->second.kind != RequestKind::kAttach) {
    throw UnknownRequest("attach request " + std::to_string(request) +
                         " is not pending: its asker is gone, or it was answered");
  }
  return it;
}

void Server::State::settle_attached(std::unordered_map<uint64_t, Pending>::iterator it,
                                    const std::shared_ptr<Published>& entry) {
  const std::shared_ptr<Connection> c = it->second.asker;
  const uint64_t number = it->second.number, lifeline = it->second.lifeline;
  const bool manifest_only = it->second.manifest_only;
  settle(it);
  attached(*c, number, lifeline, manifest_only, entry);
}

// While a put is under way the serving thread reads nothing more (a worker may), it only looks for a hang-up.
void Server::State::watch(Connection& c, int operation) {
  epoll_event event{};
  event.events = EPOLLRDHUP;
  if (c.stage != Connection::Stage::kPutting) event.events |= EPOLLIN;
  if (c.wants_room) event.events |= EPOLLOUT;
  event.data.u64 = c.id;
  ::epoll_ctl(epoll.get(), operation, c.socket.get(), &event);
}

// Any thread may end a connection; the serving thread then buries it.
void Server::State::doom(Connection& c) {
  c.doomed = true;
  unsent_bytes -= c.outbox.bytes();
  c.outbox.clear();
  ::shutdown(c.socket.get(), SHUT_RDWR);
}

void Server::State::bury(const std::shared_ptr<Connection>& c) {
  if (connections.erase(c->id) == 0) return;
  epoll_event none{};
  ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, c->socket.get(), &none);
  while (!c->requests.empty()) gone(pending.find(c->requests.begin()->second));
  const bool control = c->stage == Connection::Stage::kControl || c->stage == Connection::Stage::kProbing;
  if (control) {
    ledger->hung_up(c->session);
    for (uint64_t source : kept->hung_up(c->session)) owner_ended(source);
  }
  asked_bytes -= std::exchange(c->partial_bytes, 0);
  if (const auto of_uid = connections_of_uid.find(c->uid); --of_uid->second == 0) connections_of_uid.erase(of_uid);
  // A worker may hold the socket open a little longer; the client must see the end now.
  doom(*c);
}

void Server::State::settle(std::unordered_map<uint64_t, Pending>::iterator it) {
  Connection& c = *it->second.asker;
  c.requests.erase(it->second.number);
  c.request_bytes -= it->second.body_bytes;
  asked_bytes -= it->second.body_bytes;
  pending.erase(it);
}

void Server::State::gone(std::unordered_map<uint64_t, Pending>::iterator it) {
  Request request;
  request.id = it->first;
  request.session = it->second.session;
  request.kind = RequestKind::kGone;
  request.art_id = it->second.art_id;
  request.pid = it->second.asker->peer->pid();
  pulls->cancel(it->first);
  settle(it);
  events.push(std::move(request));
}

void Server::State::filled(const std::shared_ptr<Pull>& pull, FillResult result) {
  const std::lock_guard lock(m);
  FillDone done{pull->id, std::move(result), {}};
  const bool for_put = pull->id >= kFirstRequest;
  const auto asked = pending.find(pull->id);
  if (done.result.status == FillStatus::kOk) {
    if (!for_put || asked != pending.end()) {
      done.segments = pull->job.segments;
    } else {
      for (SegmentId segment : pull->job.segments) pool.drop(segment);
      done.result.status = FillStatus::kCancelled;
      done.result.detail = "the asker hung up as the fill ended";
    }
  }
  const bool refused = done.result.status == FillStatus::kGone && pull->peer && pull->peer->alive();
  events.push(std::move(done));
  if (!refused || asked == pending.end()) return;
  // The kernel no longer lets us read this client: from here on it streams, beginning with this put.
  pull->peer->refuse_vm_read();
  const std::shared_ptr<Connection> c = asked->second.asker;
  const uint64_t number = asked->second.number;
  gone(asked);
  answer(*c, number, Status::kStream, {});
}

}  // namespace tc
