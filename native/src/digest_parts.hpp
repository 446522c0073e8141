// What the digest kernels share: bytes in one or several parts, and one entry a kernel.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tc {

struct DigestPart {
  const uint8_t* bytes;
  size_t nbytes;
};

// Room for one kernel's running state.
struct alignas(64) DigestRoom {
  unsigned char bytes[640];
};

// One instruction set's functions; every `out` takes 16 bytes, canonical big-endian.
struct DigestKernel {
  // Of the parts' bytes as if they were one.
  void (*parts)(const DigestPart* parts, size_t count, uint64_t seed, uint8_t* out);
  // The same, seed 0, while they come: begin, add each, end.
  void (*begin)(DigestRoom* room);
  void (*add)(DigestRoom* room, const uint8_t* bytes, size_t nbytes);
  void (*end)(const DigestRoom* room, uint8_t* out);
};

#if defined(__x86_64__)
const DigestKernel& digest_avx2();
const DigestKernel& digest_avx512();
#endif

}  // namespace tc
