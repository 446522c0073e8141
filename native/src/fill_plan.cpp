#include "tc/fill_plan.hpp"

#include <algorithm>
#include <string>

#include "tc/crew.hpp"

namespace tc {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Trouble{FillStatus::kBadPlan, 0, why}; }

bool inside(uint64_t offset, uint64_t nbytes, uint64_t limit) { return offset <= limit && nbytes <= limit - offset; }

std::string text(uint64_t offset, uint64_t nbytes) {
  return std::to_string(nbytes) + " bytes at " + std::to_string(offset);
}

void check_source(const FillJob& job, const Piece& piece, const std::vector<bool>& copied, const std::string& name) {
  const auto within = [&](uint64_t limit, const std::string& what) {
    if (!inside(piece.src, piece.nbytes, limit))
      refuse(name + ": " + text(piece.src, piece.nbytes) + " lie outside " + what + " of " + std::to_string(limit));
  };
  switch (piece.kind) {
    case PieceKind::kInline:
      return within(job.inline_bytes.size(), "the inline bytes");
    case PieceKind::kMemory:
      // A stream has no addresses; without one the process that owns them must be provably alive.
      if (job.stream_fd < 0 && (job.pid <= 0 || job.pidfd < 0)) refuse(name + ": memory of no process");
      if (job.stream_fd < 0) within(uint64_t(1) << 63, "an address space");
      return;
    case PieceKind::kFile:
      if (piece.src_index >= job.files.size()) refuse(name + ": no file " + std::to_string(piece.src_index));
      return within(job.files[piece.src_index].size, "file " + std::to_string(piece.src_index));
    case PieceKind::kSegment:
      if (piece.src_index >= job.segment_bytes.size()) refuse(name + ": no segment " + std::to_string(piece.src_index));
      if (copied[piece.src_index])
        refuse(name + ": segment " + std::to_string(piece.src_index) + " is itself copied from a segment");
      return within(job.segment_bytes[piece.src_index], "segment " + std::to_string(piece.src_index));
    case PieceKind::kPool:
      if (piece.src_index >= job.source_bytes.size()) refuse(name + ": no source " + std::to_string(piece.src_index));
      return within(job.source_bytes[piece.src_index], "source " + std::to_string(piece.src_index));
  }
  refuse(name + ": kind " + std::to_string(static_cast<uint32_t>(piece.kind)) + " is unknown");
}

// Sorted by where they go, the pieces of each segment follow one another from 0 to its end.
void check_tiling(const FillJob& job) {
  std::vector<Piece> pieces;
  for (const Piece& piece : job.pieces)
    if (piece.nbytes > 0) pieces.push_back(piece);
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.segment != b.segment ? a.segment < b.segment : a.dst < b.dst;
  });
  auto at = pieces.begin();
  for (uint32_t segment = 0; segment < job.segment_bytes.size(); ++segment) {
    uint64_t filled = 0;
    for (; at != pieces.end() && at->segment == segment; ++at) {
      if (at->dst != filled)
        refuse("segment " + std::to_string(segment) + ": a piece begins at " + std::to_string(at->dst) + " where " +
               std::to_string(filled) + " bytes are filled");
      if (!inside(at->dst, at->nbytes, job.segment_bytes[segment]))
        refuse("segment " + std::to_string(segment) + ": a piece of " + text(at->dst, at->nbytes) +
               " goes past its end at " + std::to_string(job.segment_bytes[segment]));
      filled += at->nbytes;
    }
    if (filled != job.segment_bytes[segment])
      refuse("segment " + std::to_string(segment) + ": " + std::to_string(filled) + " of " +
             std::to_string(job.segment_bytes[segment]) + " bytes are filled");
  }
}

void check_rows(const FillJob& job) {
  uint64_t bytes_max = 0, bytes = 0;
  for (const uint64_t nbytes : job.segment_bytes) bytes_max += nbytes * kRowOverlapMax;
  for (size_t i = 0; i < job.rows.size(); ++i) {
    const Row& row = job.rows[i];
    if (row.segment >= job.segment_bytes.size())
      refuse("row " + std::to_string(i) + ": no segment " + std::to_string(row.segment));
    if (!inside(row.offset, row.nbytes, job.segment_bytes[row.segment]))
      refuse("row " + std::to_string(i) + ": " + text(row.offset, row.nbytes) + " lie outside segment " +
             std::to_string(row.segment) + " of " + std::to_string(job.segment_bytes[row.segment]));
    bytes += row.nbytes;  // cannot wrap: checked after each, and a row is no longer than its segment
    if (bytes > bytes_max) refuse("rows cover their segments more than " + std::to_string(kRowOverlapMax) + " times");
  }
}

// Where chunks longer than a step begin and end, by segment, ascending.
std::vector<std::vector<uint64_t>> cuts_of(const FillJob& job) {
  std::vector<std::vector<uint64_t>> cuts(job.segment_bytes.size());
  for (const Row& row : job.rows) {
    if (row.nbytes <= kStepBytesMax) continue;
    for (uint64_t at = 0; at < row.nbytes; at += kDigestChunkBytes) cuts[row.segment].push_back(row.offset + at);
    cuts[row.segment].push_back(row.offset + row.nbytes);
  }
  for (auto& of_segment : cuts) std::sort(of_segment.begin(), of_segment.end());
  return cuts;
}

class Cutter {
 public:
  Cutter(Work& work, const FillJob& job, const std::vector<SegmentView>& views)
      : work_(work), views_(views), cuts_(cuts_of(job)) {}

  void cut(const Piece& piece) { cut(piece, false); }

  // For O_DIRECT: up to the next multiple in the file.
  void cut_for_disk(const Piece& piece) { cut(piece, true); }

 private:
  void cut(const Piece& piece, bool from_disk) {
    for (uint64_t done = 0; done < piece.nbytes;) {
      const uint64_t dst = piece.dst + done;
      uint64_t room = std::min(kUnitBytesMax, piece.nbytes - done);
      room = std::min(room,
                      from_disk ? kUnitBytesMax - (piece.src + done) % kUnitBytesMax : to_next_cut(piece.segment, dst));
      const auto to = views_[piece.segment].at(dst, room);
      append({piece.kind, piece.segment, piece.src_index, dst, piece.src + done, to});
      done += to.size();
    }
  }

  uint64_t to_next_cut(uint32_t segment, uint64_t dst) const {
    const auto next = std::upper_bound(cuts_[segment].begin(), cuts_[segment].end(), dst);
    return next == cuts_[segment].end() ? kUnitBytesMax : *next - dst;
  }

  void append(const Fragment& fragment) {
    if (!work_.units.empty()) {
      Unit& unit = work_.units.back();
      const Fragment& last = work_.fragments.back();
      if (last.kind == fragment.kind && last.src_index == fragment.src_index && unit.count < kUnitFragmentsMax &&
          unit.nbytes + fragment.to.size() <= kUnitBytesMax) {
        ++unit.count;
        unit.nbytes += fragment.to.size();
        work_.fragments.push_back(fragment);
        return;
      }
    }
    work_.units.push_back({work_.fragments.size(), 1, fragment.to.size()});
    work_.fragments.push_back(fragment);
  }

  Work& work_;
  const std::vector<SegmentView>& views_;
  const std::vector<std::vector<uint64_t>> cuts_;
};

void one_task_a_unit(Work& work, size_t from) {
  for (size_t unit = from; unit < work.units.size(); ++unit) work.tasks.push_back({unit, 1});
}

}  // namespace

void check_plan(const FillJob& job) {
  const size_t segments = job.segment_bytes.size();
  if (job.segments.size() != segments)
    refuse(std::to_string(job.segments.size()) + " segments for " + std::to_string(segments) + " sizes");
  if (job.sources.size() != job.source_bytes.size())
    refuse(std::to_string(job.sources.size()) + " sources for " + std::to_string(job.source_bytes.size()) + " sizes");
  std::vector<bool> copied(segments);
  for (size_t i = 0; i < job.pieces.size(); ++i) {
    const Piece& piece = job.pieces[i];
    if (piece.segment >= segments)
      refuse("piece " + std::to_string(i) + ": no segment " + std::to_string(piece.segment));
    if (piece.kind == PieceKind::kSegment) copied[piece.segment] = true;
  }
  for (size_t i = 0; i < job.pieces.size(); ++i) check_source(job, job.pieces[i], copied, "piece " + std::to_string(i));
  check_tiling(job);
  check_rows(job);
}

Work work_from_sources(const FillJob& job, const std::vector<SegmentView>& views, const std::vector<bool>& from_disk) {
  Work work;
  Cutter cutter(work, job, views);
  const bool streams = job.stream_fd >= 0;
  if (streams) {
    // First and in one task: a stream has an order, and its sender is waiting.
    for (const Piece& piece : job.pieces)
      if (piece.kind == PieceKind::kMemory) cutter.cut(piece);
    if (!work.units.empty()) work.tasks.push_back({0, work.units.size()});
  }
  const size_t streamed = work.units.size();
  for (const Piece& piece : job.pieces) {
    if (piece.kind == PieceKind::kSegment || (streams && piece.kind == PieceKind::kMemory)) continue;
    if (piece.kind == PieceKind::kFile && from_disk[piece.src_index]) {
      cutter.cut_for_disk(piece);
    } else {
      cutter.cut(piece);
    }
  }
  one_task_a_unit(work, streamed);
  return work;
}

Work work_between_segments(const FillJob& job, const std::vector<SegmentView>& views) {
  Work work;
  Cutter cutter(work, job, views);
  for (const Piece& piece : job.pieces)
    if (piece.kind == PieceKind::kSegment) cutter.cut(piece);
  one_task_a_unit(work, 0);
  return work;
}

}  // namespace tc
