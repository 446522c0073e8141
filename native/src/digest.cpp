#include "tc/digest.hpp"

#if defined(__x86_64__)
#define XXH_VECTOR XXH_SSE2
#endif
#include <algorithm>
#include <vector>

#include "digest_kernel.hpp"
#include "tc/digest_spans.hpp"

namespace tc {
namespace {

const DigestKernel& choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return digest_avx512();
  if (__builtin_cpu_supports("avx2")) return digest_avx2();
#endif
  return kThisKernel;
}

const DigestKernel& kernel() {
  static const DigestKernel& chosen = choose();
  return chosen;
}

Digest run(const DigestPart* parts, size_t count, uint64_t seed) {
  Digest digest;
  kernel().parts(parts, count, seed, digest.data());
  return digest;
}

}  // namespace

Digest xxh3_128(std::span<const uint8_t> bytes, uint64_t seed) {
  const DigestPart part{bytes.data(), bytes.size()};
  return run(&part, 1, seed);
}

Digest xxh3_128_of_spans(std::span<const std::span<const uint8_t>> spans) {
  if (spans.size() == 1) return xxh3_128(spans[0]);
  std::vector<DigestPart> parts;
  for (const auto& span : spans) parts.push_back({span.data(), span.size()});
  return run(parts.data(), parts.size(), 0);
}

Digest digest_of_chunks(std::span<const Digest> chunks) {
  return xxh3_128({chunks.front().data(), chunks.size() * sizeof(Digest)}, 1);
}

Digest tensor_digest(std::span<const uint8_t> bytes) {
  if (bytes.size() <= kDigestChunkBytes) return xxh3_128(bytes);
  std::vector<Digest> chunks;
  for (size_t from = 0; from < bytes.size(); from += kDigestChunkBytes)
    chunks.push_back(xxh3_128(bytes.subspan(from, std::min<size_t>(kDigestChunkBytes, bytes.size() - from))));
  return digest_of_chunks(chunks);
}

RunningDigest::RunningDigest() : room_(std::make_unique<DigestRoom>()) {}
RunningDigest::~RunningDigest() = default;
void RunningDigest::begin() { kernel().begin(room_.get()); }
void RunningDigest::add(std::span<const uint8_t> bytes) { kernel().add(room_.get(), bytes.data(), bytes.size()); }

Digest RunningDigest::end() const {
  Digest digest;
  kernel().end(room_.get(), digest.data());
  return digest;
}

std::array<Digest, 3> digest_by_every_kernel(std::span<const uint8_t> bytes, uint64_t seed) {
  std::array<const DigestKernel*, 3> kernels{&kThisKernel, &kThisKernel, &kThisKernel};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) kernels[1] = &digest_avx2();
  if (__builtin_cpu_supports("avx512f")) kernels[2] = &digest_avx512();
#endif
  // Two parts as well as one: both ways through a kernel must agree.
  const size_t half = bytes.size() / 2;
  const DigestPart whole{bytes.data(), bytes.size()};
  const DigestPart halves[] = {{bytes.data(), half}, {bytes.data() + half, bytes.size() - half}};
  std::array<Digest, 3> digests;
  for (size_t i = 0; i < kernels.size(); ++i) {
    Digest again;
    kernels[i]->parts(&whole, 1, seed, digests[i].data());
    kernels[i]->parts(halves, 2, seed, again.data());
    if (again != digests[i]) digests[i] = Digest{};
  }
  return digests;
}

}  // namespace tc
