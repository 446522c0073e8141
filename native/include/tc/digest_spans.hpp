// Digests of bytes that lie in several places, and the parts of the tensor rule for those who digest chunk by
// chunk.
#pragma once
#include <array>
#include <memory>
#include <span>

#include "tc/digest.hpp"

namespace tc {

// xxh3-128, seed 0, of the spans' bytes as if they were one.
Digest xxh3_128_of_spans(std::span<const std::span<const uint8_t>> spans);

struct DigestRoom;

// xxh3-128, seed 0, of bytes that come one stretch after the other: begin(), add() each, end().
class RunningDigest {
 public:
  RunningDigest();
  ~RunningDigest();
  void begin();
  void add(std::span<const uint8_t> bytes);
  Digest end() const;

 private:
  std::unique_ptr<DigestRoom> room_;
};

// The digest of a tensor longer than kDigestChunkBytes from the digests of its chunks (at least one), in
// order.
Digest digest_of_chunks(std::span<const Digest> chunks);

// For tests: by the plain, AVX2 and AVX-512 kernel (the plain one where the processor lacks the other); all
// zero where a kernel disagrees with itself about the same bytes in two parts.
std::array<Digest, 3> digest_by_every_kernel(std::span<const uint8_t> bytes, uint64_t seed);

}  // namespace tc
