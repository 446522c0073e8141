#include "tc/segments.hpp"

#include <stdexcept>

namespace tc {
namespace {

void expect(bool allowed, SegmentId id, SegmentState state, const char* what) {
  if (!allowed)
    throw std::logic_error("segment " + std::to_string(id) + " is " + name(state) + ": it cannot be " + what);
}

}  // namespace

class SegmentTable::Change {
 public:
  Change(SegmentTotals& totals, const Entry& entry) : totals_(totals), entry_(entry) { count(uint64_t(-1)); }
  ~Change() { count(1); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  void count(uint64_t sign) {  // unsigned wrap-around makes -1 subtract
    const uint64_t bytes = entry_.nbytes * sign;
    if (entry_.state == SegmentState::kReserved) totals_.reserved_bytes += bytes;
    if (entry_.state == SegmentState::kSealed) totals_.used_bytes += bytes;
    if (entry_.state == SegmentState::kDropped) totals_.dropped_bytes += bytes;
    if (entry_.pins > 0) totals_.pinned_bytes += bytes;
    totals_.pins += entry_.pins * sign;
  }
  SegmentTotals& totals_;
  const Entry& entry_;
};

SegmentId SegmentTable::reserve(uint64_t nbytes) {
  entries_.emplace(last_ + 1, Entry{.nbytes = nbytes});
  totals_.reserved_bytes += nbytes;
  return ++last_;
}

void SegmentTable::seal(SegmentId id) {
  Entry& entry = find(id);
  expect(entry.state == SegmentState::kReserved, id, entry.state, "sealed");
  const Change change(totals_, entry);
  entry.state = SegmentState::kSealed;
}

void SegmentTable::hold(SegmentId id) {
  Entry& entry = find(id);
  expect(entry.state == SegmentState::kSealed, id, entry.state, "held");
  ++entry.users;
}

bool SegmentTable::drop(SegmentId id) {
  Entry& entry = find(id);
  expect(entry.users > 0, id, entry.state, "dropped again");
  {
    const Change change(totals_, entry);
    if (--entry.users == 0) entry.state = SegmentState::kDropped;
  }
  return freed(id);
}

void SegmentTable::pin(SegmentId id) {
  Entry& entry = find(id);
  expect(entry.state == SegmentState::kSealed, id, entry.state, "pinned");
  const Change change(totals_, entry);
  ++entry.pins;
}

bool SegmentTable::unpin(SegmentId id) {
  Entry& entry = find(id);
  expect(entry.pins > 0, id, entry.state, "unpinned: nobody pins it");
  {
    const Change change(totals_, entry);
    --entry.pins;
  }
  return freed(id);
}

void SegmentTable::begin_write(SegmentId id) {
  Entry& entry = find(id);
  expect(entry.state == SegmentState::kReserved, id, entry.state, "written");
  ++entry.writers;
}

bool SegmentTable::end_write(SegmentId id) {
  Entry& entry = find(id);
  expect(entry.writers > 0, id, entry.state, "released by a writer: it has none");
  --entry.writers;
  return freed(id);
}

SegmentState SegmentTable::state(SegmentId id) const {
  const auto at = entries_.find(id);
  return at == entries_.end() ? SegmentState::kUnknown : at->second.state;
}

uint64_t SegmentTable::nbytes(SegmentId id) const { return const_cast<SegmentTable*>(this)->find(id).nbytes; }

SegmentTable::Entry& SegmentTable::find(SegmentId id) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) throw std::out_of_range("segment " + std::to_string(id) + " is unknown or freed");
  return at->second;
}

bool SegmentTable::freed(SegmentId id) {
  const auto at = entries_.find(id);
  if (at->second.users > 0 || at->second.pins > 0 || at->second.writers > 0) return false;
  totals_.dropped_bytes -= at->second.nbytes;
  entries_.erase(at);
  return true;
}

const char* name(SegmentState state) {
  switch (state) {
    case SegmentState::kReserved:
      return "reserved";
    case SegmentState::kSealed:
      return "sealed";
    case SegmentState::kDropped:
      return "dropped";
    case SegmentState::kUnknown:
      break;
  }
  return "unknown";
}

}  // namespace tc
