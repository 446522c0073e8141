#include "tc/attach_answer.hpp"

#include <unordered_map>

namespace tc {

namespace {

// Small segments beyond this much of one answer are copied by the client itself, out of the extent.
constexpr uint64_t kInlineBytesMax = 8u << 20;

class Answering {
 public:
  explicit Answering(const Pool& pool) : pool_(pool), extent_bytes_(pool.extent_bytes()) {}

  void add(SegmentId id) {
    const Place place = pool_.place(id);
    AttachedSegment segment{place.nbytes, SegmentKind::kMapped, {}};
    if (place.nbytes == 0 || (place.slot && inline_bytes() + place.nbytes <= kInlineBytesMax)) {
      segment.kind = SegmentKind::kInline;
      for (const Range& range : place.ranges) {
        answer.message.inline_bytes.append(reinterpret_cast<const char*>(pool_.address(range.offset)), range.nbytes);
      }
    } else {
      if (place.slot) segment.kind = SegmentKind::kCopied;
      for (const Range& range : place.ranges) segment.ranges.push_back(range_in_extent(range));
      answer.borrowed.push_back(id);
    }
    answer.message.segments.push_back(std::move(segment));
  }

  AttachAnswer answer;

 private:
  uint64_t inline_bytes() const { return answer.message.inline_bytes.size(); }

  AttachedRange range_in_extent(const Range& range) {
    const auto extent = static_cast<uint32_t>(range.offset / extent_bytes_);
    const auto [it, fresh] = indexes_.emplace(extent, static_cast<uint32_t>(answer.fds.size()));
    if (fresh) answer.fds.push_back(pool_.extent_fd(extent));
    return {it->second, 0, range.offset % extent_bytes_, range.nbytes};
  }

  const Pool& pool_;
  const uint64_t extent_bytes_;
  std::unordered_map<uint32_t, uint32_t> indexes_;
};

}  // namespace

AttachAnswer answer_attach(const Pool& pool, const Published& entry, bool manifest_only) {
  Answering answering(pool);
  for (SegmentId id : entry.segments) {
    answering.add(id);
    if (manifest_only) break;
  }
  AttachAnswer answer = std::move(answering.answer);
  answer.message.fds = static_cast<uint32_t>(answer.fds.size());
  return answer;
}

}  // namespace tc
