// How the pool's memory grows: blocks are granted from the lowest index up, each only while the host and its
// memory cgroups have room for it, and handed out by the block allocator. It also knows which blocks are
// faulted already, so that the pre-fault threads can keep some ready. The pool's lock guards every call.
// Invariant: memory granted but not backed by the kernel yet is promised, and never promised twice.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tc/blocks.hpp"
#include "tc/extents.hpp"
#include "tc/memory_limit.hpp"
#include "tc/pool.hpp"

namespace tc {

inline constexpr uint64_t kPrefaultChunkBytes = 64u << 20;

class Growth {
 public:
  // Checks the options (std::invalid_argument) and reserves addresses; takes no memory.
  Growth(const PoolOptions& options, MemoryLimit limit);

  std::vector<Run> allocate(uint64_t blocks);                     // PoolFull
  void free(const std::vector<Run>& runs);                        // std::logic_error
  std::vector<Range> ranges(const std::vector<Run>& runs) const;  // cut at the ends of extents

  bool faulted(const std::vector<Run>& runs) const;
  void mark_faulted(const std::vector<Run>& runs);

  // The next free blocks to fault in, marked as being faulted; nothing while enough are ready or memory is
  // short.
  std::optional<Run> next_fault();
  void end_fault(Run run, bool backed);
  bool wants_fault() const {  // whether next_fault() may have something to do
    return ready_blocks_ < ahead_blocks_ && (unready_blocks_ > 0 || granted_blocks() < blocks_max_);
  }
  bool short_of_memory() const { return short_of_memory_; }

  uint64_t blocks_max() const { return blocks_max_; }
  uint64_t granted_blocks() const { return flags_.size(); }
  uint64_t free_blocks() const { return allocator_.free_blocks() + blocks_max_ - granted_blocks(); }
  uint64_t longest_run() const;
  uint64_t promised_bytes() const;
  const Extents& extents() const { return extents_; }

 private:
  void grant(uint64_t blocks);  // PoolFull, texts name the figures
  int64_t room_blocks(MemoryRoom& available) const;
  void change(const std::vector<Run>& runs, uint8_t set, uint8_t clear);
  [[noreturn]] void refuse(const std::string& why) const;

  uint64_t blocks_max_, extent_blocks_, ahead_blocks_, reserve_bytes_;
  MemoryLimit limit_;
  Extents extents_;
  BlockAllocator allocator_;
  std::vector<uint8_t> flags_;             // one a granted block
  std::vector<uint64_t> unbacked_blocks_;  // one an extent: granted, not known to be faulted
  uint64_t ready_blocks_ = 0;              // free and faulted, or being faulted
  uint64_t unready_blocks_ = 0;            // free and neither
  bool short_of_memory_ = false;
};

}  // namespace tc
