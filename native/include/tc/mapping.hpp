// The memory of one attach in this process: private, copy-on-write maps of the large segments, copies of the
// small ones. Counted by whoever can still reach it (the attachment, tensors, views); the last one to leave
// unmaps and unpins, from any thread, without Python, without waiting. Writes of this process are seen by
// nobody else.
#pragma once
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "tc/link.hpp"

namespace tc {

// What the storage must be told once the maps are gone.
class MapPin {
 public:
  MapPin(std::shared_ptr<Link> link, uint64_t pin, std::unique_ptr<LifelineUse> use)
      : link_(std::move(link)), pin_(pin), use_(std::move(use)) {}
  ~MapPin();
  MapPin(const MapPin&) = delete;
  MapPin& operator=(const MapPin&) = delete;

  void mapped();
  void going();  // before munmap

 private:
  std::shared_ptr<Link> link_;
  const uint64_t pin_;
  std::unique_ptr<LifelineUse> use_;
  bool gone_ = false;
  bool tell_ = true;
};

class Mapping {
 public:
  struct Leave {
    void operator()(Mapping* mapping) const { mapping->leave(); }
  };
  using Ref = std::unique_ptr<Mapping, Leave>;

  // Maps what `attached` names; `fds` are closed in any case. `pin` ends here on failure. Throws
  // std::system_error, std::invalid_argument on an answer that contradicts itself.
  static Ref map(const Attached& attached, std::vector<Fd> fds, std::unique_ptr<MapPin> pin);

  // One more reference; empty once the last one left.
  Ref join();
  // Ends a mapping that only the caller's own reference holds (which is then void); else returns how many
  // others do.
  uint32_t leave_if_alone();
  uint32_t others() const { return refs_.load() - 1; }

  size_t segments() const { return segments_.size(); }
  std::span<uint8_t> segment(size_t index) const { return segments_.at(index); }
  uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  struct Range {
    uint8_t* address;
    uint64_t nbytes;
  };

  Mapping() = default;
  ~Mapping();
  void add_inline(const char* bytes, uint64_t nbytes);
  void add_copy(const AttachedSegment& segment, const std::vector<Fd>& fds);
  void add_map(const AttachedSegment& segment, const std::vector<Fd>& fds);
  void populate_in_background();
  void populate();
  void leave();
  void end();

  std::atomic<uint32_t> refs_{1};
  std::vector<std::span<uint8_t>> segments_;
  std::vector<Range> maps_;
  std::vector<void*> copies_;
  uint64_t mapped_bytes_ = 0;
  std::unique_ptr<MapPin> pin_;

  // The populating thread, while there is one, holds the memory too; a fork leaves it behind.
  std::atomic<int> holders_{1};
  std::atomic<bool> ending_{false};
  const uint64_t depth_ = fork_depth();
};

}  // namespace tc
