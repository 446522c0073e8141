// What all clients together may hold of the local server, and who must go when it is more.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>

#include "server_state.hpp"

namespace tc {

namespace {

uid_t uid_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 ? credentials.uid : uid_t(-1);
}

uint64_t asked_of(const Connection& c) { return c.partial_bytes + c.request_bytes; }

// The connection of which `measure` gives most; there is one.
template <typename Measure>
std::shared_ptr<Connection> largest(const std::unordered_map<uint64_t, std::shared_ptr<Connection>>& connections,
                                    const Measure& measure) {
  return std::max_element(connections.begin(), connections.end(),
                          [&](const auto& a, const auto& b) { return measure(*a.second) < measure(*b.second); })
      ->second;
}

}  // namespace

void Server::State::take_in(const std::shared_ptr<Connection>& c) {
  c->uid = uid_of(c->socket.get());
  connections.emplace(c->id, c);
  watch(*c, EPOLL_CTL_ADD);
  if (++connections_of_uid[c->uid] <= options.limits.connections_of_uid_max) return;
  answer(*c, 0, Status::kBadRequest,
         "user " + std::to_string(c->uid) + " has " + std::to_string(options.limits.connections_of_uid_max) +
             " connections to this storage, which is the limit: close some");
  bury(c);
}

bool Server::State::keeps_asked(const std::shared_ptr<Connection>& c) {
  const std::lock_guard lock(m);
  if (!connections.contains(c->id)) return false;
  asked_bytes -= c->partial_bytes;
  c->partial_bytes = c->reader.held_bytes();
  asked_bytes += c->partial_bytes;
  while (asked_bytes > options.limits.asked_bytes_max) {
    const std::shared_ptr<Connection> most = largest(connections, asked_of);
    answer(*most, 0, Status::kBadRequest,
           "the storage holds " + std::to_string(asked_bytes) + " bytes of messages, which is over its limit, and " +
               std::to_string(asked_of(*most)) + " of them, the most, are of this connection: send less at once");
    bury(most);
    if (most == c) return false;
  }
  return true;
}

void Server::State::doom_deafest() {
  while (unsent_bytes > options.limits.unsent_bytes_max)
    doom(*largest(connections, [](const Connection& c) { return c.outbox.bytes(); }));
}

}  // namespace tc
