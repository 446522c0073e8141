// How the local server fills segments: for a client's put, once Python accepted it, and for what Python
// opened.
#include <algorithm>
#include <numeric>

#include "server_state.hpp"
#include "tc/wait.hpp"

namespace tc {

namespace {

UnknownRequest not_pending(uint64_t request) {
  return UnknownRequest("put request " + std::to_string(request) +
                        " is not waiting to be accepted: its asker is gone, or it was accepted or answered");
}

uint64_t sum(const std::vector<uint64_t>& values) { return std::accumulate(values.begin(), values.end(), uint64_t{0}); }

void drop_all(Pool& pool, const std::vector<SegmentId>& segments) {
  for (SegmentId segment : segments) pool.drop(segment);
}

// One user more of each, or of none. Throws std::invalid_argument for one that is not sealed.
std::vector<SegmentId> hold_all(Pool& pool, const std::vector<SegmentId>& sources) {
  std::vector<SegmentId> held;
  held.reserve(sources.size());
  try {
    for (SegmentId source : sources) {
      pool.hold(source);
      held.push_back(source);
    }
  } catch (const std::logic_error& e) {
    drop_all(pool, held);
    throw std::invalid_argument("a source of a load must be a sealed segment: " + std::string(e.what()));
  }
  return held;
}

}  // namespace

std::shared_ptr<PutMessage> Server::State::begin_reserving(uint64_t request) {
  const std::lock_guard lock(m);
  const auto it = pending.find(request);
  if (it == pending.end() || it->second.kind != RequestKind::kPut || it->second.stage != Pending::Stage::kWaiting) {
    throw not_pending(request);
  }
  it->second.stage = Pending::Stage::kReserving;
  return it->second.put;
}

void Server::State::start_put(uint64_t request, const std::vector<SegmentId>& segments,
                              std::optional<std::vector<Row>> rows) {
  const std::lock_guard lock(m);
  const auto it = pending.find(request);
  if (it == pending.end()) throw not_pending(request);  // it went away while memory was reserved
  Pending& asked = it->second;
  PutMessage& put = *asked.put;
  const auto pull = std::make_shared<Pull>();
  pull->id = request;
  pull->total_bytes = sum(put.segment_bytes);
  // A process counts once however many sessions it has; one that cannot be told counts by session.
  const Peer& peer = *asked.asker->peer;
  pull->asker = peer.known() ? static_cast<uint64_t>(peer.pid()) : asked.session | 1ull << 63;
  pull->files = std::move(asked.files);
  FillJob& job = pull->job;
  for (size_t i = 0; i < put.files.size(); ++i) {
    const FileIdentity& file = put.files[i];
    job.files.push_back({pull->files[i].get(), 0, file.device, file.inode, file.size, file.mtime_ns});
  }
  job.segment_bytes = put.segment_bytes;
  job.segments = segments;
  job.pieces = std::move(put.pieces);
  job.rows = std::move(rows ? *rows : put.rows);
  job.inline_bytes = std::move(put.inline_bytes);
  job.deadline = asked.deadline;
  if (put.flags & PutMessage::kStreamed) {
    pull->stream = asked.asker;
    job.stream_fd = asked.asker->socket.get();
    pull->before = [this, c = asked.asker, number = asked.number] {
      const std::lock_guard again(m);
      send(*c, Encoder(Kind::kGo, number).finish());
    };
  } else if (std::any_of(job.pieces.begin(), job.pieces.end(),
                         [](const Piece& piece) { return piece.kind == PieceKind::kMemory; })) {
    pull->peer = asked.asker->peer;
    pull->ticket_address = put.ticket_address;
    pull->ticket = put.ticket;
    job.pid = pull->peer->pid();
    job.pidfd = pull->peer->pidfd();
  }
  if (!pulls->start(pull)) throw not_pending(request);
  asked.stage = Pending::Stage::kFilling;
}

void Server::accept_put(uint64_t request, std::optional<std::vector<Row>> rows) {
  State& s = *state_;
  const std::shared_ptr<PutMessage> put = s.begin_reserving(request);
  std::vector<SegmentId> segments;
  try {
    segments = reserve_all(s.pool, put->segment_bytes);
  } catch (...) {
    const std::lock_guard lock(s.m);
    const auto it = s.pending.find(request);
    if (it != s.pending.end()) it->second.stage = Pending::Stage::kWaiting;
    throw;
  }
  try {
    s.start_put(request, segments, std::move(rows));
  } catch (...) {
    drop_all(s.pool, segments);
    throw;
  }
}

void Server::load(uint64_t token, std::vector<uint64_t> segment_bytes, std::vector<Piece> pieces, std::vector<Row> rows,
                  const std::vector<FileSource>& files, std::string inline_bytes, const std::vector<SegmentId>& sources,
                  uint64_t deadline_ms) {
  if (token >= kFirstRequest) {
    throw std::invalid_argument("token " + std::to_string(token) + " must be below 2**32: request ids begin there");
  }
  const auto pull = std::make_shared<Pull>();
  pull->id = token;
  pull->total_bytes = sum(segment_bytes);
  std::vector<int> fds;
  for (const FileSource& file : files) fds.push_back(file.fd);
  pull->files = duplicates(fds);
  FillJob& job = pull->job;
  job.files = files;
  for (size_t i = 0; i < files.size(); ++i) job.files[i].fd = pull->files[i].get();
  job.pieces = std::move(pieces);
  job.rows = std::move(rows);
  job.inline_bytes = std::move(inline_bytes);
  job.deadline = Wait::of_ms(deadline_ms).deadline;
  Pool& pool = state_->pool;
  const std::vector<SegmentId> held = hold_all(pool, sources);
  std::vector<SegmentId> segments;
  try {
    for (SegmentId source : held) job.source_bytes.push_back(pool.place(source).nbytes);
    segments = reserve_all(pool, segment_bytes);
  } catch (...) {
    drop_all(pool, held);
    throw;
  }
  job.sources = pull->held = held;
  job.segments = segments;
  job.segment_bytes = std::move(segment_bytes);
  if (!state_->pulls->start(pull)) {
    drop_all(pool, segments);
    drop_all(pool, held);
    throw std::invalid_argument("load " + std::to_string(token) + " runs already, or the server is stopped");
  }
}

}  // namespace tc
