#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "tc/crew.hpp"
#include "tc/file_reader.hpp"
#include "tc/fill.hpp"
#include "tc/fill_plan.hpp"
#include "tc/row_digests.hpp"

namespace tc {
namespace {

constexpr uint64_t kBatchBytesMax = kDigestChunkBytes;
constexpr uint64_t kGapBytesMax = 64u << 10;  // bytes of no row that are cheaper to read than to skip
constexpr uint64_t kBufferBytes = kBatchBytesMax + kDirectAlignBytes;
constexpr uint64_t kBufferAlignBytes = 2u << 20;

// Chunks first ... first + count - 1, read together.
struct Batch {
  size_t first;
  size_t count;
  uint64_t begin;
  uint64_t end;
};

struct Freed {
  void operator()(uint8_t* at) const { std::free(at); }
};
using Buffer = std::unique_ptr<uint8_t, Freed>;

// Buffers that threads hand to one another, so that each is faulted in once.
class Shelf {
 public:
  Buffer take() {
    const std::lock_guard lock(mutex_);
    if (buffers_.empty()) {
      const uint64_t nbytes = (kBufferBytes + kBufferAlignBytes - 1) / kBufferAlignBytes * kBufferAlignBytes;
      Buffer buffer(static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignBytes, nbytes)));
      if (!buffer) throw std::bad_alloc();
      return buffer;
    }
    Buffer buffer = std::move(buffers_.back());
    buffers_.pop_back();
    return buffer;
  }
  void give(Buffer buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<Buffer> buffers_;
};

std::vector<Batch> batches_of(const std::vector<RowDigests::Chunk>& chunks) {
  std::vector<Batch> batches;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto& chunk = chunks[i];
    if (!batches.empty()) {
      Batch& last = batches.back();
      const uint64_t end = std::max(last.end, chunk.end());
      if (end - last.begin <= kBatchBytesMax && chunk.begin <= last.end + kGapBytesMax) {
        last = {last.first, last.count + 1, last.begin, end};
        continue;
      }
    }
    batches.push_back({i, 1, chunk.begin, chunk.end()});
  }
  return batches;
}

std::vector<Row> checked(const FileSource& file, const std::vector<Row>& rows) {
  std::vector<Row> checked = rows;
  uint64_t bytes = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    checked[i].segment = 0;
    if (rows[i].offset > file.size || rows[i].nbytes > file.size - rows[i].offset)
      throw Trouble{FillStatus::kBadPlan, 0,
                    "row " + std::to_string(i) + ": " + std::to_string(rows[i].nbytes) + " bytes at " +
                        std::to_string(rows[i].offset) + " lie outside a file of " + std::to_string(file.size)};
    bytes += rows[i].nbytes;
    if (bytes / kRowOverlapMax > file.size)
      throw Trouble{FillStatus::kBadPlan, 0,
                    "rows cover the file more than " + std::to_string(kRowOverlapMax) + " times"};
  }
  return checked;
}

void run(const FileSource& source, const std::vector<Row>& rows, unsigned threads, Crew& crew, FillResult& result) {
  FileReader file(source, 0);
  file.check_identity();
  RowDigests digests(checked(source, rows));
  const std::vector<Batch> batches = batches_of(digests.chunks());
  if (!batches.empty()) file.prepare(batches.front().begin, batches.back().end - batches.front().begin);
  Shelf shelf;
  crew.run(batches.size(), std::max(1u, threads), [&](size_t number) {
    const Batch& batch = batches[number];
    Buffer buffer = shelf.take();
    const uint64_t from = batch.begin / kDirectAlignBytes * kDirectAlignBytes;
    file.read(from, {buffer.get(), batch.end - from}, crew);
    for (size_t i = batch.first; i < batch.first + batch.count; ++i) {
      const auto& chunk = digests.chunks()[i];
      digests.digest(chunk, {{buffer.get() + (chunk.begin - from), chunk.nbytes}});
    }
    shelf.give(std::move(buffer));
  });
  file.check_identity();
  for (const Batch& batch : batches) result.bytes_moved += batch.end - batch.begin;
  result.digests = digests.take();
  result.direct = file.was_direct();
}

}  // namespace

FillResult digest_file(const FileSource& file, const std::vector<Row>& rows, unsigned threads,
                       std::chrono::steady_clock::time_point deadline, const std::atomic<bool>* cancelled) {
  const auto began = Crew::Clock::now();
  FillResult result;
  try {
    Crew crew(deadline, cancelled);
    crew.check();
    run(file, rows, threads, crew, result);
  } catch (const Trouble& trouble) {
    result = {trouble.status, trouble.error, trouble.detail, {}, 0, 0, 0, false};
  } catch (const std::bad_alloc&) {
    result = {FillStatus::kSourceError, ENOMEM, "out of memory while preparing to digest", {}, 0, 0, 0, false};
  }
  result.ms = std::chrono::duration<double, std::milli>(Crew::Clock::now() - began).count();
  return result;
}

}  // namespace tc
