#include "tc/pulls.hpp"

#include <algorithm>
#include <cerrno>

namespace tc {

std::vector<SegmentId> reserve_all(Pool& pool, const std::vector<uint64_t>& segment_bytes) {
  std::vector<SegmentId> segments;
  segments.reserve(segment_bytes.size());
  try {
    for (uint64_t nbytes : segment_bytes) segments.push_back(pool.reserve(nbytes));
  } catch (...) {
    for (SegmentId segment : segments) pool.drop(segment);
    throw;
  }
  return segments;
}

Pulls::Pulls(Pool& pool, unsigned threads, Done done)
    : pool_(pool),
      threads_(std::max(threads, 1u)),
      done_(std::move(done)),
      pullers_(threads_),
      streamers_(kStreamsMax) {}

bool Pulls::start(std::shared_ptr<Pull> pull) {
  const std::lock_guard lock(m_);
  if (stopped_ || !running_.emplace(pull->id, pull).second) return false;
  if (post(pull)) return true;
  running_.erase(pull->id);
  return false;
}

bool Pulls::post(const std::shared_ptr<Pull>& pull) {
  if (pull->stream) return streamers_.post([this, pull] { run(pull); });
  Turns& turns = turns_[pull->asker];
  if (turns.out >= std::max(threads_ - 1, 1u)) {
    turns.waiting.push_back(pull);
    return true;
  }
  ++turns.out;
  if (pullers_.post([this, pull] { run(pull); })) return true;
  if (--turns.out == 0) turns_.erase(pull->asker);
  return false;
}

// A turn has ended: the thread that had it takes the asker's next, behind what others wait for.
void Pulls::next_of(uint64_t asker) {
  const auto it = turns_.find(asker);
  Turns& turns = it->second;
  if (turns.waiting.empty()) {
    if (--turns.out == 0) turns_.erase(it);
    return;
  }
  const std::shared_ptr<Pull> next = std::move(turns.waiting.front());
  turns.waiting.pop_front();
  pullers_.post_last([this, next] { run(next); });
}

void Pulls::run(const std::shared_ptr<Pull>& pull) {
  unsigned threads;
  {
    // A lone fill may use all threads, many share them.
    const std::lock_guard lock(m_);
    threads = std::max(1u, threads_ / ++filling_);
  }
  if (pull->before) pull->before();
  FillResult result;
  try {
    result = fill(pool_, pull->job, threads);
  } catch (const std::exception& e) {  // out of memory, or of threads
    result.status = FillStatus::kSourceError;
    result.error = ENOMEM;
    result.detail = e.what();
  }
  // The caller of a put takes its ticket away before it gives up waiting and may reuse its memory. So a
  // ticket that is there after the last read proves that every read saw what the caller meant.
  if (result.status == FillStatus::kOk && pull->peer && !pull->peer->holds(pull->ticket_address, pull->ticket)) {
    result.status = pull->kept ? FillStatus::kGone : FillStatus::kCancelled;
    result.detail = pull->kept ? "the owner of this memory has ended, or took its leave to read it back"
                               : "the caller stopped waiting while its memory was read";
  }
  {
    const std::lock_guard lock(m_);
    if (result.status == FillStatus::kOk && pull->job.cancelled) {
      result.status = FillStatus::kCancelled;
      result.detail = "cancelled as it ended";
    }
    running_.erase(pull->id);
    --filling_;
    if (!pull->stream) next_of(pull->asker);
  }
  if (result.status != FillStatus::kOk) {
    for (SegmentId segment : pull->job.segments) pool_.drop(segment);
  }
  for (SegmentId source : std::exchange(pull->held, {})) pool_.drop(source);
  pull->files.clear();
  done_(pull, std::move(result));
}

void Pulls::cancel(uint64_t id) {
  const std::lock_guard lock(m_);
  const auto it = running_.find(id);
  if (it != running_.end()) it->second->job.cancelled = true;
}

std::pair<uint64_t, uint64_t> Pulls::progress(uint64_t id) const {
  const std::lock_guard lock(m_);
  const auto it = running_.find(id);
  if (it == running_.end()) return {0, 0};
  return {it->second->job.done_bytes.load(), it->second->total_bytes};
}

void Pulls::stop() {
  {
    const std::lock_guard lock(m_);
    stopped_ = true;
    for (const auto& [id, pull] : running_) pull->job.cancelled = true;
  }
  pullers_.stop();
  streamers_.stop();
}

}  // namespace tc
