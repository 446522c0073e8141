// A fill job for tests: reserves its segments, fills with a generous deadline, and reads back what came.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tc/digest.hpp"
#include "tc/fill.hpp"
#include "tc/pool.hpp"
#include "tc/segment_view.hpp"

namespace testing {

constexpr uint64_t kMiB = 1u << 20;
constexpr auto kSlack = std::chrono::seconds(5);

inline tc::PoolOptions pool_of(uint64_t capacity_mib) { return {capacity_mib * kMiB, uint64_t(1) << 30, 0, 0}; }

// Waits for what another thread is about to do; false when it never comes.
template <class Condition>
bool eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Every other block of the pool taken for good, so that a segment lies in runs of one block.
inline void fragment(tc::Pool& pool) {
  std::vector<tc::SegmentId> ids;
  for (uint64_t i = 0; i < pool.stats().capacity_bytes / tc::kBlockBytes; ++i)
    ids.push_back(pool.reserve(tc::kBlockBytes));
  for (size_t i = 0; i < ids.size(); i += 2) pool.drop(ids[i]);
}

struct Job : tc::FillJob {
  explicit Job(tc::Pool& pool, std::vector<uint64_t> sizes) : pool_(pool) {
    segment_bytes = std::move(sizes);
    for (const uint64_t nbytes : segment_bytes) segments.push_back(pool.reserve(nbytes));
    deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  }

  tc::FillResult run(unsigned threads = 3) { return tc::fill(pool_, *this, threads); }

  std::vector<uint8_t> content(size_t segment = 0) const {
    std::vector<uint8_t> bytes(segment_bytes[segment]);
    tc::SegmentView(pool_, segments[segment]).read(0, bytes);
    return bytes;
  }
  bool sealed() const {
    return std::all_of(segments.begin(), segments.end(), [&](tc::SegmentId id) { return pool_.sealed(id); });
  }
  // Rows of about these sizes, one after the other until the segment ends.
  void add_rows(uint32_t segment, const std::vector<uint64_t>& sizes) {
    uint64_t at = 0;
    for (size_t i = 0; at < segment_bytes[segment]; ++i) {
      const uint64_t nbytes = std::min(sizes[i % sizes.size()], segment_bytes[segment] - at);
      rows.push_back({segment, 0, at, nbytes});
      at += nbytes;
    }
  }
  void check_digests(const tc::FillResult& result) const {
    REQUIRE(result.digests.size() == rows.size());
    size_t wrong = 0;
    std::vector<std::vector<uint8_t>> contents;
    for (size_t i = 0; i < segments.size(); ++i) contents.push_back(content(i));
    for (size_t i = 0; i < rows.size(); ++i)
      wrong +=
          result.digests[i] != tc::tensor_digest({contents[rows[i].segment].data() + rows[i].offset, rows[i].nbytes});
    CHECK(wrong == 0);
  }

 private:
  tc::Pool& pool_;
};

}  // namespace testing
