// The body of one xxh3-128 kernel. Included once by each of digest.cpp (plain), digest_avx2.cpp and
// digest_avx512.cpp after they chose XXH_VECTOR. It uses nothing of the C++ library: an inline function
// compiled with wider instructions here could be the copy the linker keeps for the whole program, and kill it
// on an older processor.
#pragma once
#define XXH_INLINE_ALL
#include <xxhash.h>
#include <cstddef>
#include <cstdint>

#include "digest_parts.hpp"

namespace {

static_assert(sizeof(XXH3_state_t) <= sizeof(tc::DigestRoom) && alignof(XXH3_state_t) <= alignof(tc::DigestRoom));

void put(XXH128_hash_t hash, uint8_t* out) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  for (size_t i = 0; i < sizeof canonical.digest; ++i) out[i] = canonical.digest[i];
}

void parts_by_this_kernel(const tc::DigestPart* parts, size_t count, uint64_t seed, uint8_t* out) {
  if (count == 1) return put(XXH3_128bits_withSeed(parts[0].bytes, parts[0].nbytes, seed), out);
  tc::DigestRoom room;
  auto* state = reinterpret_cast<XXH3_state_t*>(room.bytes);
  XXH3_INITSTATE(state);
  XXH3_128bits_reset_withSeed(state, seed);
  for (size_t i = 0; i < count; ++i) XXH3_128bits_update(state, parts[i].bytes, parts[i].nbytes);
  put(XXH3_128bits_digest(state), out);
}

void begin_by_this_kernel(tc::DigestRoom* room) {
  auto* state = reinterpret_cast<XXH3_state_t*>(room->bytes);
  XXH3_INITSTATE(state);
  XXH3_128bits_reset(state);
}

void add_by_this_kernel(tc::DigestRoom* room, const uint8_t* bytes, size_t nbytes) {
  XXH3_128bits_update(reinterpret_cast<XXH3_state_t*>(room->bytes), bytes, nbytes);
}

void end_by_this_kernel(const tc::DigestRoom* room, uint8_t* out) {
  put(XXH3_128bits_digest(reinterpret_cast<const XXH3_state_t*>(room->bytes)), out);
}

constexpr tc::DigestKernel kThisKernel{parts_by_this_kernel, begin_by_this_kernel, add_by_this_kernel,
                                       end_by_this_kernel};

}  // namespace
