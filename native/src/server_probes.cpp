// Learning whether a client's memory can be read. Reading it may block as long as that memory does (a page fault
// there), so workers do it: one at a time for a process, and its client is welcomed without it once that takes long.
#include <algorithm>

#include "server_state.hpp"

namespace tc {

namespace {

constexpr auto kProbeMax = std::chrono::seconds(1);

}  // namespace

void Server::State::probe(const std::shared_ptr<Connection>& c, const Hello& hello) {
  if ((hello.flags & Hello::kNoVmRead) || !c->peer->known()) return welcome(*c);
  const pid_t pid = c->peer->pid();
  std::deque<Probe>& turns = probes[pid];
  turns.push_back({c->id, c->peer, hello.cookie_address, hello.cookie});
  unwelcomed.emplace_back(std::chrono::steady_clock::now() + kProbeMax, c->id);
  if (turns.size() == 1) probe_next(pid);
}

void Server::State::probe_next(pid_t pid) {
  const auto it = probes.find(pid);
  std::deque<Probe>& turns = it->second;
  // Whoever hung up meanwhile, or was welcomed without, needs no answer any more.
  const auto waits = [this](const Probe& probe) {
    const auto found = connections.find(probe.connection);
    return found != connections.end() && found->second->stage == Connection::Stage::kProbing;
  };
  while (!turns.empty() && !waits(turns.front())) turns.pop_front();
  const bool posted = !turns.empty() && probers.post([this, pid, probe = turns.front()] {
    probe.peer->probe(probe.cookie_address, probe.cookie);
    const std::lock_guard lock(m);
    if (const auto found = connections.find(probe.connection); found != connections.end()) welcome(*found->second);
    probes.at(pid).pop_front();
    probe_next(pid);
  });
  if (!posted) probes.erase(it);  // what waits is welcomed by its time
}

void Server::State::welcome(Connection& c) {
  if (c.stage != Connection::Stage::kProbing) return;
  c.stage = Connection::Stage::kControl;
  send(c, Welcome{c.session, c.peer->vm_read(), options.greeting}.encode());
}

int Server::State::welcome_late() {
  const std::lock_guard lock(m);
  const auto now = std::chrono::steady_clock::now();
  for (; !unwelcomed.empty(); unwelcomed.pop_front()) {
    const auto& [by, id] = unwelcomed.front();
    const auto found = connections.find(id);
    if (found == connections.end() || found->second->stage != Connection::Stage::kProbing) continue;
    if (by > now) return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(by - now).count());
    welcome(*found->second);
  }
  return -1;
}

}  // namespace tc
