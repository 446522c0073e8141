#include "tc/row_digests.hpp"

#include <algorithm>
#include <tuple>

#include "tc/digest_spans.hpp"

namespace tc {

RowDigests::RowDigests(const std::vector<Row>& rows)
    : digests_(rows.size()), long_rows_(rows.size()), open_chunks_(new std::atomic<uint32_t>[rows.size()]) {
  for (uint32_t number = 0; number < rows.size(); ++number) add_row(rows[number], number);
  std::sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) {
    return std::tie(a.segment, a.begin, a.row) < std::tie(b.segment, b.begin, b.row);
  });
  missing_.reset(new std::atomic<uint32_t>[chunks_.size()]);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    missing_[i].store(chunks_[i].nbytes, std::memory_order_relaxed);
    const bool same = i > 0 && chunks_[i - 1].segment == chunks_[i].segment;
    end_max_.push_back(same ? std::max(end_max_.back(), chunks_[i].end()) : chunks_[i].end());
  }
}

void RowDigests::add_row(const Row& row, uint32_t number) {
  const uint64_t count = row.nbytes / kDigestChunkBytes + (row.nbytes % kDigestChunkBytes != 0);
  open_chunks_[number].store(static_cast<uint32_t>(count), std::memory_order_relaxed);
  if (count == 0) {
    digests_[number] = xxh3_128({});
    return;
  }
  ++open_rows_;
  if (count > 1) {
    long_rows_[number] = {chunk_digests_.size(), count};
    chunk_digests_.resize(chunk_digests_.size() + count);
  }
  for (uint64_t index = 0; index < count; ++index) {
    const uint64_t from = index * kDigestChunkBytes;
    const auto nbytes = static_cast<uint32_t>(std::min(kDigestChunkBytes, row.nbytes - from));
    chunks_.push_back({row.offset + from, nbytes, row.segment, number, static_cast<uint32_t>(index)});
  }
}

void RowDigests::arrived(uint32_t segment, uint64_t begin, uint64_t end, const Locate& locate, Streak& streak) {
  if (begin == end) return;
  for (size_t at = first_reaching(segment, begin);
       at < chunks_.size() && chunks_[at].segment == segment && chunks_[at].begin < end; ++at) {
    const Chunk& chunk = chunks_[at];
    const uint64_t from = std::max(begin, chunk.begin), to = std::min(end, chunk.end());
    if (from >= to) continue;
    const auto came = static_cast<uint32_t>(to - from);
    const bool followed = came < chunk.nbytes && follow(at, from, to, locate, streak);
    // Release what this thread brought; the last one acquires what all the others did.
    if (missing_[at].fetch_sub(came, std::memory_order_acq_rel) != came) continue;
    if (followed && to == chunk.end()) {
      settle(chunk, streak.running_.end());
    } else {
      Spans spans;
      locate(segment, chunk.begin, chunk.nbytes, spans);
      digest(chunk, spans);
    }
  }
}

// The first chunk of the segment that may reach behind `begin`.
size_t RowDigests::first_reaching(uint32_t segment, uint64_t begin) const {
  const auto in_segment =
      std::partition_point(chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) { return chunk.segment < segment; });
  auto at = static_cast<size_t>(in_segment - chunks_.begin());
  size_t past = chunks_.size();
  while (at < past) {
    const size_t middle = at + (past - at) / 2;
    if (chunks_[middle].segment == segment && end_max_[middle] <= begin) {
      at = middle + 1;
    } else {
      past = middle;
    }
  }
  return at;
}

// Digests bytes [from, to) of a chunk that this thread has brought from its first byte on; false where it has
// not.
bool RowDigests::follow(size_t at, uint64_t from, uint64_t to, const Locate& locate, Streak& streak) const {
  if (from == chunks_[at].begin) {
    streak.chunk_ = at;
    streak.running_.begin();
  } else if (streak.chunk_ != at || streak.next_ != from) {
    return false;
  }
  Spans spans;
  locate(chunks_[at].segment, from, to - from, spans);
  for (const auto& span : spans) streak.running_.add(span);
  streak.next_ = to;
  return true;
}

void RowDigests::digest(const Chunk& chunk, const Spans& spans) { settle(chunk, xxh3_128_of_spans(spans)); }

void RowDigests::settle(const Chunk& chunk, const Digest& digest) {
  const Long& many = long_rows_[chunk.row];
  (many.count > 0 ? chunk_digests_[many.first + chunk.index] : digests_[chunk.row]) = digest;
  if (open_chunks_[chunk.row].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (many.count > 0) digests_[chunk.row] = digest_of_chunks({&chunk_digests_[many.first], many.count});
  open_rows_.fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace tc
