// Filling: pulls bytes into reserved segments, digests the tensors on the way, and seals. The one way in for
// every byte of the pool: a file (buffered when its pages are resident, O_DIRECT when not), a local client's
// memory (process_vm_readv), a client's socket, or another segment, of the same job or sealed before it. Runs on the
// caller's thread plus workers.
#pragma once
#include <sys/types.h>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "tc/digest.hpp"
#include "tc/pool.hpp"

namespace tc {

enum class PieceKind : uint32_t { kInline = 1, kMemory = 2, kFile = 3, kSegment = 4, kPool = 5 };

// nbytes from a source to `dst` within segment number `segment` of the job. `src` is an offset in the inline
// bytes, an address in the client's memory, an offset in file `src_index`, or an offset in segment number
// `src_index`, or an offset in sealed segment `src_index` of the job's `sources`. Pieces of kSegment run after all
// others and may only read segments that have none themselves.
struct Piece {
  uint32_t segment;
  PieceKind kind;
  uint64_t dst;
  uint64_t nbytes;
  uint64_t src;
  uint32_t src_index;
  uint32_t reserved;
};

// One tensor to digest: where its bytes lie once the segments are filled.
struct Row {
  uint32_t segment;
  uint32_t reserved;
  uint64_t offset;
  uint64_t nbytes;
};

// An open file and the identity its caller saw; it is compared before and after the read.
struct FileSource {
  int fd;
  uint32_t reserved;
  uint64_t device, inode, size;
  int64_t mtime_ns;
};

struct FillJob {
  std::vector<uint64_t> segment_bytes;
  std::vector<SegmentId> segments;  // reserved by the caller, same order
  std::vector<Piece> pieces;        // of one segment: no gap, no overlap, up to segment_bytes
  std::vector<Row> rows;
  std::string inline_bytes;
  std::vector<FileSource> files;       // fds stay the caller's
  std::vector<SegmentId> sources;      // sealed; the caller holds them until the end
  std::vector<uint64_t> source_bytes;  // their sizes
  pid_t pid = 0;                       // kMemory: the client ...
  int pidfd = -1;                      // ... proven alive by this before and after the read
  int stream_fd = -1;                  // when >= 0, kMemory pieces arrive on this socket, in order, instead
  std::chrono::steady_clock::time_point deadline;
  std::atomic<bool> cancelled{false};
  std::atomic<uint64_t> done_bytes{0};  // progress, for whoever watches
};

enum class FillStatus : uint32_t {
  kOk = 0,
  kBadPlan = 1,        // pieces or rows that do not fit the segments
  kSourceChanged = 2,  // a file's identity differs from what the caller saw
  kSourceShort = 3,    // a file or stream ended early
  kSourceError = 4,    // errno in `error`
  kGone = 5,           // the client died, or its address space refused
  kDeadline = 6,
  kCancelled = 7,
};

struct FillResult {
  FillStatus status = FillStatus::kOk;
  int error = 0;
  std::string detail;           // what, which source, where; for an error text
  std::vector<Digest> digests;  // one a row
  uint64_t bytes_moved = 0;
  uint64_t bytes_copied = 0;  // of which copied aside between segments
  double ms = 0;
  bool direct = false;  // O_DIRECT was used
};

// Validates the plan first, then moves bytes; seals every segment on kOk and leaves them reserved otherwise.
FillResult fill(Pool& pool, FillJob& job, unsigned threads);

// Digests rows of an open file without keeping its bytes (same rule as fill); rows' `segment` is ignored.
// `cancelled`, where given, ends it early.
FillResult digest_file(const FileSource& file, const std::vector<Row>& rows, unsigned threads,
                       std::chrono::steady_clock::time_point deadline, const std::atomic<bool>* cancelled = nullptr);

}  // namespace tc
