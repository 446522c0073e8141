#include "tc/catalog.hpp"

#include <chrono>

namespace tc {

Catalog::~Catalog() {
  for (const auto& [id, entry] : published_) {
    for (SegmentId segment : entry->segments) pool_.drop(segment);
  }
}

void Catalog::publish(const std::string& art_id, SegmentId manifest, const std::vector<SegmentId>& segments) {
  if (published_.contains(art_id)) throw std::invalid_argument(art_id + " is published already; withdraw it first");
  published_.emplace(art_id, entry_of(art_id, manifest, segments));
}

void Catalog::republish(const std::string& art_id, SegmentId manifest, const std::vector<SegmentId>& segments) {
  const auto it = published_.find(art_id);
  if (it == published_.end()) throw std::invalid_argument(art_id + " is not published, so it cannot be republished");
  std::shared_ptr<Published> entry = entry_of(art_id, manifest, segments);
  entry->used_ns = it->second->used_ns;
  it->second.swap(entry);
  for (SegmentId segment : entry->segments) pool_.drop(segment);
}

// Takes one user of every segment.
std::shared_ptr<Published> Catalog::entry_of(const std::string& art_id, SegmentId manifest,
                                             const std::vector<SegmentId>& segments) {
  auto entry = std::make_shared<Published>();
  entry->art_id = art_id;
  entry->used_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  entry->segments.reserve(segments.size() + 1);
  std::vector<SegmentId> wanted{manifest};
  wanted.insert(wanted.end(), segments.begin(), segments.end());
  try {
    for (SegmentId segment : wanted) {
      pool_.hold(segment);
      entry->segments.push_back(segment);
      entry->nbytes += pool_.place(segment).nbytes;
    }
    return entry;
  } catch (const std::logic_error& e) {
    for (SegmentId held : entry->segments) pool_.drop(held);
    throw std::invalid_argument("segments of " + art_id + " must be sealed to be published: " + e.what());
  }
}

bool Catalog::withdraw(const std::string& art_id) {
  const auto it = published_.find(art_id);
  if (it == published_.end()) return false;
  const std::shared_ptr<Published> entry = it->second;
  published_.erase(it);
  for (SegmentId segment : entry->segments) pool_.drop(segment);
  return true;
}

std::shared_ptr<Published> Catalog::find(const std::string& art_id) const {
  const auto it = published_.find(art_id);
  return it == published_.end() ? nullptr : it->second;
}

std::vector<Catalog::Usage> Catalog::usage() const {
  std::vector<Usage> rows;
  rows.reserve(published_.size());
  for (const auto& [id, e] : published_) rows.emplace_back(id, e->used_ns, e->pins, e->nbytes);
  return rows;
}

}  // namespace tc
