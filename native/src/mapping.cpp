#include "tc/mapping.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "tc/pool.hpp"
#include "tc/thread.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace tc {

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr size_t kCopyAlignment = 64;  // a cache line, and what vector loads like
// Faulting in 16 MiB on demand costs well under a millisecond (the kernel maps 16 pages a fault), about as
// much as starting a thread and waking it; only larger maps are populated ahead of their use.
constexpr uint64_t kPopulateBytesMin = 16u << 20;
// One step of populating: a few milliseconds, the longest that a freed mapping can linger.
constexpr uint64_t kPopulateStepBytes = 32u << 20;

uint64_t up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void fail_to_map(uint64_t nbytes) {
  throw std::system_error(errno, std::generic_category(),
                          "a segment of " + std::to_string(nbytes) + " bytes cannot be mapped into this process");
}

// Address space for `nbytes`, nothing in it, aligned for huge pages. It is kept out of core dumps.
uint8_t* reserve_addresses(uint64_t nbytes) {
  const uint64_t wide = nbytes + kBlockBytes;
  void* got = ::mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) fail_to_map(nbytes);
  auto* base = static_cast<uint8_t*>(got);
  auto* aligned = reinterpret_cast<uint8_t*>(up(reinterpret_cast<uint64_t>(base), kBlockBytes));
  if (aligned > base) ::munmap(base, static_cast<size_t>(aligned - base));
  ::munmap(aligned + nbytes, static_cast<size_t>(base + wide - (aligned + nbytes)));
  return aligned;
}

// Whether the ranges are what mmap can take: page by page, whole but for the last, within the descriptors
// that came.
void check_ranges(const AttachedSegment& segment, size_t fds) {
  uint64_t covered = 0;
  for (size_t i = 0; i < segment.ranges.size(); ++i) {
    const AttachedRange& range = segment.ranges[i];
    const bool last = i + 1 == segment.ranges.size();
    if (range.fd_index >= fds || range.nbytes == 0 || range.nbytes > segment.nbytes - covered ||
        range.offset % kPageBytes != 0 || (!last && range.nbytes % kPageBytes != 0)) {
      throw std::invalid_argument(
          "the storage described a segment that cannot be mapped: run the same release on both sides");
    }
    covered += range.nbytes;
  }
  if (covered != segment.nbytes) throw std::invalid_argument("the storage described only part of a segment");
}

}  // namespace

MapPin::~MapPin() {
  if (!use_) return;
  going();
  if (tell_) link_->unpin(pin_);
}

void MapPin::mapped() {
  if (use_) use_->mapped();
}

void MapPin::going() {
  if (use_ && !std::exchange(gone_, true)) tell_ = use_->going();
}

Mapping::Ref Mapping::map(const Attached& attached, std::vector<Fd> fds, std::unique_ptr<MapPin> pin) {
  Ref mapping(new Mapping);
  mapping->pin_ = std::move(pin);
  const char* bytes = attached.inline_bytes.data();
  uint64_t left = attached.inline_bytes.size();
  for (const AttachedSegment& segment : attached.segments) {
    switch (segment.kind) {
      case SegmentKind::kInline:
        if (segment.nbytes > left)
          throw std::invalid_argument("the storage's answer lacks the bytes of a small segment");
        mapping->add_inline(bytes, segment.nbytes);
        bytes += segment.nbytes;
        left -= segment.nbytes;
        break;
      case SegmentKind::kCopied:
        mapping->add_copy(segment, fds);
        break;
      case SegmentKind::kMapped:
        mapping->add_map(segment, fds);
        break;
      default:
        throw std::invalid_argument("the storage's answer has a segment of an unknown kind");
    }
  }
  fds.clear();
  if (mapping->pin_) mapping->pin_->mapped();
  mapping->populate_in_background();
  return mapping;
}

void Mapping::add_inline(const char* bytes, uint64_t nbytes) {
  copies_.push_back(nullptr);
  copies_.back() = std::aligned_alloc(kCopyAlignment, std::max<uint64_t>(up(nbytes, kCopyAlignment), kCopyAlignment));
  if (copies_.back() == nullptr) throw std::bad_alloc();
  if (nbytes > 0) std::memcpy(copies_.back(), bytes, nbytes);
  segments_.emplace_back(static_cast<uint8_t*>(copies_.back()), nbytes);
}

void Mapping::add_copy(const AttachedSegment& segment, const std::vector<Fd>& fds) {
  if (segment.ranges.size() != 1 || segment.ranges[0].fd_index >= fds.size() ||
      segment.ranges[0].nbytes != segment.nbytes || segment.nbytes > kSlotBytesMax) {
    throw std::invalid_argument("the storage described a small segment that cannot be copied");
  }
  const AttachedRange& range = segment.ranges[0];
  const uint64_t skip = range.offset % kPageBytes;
  const int fd = fds[range.fd_index].get();
  void* window =
      ::mmap(nullptr, skip + range.nbytes, PROT_READ, MAP_PRIVATE, fd, static_cast<off_t>(range.offset - skip));
  if (window == MAP_FAILED) fail_to_map(segment.nbytes);
  const std::unique_ptr<void, std::function<void(void*)>> closing(
      window, [n = skip + range.nbytes](void* at) { ::munmap(at, n); });
  add_inline(static_cast<const char*>(window) + skip, range.nbytes);
}

void Mapping::add_map(const AttachedSegment& segment, const std::vector<Fd>& fds) {
  check_ranges(segment, fds.size());
  const uint64_t nbytes = up(segment.nbytes, kPageBytes);
  if (nbytes == 0) return add_inline(nullptr, 0);
  maps_.reserve(maps_.size() + 1);
  uint8_t* const base = reserve_addresses(nbytes);
  maps_.push_back({base, nbytes});
  uint8_t* at = base;
  for (const AttachedRange& range : segment.ranges) {
    const uint64_t length = up(range.nbytes, kPageBytes);
    if (::mmap(at, length, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_NORESERVE, fds[range.fd_index].get(),
               static_cast<off_t>(range.offset)) == MAP_FAILED) {
      fail_to_map(segment.nbytes);
    }
    at += length;
  }
  ::madvise(base, nbytes, MADV_DONTDUMP);
  segments_.emplace_back(base, segment.nbytes);
  mapped_bytes_ += nbytes;
}

void Mapping::populate_in_background() {
  const bool worth_it =
      std::any_of(maps_.begin(), maps_.end(), [](const Range& r) { return r.nbytes > kPopulateBytesMin; });
  if (!worth_it) return;
  holders_.store(2);
  try {
    native_thread([this] { populate(); }).detach();
  } catch (const std::system_error&) {
    holders_.store(1);  // no thread to be had: pages come in as they are touched
  }
}

void Mapping::populate() {
  for (const Range& map : maps_) {
    if (map.nbytes <= kPopulateBytesMin) continue;
    for (uint64_t done = 0; done < map.nbytes && !ending_.load(); done += kPopulateStepBytes) {
      ::madvise(map.address + done, std::min(kPopulateStepBytes, map.nbytes - done), MADV_POPULATE_READ);
    }
  }
  if (holders_.fetch_sub(1) == 1) delete this;
}

Mapping::Ref Mapping::join() {
  uint32_t seen = refs_.load();
  while (seen > 0) {
    if (refs_.compare_exchange_weak(seen, seen + 1)) return Ref(this);
  }
  return nullptr;
}

uint32_t Mapping::leave_if_alone() {
  uint32_t alone = 1;
  if (!refs_.compare_exchange_strong(alone, 0)) return alone - 1;
  end();
  return 0;
}

void Mapping::leave() {
  if (refs_.fetch_sub(1) == 1) end();
}

// In a child that was forked while the parent populated, that thread does not exist and will never let go.
void Mapping::end() {
  ending_.store(true);
  if (fork_depth() != depth_ || holders_.fetch_sub(1) == 1) delete this;
}

Mapping::~Mapping() {
  if (pin_) pin_->going();
  for (const Range& map : maps_) ::munmap(map.address, map.nbytes);
  for (void* copy : copies_) std::free(copy);
}

}  // namespace tc
