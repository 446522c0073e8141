// What a storage has published: artifact id -> its manifest segment and segments, and when it was last
// attached. Holds one user of every segment of a published artifact. Not locked: the server's lock covers it,
// so that looking up and pinning are one step.
#pragma once
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tc/pool.hpp"

namespace tc {

// One published artifact; outlives its withdrawal in the pins that still hang on it.
struct Published {
  std::string art_id;
  std::vector<SegmentId> segments;  // the manifest's first
  uint64_t nbytes = 0;
  int64_t used_ns = 0;  // CLOCK_MONOTONIC
  uint64_t pins = 0;
};

class Catalog {
 public:
  using Usage = std::tuple<std::string, int64_t, uint64_t, uint64_t>;  // id, last attach, pins, bytes

  explicit Catalog(Pool& pool) : pool_(pool) {}
  ~Catalog();
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  // Throws std::invalid_argument when the id is published or a segment is not sealed.
  void publish(const std::string& art_id, SegmentId manifest, const std::vector<SegmentId>& segments);
  // The same artifact from other segments. Throws std::invalid_argument when it is not published.
  void republish(const std::string& art_id, SegmentId manifest, const std::vector<SegmentId>& segments);
  bool withdraw(const std::string& art_id);
  std::shared_ptr<Published> find(const std::string& art_id) const;  // empty when not published
  std::vector<Usage> usage() const;

 private:
  std::shared_ptr<Published> entry_of(const std::string& art_id, SegmentId manifest,
                                      const std::vector<SegmentId>& segments);

  Pool& pool_;
  std::unordered_map<std::string, std::shared_ptr<Published>> published_;
};

}  // namespace tc
