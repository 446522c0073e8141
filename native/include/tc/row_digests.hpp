// Digests tensors while their bytes arrive, in any order and from any thread: each row is cut in chunks of
// kDigestChunkBytes. A thread that brings a chunk from its first byte on, stretch by stretch, digests each
// stretch while it is hot in that core's cache; of other chunks whoever brings the last byte digests all.
// Built by a fill or a digest_file; arrived() is safe from several threads for bytes that each come once.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tc/digest.hpp"
#include "tc/digest_spans.hpp"
#include "tc/fill.hpp"

namespace tc {

using Spans = std::vector<std::span<const uint8_t>>;

class RowDigests {
 public:
  // One chunk: bytes [begin, begin + nbytes) of a segment, number `index` of row `row`.
  struct Chunk {
    uint64_t begin;
    uint32_t nbytes;
    uint32_t segment;
    uint32_t row;
    uint32_t index;
    uint64_t end() const { return begin + nbytes; }
  };
  // One thread's running digest of the chunk that it brings.
  class Streak {
    friend class RowDigests;
    RunningDigest running_;
    size_t chunk_ = SIZE_MAX;
    uint64_t next_ = 0;
  };
  // Puts where bytes [offset, offset + nbytes) of a segment are into `spans` (empty on entry).
  using Locate = std::function<void(uint32_t segment, uint64_t offset, uint64_t nbytes, Spans& spans)>;

  explicit RowDigests(const std::vector<Row>& rows);

  // Bytes [begin, end) of `segment` are in place. Digests what they complete.
  void arrived(uint32_t segment, uint64_t begin, uint64_t end, const Locate& locate, Streak& streak);
  void digest(const Chunk& chunk, const Spans& spans);  // of one chunk wholly in place

  const std::vector<Chunk>& chunks() const { return chunks_; }  // by segment, then where they begin
  bool complete() const { return open_rows_.load(std::memory_order_acquire) == 0; }
  std::vector<Digest> take() { return std::move(digests_); }  // one a row; only when complete

 private:
  void add_row(const Row& row, uint32_t number);
  size_t first_reaching(uint32_t segment, uint64_t begin) const;
  bool follow(size_t at, uint64_t from, uint64_t to, const Locate& locate, Streak& streak) const;
  void settle(const Chunk& chunk, const Digest& digest);

  std::vector<Chunk> chunks_;
  std::vector<uint64_t> end_max_;                     // of chunks_ up to here, within the segment
  std::unique_ptr<std::atomic<uint32_t>[]> missing_;  // bytes of a chunk still to come
  std::vector<Digest> digests_;
  // Rows of several chunks: where their chunks' digests begin in chunk_digests_, and how many there are.
  struct Long {
    uint64_t first = 0, count = 0;
  };
  std::vector<Long> long_rows_;
  std::vector<Digest> chunk_digests_;
  std::unique_ptr<std::atomic<uint32_t>[]> open_chunks_;  // one a row
  std::atomic<uint64_t> open_rows_{0};
};

}  // namespace tc
