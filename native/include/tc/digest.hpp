// Content digests: xxh3-128, which guards against accident, not malice.
// A tensor up to kDigestChunkBytes has the plain xxh3-128 (seed 0) of its bytes, canonical big-endian. A
// longer one has xxh3-128 with seed 1 over the concatenated digests of its chunks, so that threads can share
// one tensor.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tc {

using Digest = std::array<uint8_t, 16>;

inline constexpr uint64_t kDigestChunkBytes = 4u << 20;

Digest xxh3_128(std::span<const uint8_t> bytes, uint64_t seed = 0);
Digest tensor_digest(std::span<const uint8_t> bytes);

}  // namespace tc
