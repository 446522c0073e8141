// The local server's registrations: what it keeps of a put, and loads from there.
#include <stdexcept>

#include "server_state.hpp"
#include "tc/wait.hpp"

namespace tc {

uint64_t Server::keep(uint64_t request) {
  State& s = *state_;
  const std::lock_guard lock(s.m);
  const auto it = s.pending.find(request);
  if (it == s.pending.end() || it->second.kind != RequestKind::kPut || it->second.stage != Pending::Stage::kWaiting) {
    throw UnknownRequest("put request " + std::to_string(request) +
                         " is not waiting to be kept: its asker is gone, or it was accepted or answered");
  }
  const Pending& asked = it->second;
  std::vector<int> fds;
  for (const Fd& file : asked.files) fds.push_back(file.get());
  const uint64_t source = s.kept->keep(*asked.put, duplicates(fds), asked.asker->peer, asked.session);
  // Without a pidfd the session's end stands for the process's, and it may have come already.
  if (!s.kept->watched(source) && !s.ledger->connected(asked.session)) {
    for (uint64_t ended : s.kept->hung_up(asked.session)) s.owner_ended(ended);
  }
  return source;
}

void Server::load_kept(uint64_t token, uint64_t source, std::vector<Row> rows, std::optional<KeptPlan> plan,
                       uint64_t deadline_ms) {
  State& s = *state_;
  if (token >= kFirstRequest) {
    throw std::invalid_argument("token " + std::to_string(token) + " must be below 2**32: request ids begin there");
  }
  std::shared_ptr<Pull> pull;
  {
    const std::lock_guard lock(s.m);
    pull = s.kept->pull(source, std::move(plan));
  }
  if (!pull) throw UnknownRequest("source " + std::to_string(source) + " is not kept (any more)");
  pull->id = token;
  FillJob& job = pull->job;
  job.rows = std::move(rows);
  job.deadline = Wait::of_ms(deadline_ms).deadline;
  job.segments = reserve_all(s.pool, job.segment_bytes);
  const std::vector<SegmentId> segments = job.segments;
  if (!s.pulls->start(pull)) {
    for (SegmentId segment : segments) s.pool.drop(segment);
    throw std::invalid_argument("load " + std::to_string(token) + " runs already, or the server is stopped");
  }
}

void Server::let_go(uint64_t source) {
  const std::lock_guard lock(state_->m);
  state_->kept->let_go(source);
  state_->events.forget_death(source);
}

// The process behind a kept source has ended; Python decides what that means.
void Server::State::owner_ended(uint64_t source) {
  Request request;
  request.id = source;
  request.kind = RequestKind::kDied;
  request.pid = kept->pid(source);
  events.push(std::move(request));
}

}  // namespace tc
