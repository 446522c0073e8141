#include "tc/fill.hpp"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>

#include "tc/crew.hpp"
#include "tc/extents.hpp"
#include "tc/file_reader.hpp"
#include "tc/fill_plan.hpp"
#include "tc/memory_reader.hpp"
#include "tc/row_digests.hpp"
#include "tc/segment_view.hpp"

namespace tc {
namespace {

// Marks the job's segments as being written, so that a drop meanwhile cannot hand their memory to somebody
// else.
class WriteHold {
 public:
  explicit WriteHold(Pool& pool) : pool_(pool) {}
  ~WriteHold() {
    for (const SegmentId id : held_) pool_.end_write(id);
  }
  WriteHold(const WriteHold&) = delete;
  WriteHold& operator=(const WriteHold&) = delete;

  bool take(SegmentId id) {  // whether its memory is faulted in
    held_.reserve(held_.size() + 1);
    const bool faulted = pool_.begin_write(id);
    held_.push_back(id);
    return faulted;
  }

 private:
  Pool& pool_;
  std::vector<SegmentId> held_;
};

class Filling {
 public:
  Filling(Pool& pool, FillJob& job, unsigned threads)
      : pool_(pool), job_(job), threads_(std::max(1u, threads)), hold_(pool) {}

  void run(FillResult& result);

 private:
  void open_segments();
  void open_sources();
  void open_files();
  void watch_writers();
  void check_sources() const;
  void run_tasks(const Work& work);
  void confirm_unproven(const Work& work);
  void move(std::span<const Fragment> fragments, RowDigests::Streak& streak);
  void step(std::span<const Fragment> fragments, RowDigests::Streak& streak);
  void fetch(std::span<const Fragment> fragments);
  void fault_in(const Fragment& first, uint64_t nbytes) const;
  void seal();

  Pool& pool_;
  FillJob& job_;
  const unsigned threads_;
  WriteHold hold_;
  std::vector<SegmentView> views_;
  std::vector<SegmentView> source_views_;
  std::vector<bool> faulted_;
  std::deque<FileReader> files_;
  std::atomic<size_t> next_look_{0};
  MemoryReader memory_{job_.pid, job_.pidfd};
  StreamReader stream_{job_.stream_fd, job_.pidfd};
  bool reads_memory_ = false;
  std::optional<RowDigests> digests_;
  Crew crew_{job_.deadline, &job_.cancelled};
};

void Filling::run(FillResult& result) {
  check_plan(job_);
  crew_.check();
  open_segments();
  open_sources();
  open_files();
  watch_writers();
  digests_.emplace(job_.rows);
  check_sources();
  std::vector<bool> from_disk;
  for (const FileReader& file : files_) from_disk.push_back(file.from_disk());
  const Work from_sources = work_from_sources(job_, views_, from_disk);
  run_tasks(from_sources);
  confirm_unproven(from_sources);
  check_sources();
  run_tasks(work_between_segments(job_, views_));
  crew_.check();
  seal();
  for (const Piece& piece : job_.pieces) {
    result.bytes_moved += piece.nbytes;
    if (piece.kind == PieceKind::kSegment) result.bytes_copied += piece.nbytes;
  }
  result.digests = digests_->take();
  for (const FileReader& file : files_) result.direct = result.direct || file.was_direct();
}

void Filling::open_segments() {
  const auto refuse = [](const std::string& why) { throw Trouble{FillStatus::kBadPlan, 0, why}; };
  if (std::set<SegmentId>(job_.segments.begin(), job_.segments.end()).size() != job_.segments.size())
    refuse("a segment is named twice");
  for (size_t i = 0; i < job_.segments.size(); ++i) {
    try {
      faulted_.push_back(hold_.take(job_.segments[i]));
    } catch (const std::logic_error& error) {  // unknown, or not reserved
      refuse(error.what());
    }
    views_.emplace_back(pool_, job_.segments[i]);
    if (views_.back().nbytes() != job_.segment_bytes[i])
      refuse("segment " + std::to_string(job_.segments[i]) + " has " + std::to_string(views_.back().nbytes()) +
             " bytes, the plan says " + std::to_string(job_.segment_bytes[i]));
  }
}

void Filling::open_sources() {
  for (size_t i = 0; i < job_.sources.size(); ++i) {
    const SegmentId id = job_.sources[i];
    if (!pool_.sealed(id))
      throw Trouble{FillStatus::kBadPlan, 0, "source segment " + std::to_string(id) + " is not sealed"};
    source_views_.emplace_back(pool_, id);
    if (source_views_.back().nbytes() != job_.source_bytes[i])
      throw Trouble{FillStatus::kBadPlan, 0,
                    "source segment " + std::to_string(id) + " has " + std::to_string(source_views_.back().nbytes()) +
                        " bytes, the plan says " + std::to_string(job_.source_bytes[i])};
  }
}

void Filling::open_files() {
  std::vector<std::pair<uint64_t, uint64_t>> parts(job_.files.size(), {UINT64_MAX, 0});  // from, to
  for (const Piece& piece : job_.pieces) {
    if (piece.kind == PieceKind::kMemory && piece.nbytes > 0 && job_.stream_fd < 0) reads_memory_ = true;
    if (piece.kind != PieceKind::kFile) continue;
    auto& [from, to] = parts[piece.src_index];
    from = std::min(from, piece.src);
    to = std::max(to, piece.src + piece.nbytes);
  }
  for (uint32_t i = 0; i < job_.files.size(); ++i) {
    FileReader& file = files_.emplace_back(job_.files[i], i);
    file.check_identity();
    if (parts[i].first < parts[i].second) file.prepare(parts[i].first, parts[i].second - parts[i].first);
  }
}

// Whoever wants to write a file waits for this reader: give up soon, not after the last byte. One file a look.
void Filling::watch_writers() {
  if (files_.empty()) return;
  crew_.watch([this] { files_[next_look_.fetch_add(1, std::memory_order_relaxed) % files_.size()].check_writers(); });
}

// Before the first byte and after the last: only bytes from between two good answers are theirs.
void Filling::check_sources() const {
  for (const FileReader& file : files_) file.check_identity();
  if (reads_memory_) memory_.check_alive();
}

// Where no lease is to be had: the identity of a file written a moment ago stays the same while a long write goes on.
// A second look finds what moved meanwhile; it costs one pass over bytes that are still in the page cache.
void Filling::confirm_unproven(const Work& work) {
  if (std::none_of(files_.begin(), files_.end(), [](const FileReader& file) { return file.needs_confirming(); }))
    return;
  crew_.run(work.units.size(), threads_, [&](size_t number) {
    const Unit& unit = work.units[number];
    for (const Fragment& fragment : std::span(work.fragments).subspan(unit.first, unit.count)) {
      if (fragment.kind != PieceKind::kFile || !files_[fragment.src_index].needs_confirming()) continue;
      files_[fragment.src_index].confirm(fragment.src, fragment.to, crew_);
    }
  });
}

void Filling::run_tasks(const Work& work) {
  crew_.run(work.tasks.size(), threads_, [&](size_t number) {
    const Task& task = work.tasks[number];
    RowDigests::Streak streak;
    for (size_t i = task.first; i < task.first + task.count; ++i) {
      const Unit& unit = work.units[i];
      move({&work.fragments[unit.first], unit.count}, streak);
    }
  });
}

// Cuts a unit in steps. A disk gets the unit in one request: its bytes are in no cache to be digested hot.
void Filling::move(std::span<const Fragment> fragments, RowDigests::Streak& streak) {
  const Fragment& front = fragments.front();
  const bool from_disk = front.kind == PieceKind::kFile && files_[front.src_index].from_disk();
  const uint64_t step_bytes_max = from_disk ? kUnitBytesMax : kStepBytesMax;
  std::vector<Fragment> parts;
  uint64_t parts_bytes = 0;
  for (const Fragment& fragment : fragments) {
    for (uint64_t done = 0; done < fragment.to.size();) {
      const uint64_t nbytes = std::min(step_bytes_max - parts_bytes, fragment.to.size() - done);
      parts.push_back(fragment);
      parts.back().dst += done;
      parts.back().src += done;
      parts.back().to = fragment.to.subspan(done, nbytes);
      done += nbytes;
      parts_bytes += nbytes;
      if (parts_bytes < step_bytes_max) continue;
      step(parts, streak);
      parts.clear();
      parts_bytes = 0;
    }
  }
  if (!parts.empty()) step(parts, streak);
}

// Neighbouring fragments count as one stretch: a hundred thousand small tensors cost a few calls, not one
// each.
void Filling::step(std::span<const Fragment> fragments, RowDigests::Streak& streak) {
  const auto each_stretch = [&](const auto& act) {
    for (size_t i = 0; i < fragments.size();) {
      const Fragment& first = fragments[i];
      uint64_t nbytes = 0;
      for (; i < fragments.size() && fragments[i].segment == first.segment && fragments[i].dst == first.dst + nbytes &&
             fragments[i].to.data() == first.to.data() + nbytes;
           ++i)
        nbytes += fragments[i].to.size();
      act(first, nbytes);
    }
  };
  each_stretch([&](const Fragment& first, uint64_t nbytes) { fault_in(first, nbytes); });
  fetch(fragments);
  const auto locate = [&](uint32_t segment, uint64_t offset, uint64_t nbytes, Spans& spans) {
    while (nbytes > 0) {
      const auto part = views_[segment].at(offset, nbytes);
      spans.push_back(part);
      offset += part.size();
      nbytes -= part.size();
    }
  };
  each_stretch([&](const Fragment& first, uint64_t nbytes) {
    digests_->arrived(first.segment, first.dst, first.dst + nbytes, locate, streak);
    job_.done_bytes.fetch_add(nbytes, std::memory_order_relaxed);
  });
}

void Filling::fetch(std::span<const Fragment> fragments) {
  switch (fragments.front().kind) {
    case PieceKind::kInline:
      for (const Fragment& fragment : fragments)
        std::memcpy(fragment.to.data(), job_.inline_bytes.data() + fragment.src, fragment.to.size());
      return;
    case PieceKind::kMemory:
      if (job_.stream_fd >= 0) return stream_.read(fragments, crew_);
      return memory_.read(fragments, crew_);
    case PieceKind::kFile:
      for (const Fragment& fragment : fragments) files_[fragment.src_index].read(fragment.src, fragment.to, crew_);
      return;
    case PieceKind::kSegment:
      for (const Fragment& fragment : fragments) views_[fragment.src_index].read(fragment.src, fragment.to);
      return;
    case PieceKind::kPool:
      for (const Fragment& fragment : fragments) source_views_[fragment.src_index].read(fragment.src, fragment.to);
      return;
  }
}

// Asking for the pages first turns a lack of memory into an error here; touching them would raise SIGBUS.
void Filling::fault_in(const Fragment& first, uint64_t nbytes) const {
  if (faulted_[first.segment]) return;
  static const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t before = reinterpret_cast<uintptr_t>(first.to.data()) % page_bytes;
  const uint64_t pages = (before + nbytes + page_bytes - 1) / page_bytes;
  const int error = populate(first.to.data() - before, pages * page_bytes);
  if (error != 0)
    throw Trouble{FillStatus::kSourceError, error,
                  "pool memory for segment " + std::to_string(job_.segments[first.segment]) +
                      " could not be faulted in: " + std::strerror(error)};
}

void Filling::seal() {
  try {
    for (size_t i = 0; i < job_.segments.size(); ++i) {
      if (!faulted_[i]) pool_.mark_faulted(job_.segments[i]);
      pool_.seal(job_.segments[i]);
    }
  } catch (const std::logic_error& error) {
    throw Trouble{FillStatus::kCancelled, 0, std::string("dropped while it was filled: ") + error.what()};
  }
}

}  // namespace

FillResult fill(Pool& pool, FillJob& job, unsigned threads) {
  const auto began = Crew::Clock::now();
  FillResult result;
  try {
    Filling(pool, job, threads).run(result);
  } catch (const Trouble& trouble) {
    result.status = trouble.status;
    result.error = trouble.error;
    result.detail = trouble.detail;
  } catch (const std::bad_alloc&) {
    result.status = FillStatus::kSourceError;
    result.error = ENOMEM;
    result.detail = "out of memory while preparing a fill";
  }
  result.ms = std::chrono::duration<double, std::milli>(Crew::Clock::now() - began).count();
  return result;
}

}  // namespace tc
