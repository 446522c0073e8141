#include "tc/digest.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tc/digest_spans.hpp"
#include "tc/row_digests.hpp"

namespace {

using namespace tc;

std::string hex(const Digest& digest) {
  std::string text;
  char two[3];
  for (const uint8_t byte : digest) {
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

std::vector<uint8_t> bytes(size_t nbytes) {
  std::vector<uint8_t> bytes(nbytes);
  for (size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<uint8_t>((i * 2654435761u) >> 24);
  return bytes;
}

// Made with libxxhash 0.8.1 (XXH3_128bits_withSeed) over bytes().
struct Golden {
  size_t nbytes;
  uint64_t seed;
  const char* digest;
};
constexpr Golden kGolden[] = {
    {0, 0, "99aa06d3014798d86001c324468d497f"},       {1, 0, "a6cd5e9392000f6ac44bdff4074eecdb"},
    {3, 0, "977fcbc0448b49f6e14090f554a5ea90"},       {16, 0, "78e8ab538d3acaab37286a19cf622308"},
    {17, 0, "1ea709ada2b9c32e33bed349ec1c0ce7"},      {128, 0, "5ac741c59c95d36ae1f0636051ccd2be"},
    {129, 0, "1240f4d960139642cfb3fed667226458"},     {240, 0, "640a6149838a7599b2e6947c477a4ab0"},
    {241, 0, "e817e20e53e42a8c2d431e984c441f15"},     {1024, 0, "df4c8b9ff9715101e99def1145f12936"},
    {1025, 0, "63e845aab7eb695f83cba9b371e4e7f4"},    {1000000, 0, "a5058e5d8c6f579db0a556c44e5591b7"},
    {4194304, 0, "d654a284e99b095d6b6ba170dedf5063"}, {0, 1, "d9265cc53bb2b9ae6131b78f753823cd"},
    {1, 1, "3b3052d680068ad35eaac1f7b17ef730"},       {3, 1, "467d1223b1d2dd8f4c85558010bba0eb"},
    {16, 1, "f5a9f7925a18e65fb61d296626f31c37"},      {17, 1, "be87d50892929cb4450f5b7efb09d9ad"},
    {128, 1, "c272cc0d77d7be75d3d91a85fbccce3e"},     {129, 1, "01dcc705697793b2323ce7363cd40d84"},
    {240, 1, "f9bc5a4eb3ef609fa273079d9fcdc498"},     {241, 1, "77d5b39ef07d8479ccfead76053a786a"},
    {1024, 1, "76d87a6e452c1b9343244b063299d799"},    {1025, 1, "0ef34db37aa88cb081293efb2ec05c8d"},
    {1000000, 1, "ac850bce741722cbd083c490947541b0"}, {4194304, 1, "2690358c68fb3d6ae97fbf22b716ea49"},
};

}  // namespace

TEST_CASE("digest: golden vectors of xxh3-128, by every kernel, in one part and in two") {
  const auto all = bytes(4u << 20);
  for (const Golden& golden : kGolden) {
    const std::span<const uint8_t> some(all.data(), golden.nbytes);
    CHECK(hex(xxh3_128(some, golden.seed)) == golden.digest);
    for (const Digest& digest : digest_by_every_kernel(some, golden.seed)) CHECK(hex(digest) == golden.digest);
  }
  const uint8_t a = 'a';
  CHECK(hex(xxh3_128({&a, 1})) == "a96faf705af16834e6c632b61e964e1f");
}

TEST_CASE("digest: a tensor up to 4 MiB has the plain digest, a longer one that of its chunks with seed 1") {
  const auto all = bytes(8u << 20);
  CHECK(hex(tensor_digest({all.data(), 4u << 20})) == "d654a284e99b095d6b6ba170dedf5063");
  CHECK(hex(tensor_digest({all.data(), (4u << 20) + 1000})) == "7a7c753073ae3c183e0a1fef6d6e49db");
  CHECK(hex(tensor_digest(all)) == "17caedc12c7343c3317990462d69a18e");
  CHECK(hex(tensor_digest({})) == "99aa06d3014798d86001c324468d497f");
}

TEST_CASE("digest: rows are complete once every byte came, in any order, in any cut, overlapping or not") {
  const auto all = bytes((9u << 20) + 123);
  const uint64_t size = all.size();
  const std::vector<Row> rows = {
      {0, 0, 0, size},       {0, 0, 0, 100},      {0, 0, 50, 100}, {0, 0, size, 0},
      {0, 0, 5, (4u << 20)}, {0, 0, size - 1, 1}, {0, 0, 50, 100}, {0, 0, 1000, (4u << 20) + 1},
  };
  for (const auto& [step, in_order] :
       {std::pair{uint64_t(1) << 20, false}, {999'983, false}, {999'983, true}, {size, true}}) {
    RowDigests digests(rows);
    RowDigests::Streak streak;
    const auto locate = [&](uint32_t, uint64_t offset, uint64_t nbytes, Spans& spans) {
      const uint64_t half = nbytes / 2;  // as if a range ended there
      spans.push_back({all.data() + offset, half});
      spans.push_back({all.data() + offset + half, nbytes - half});
    };
    std::vector<uint64_t> starts;
    for (uint64_t from = 0; from < size; from += step) starts.push_back(from);
    for (size_t i = 0; i < starts.size(); ++i) {
      CHECK_FALSE(digests.complete());
      const uint64_t from = in_order ? starts[i] : starts[(i * 7 + 3) % starts.size()];  // 7 divides no count
      digests.arrived(0, from, std::min(size, from + step), locate, streak);
    }
    REQUIRE(digests.complete());
    const auto taken = digests.take();
    for (size_t i = 0; i < rows.size(); ++i)
      CHECK(taken[i] == tensor_digest({all.data() + rows[i].offset, rows[i].nbytes}));
  }
}

TEST_CASE("digest: a thread that did not bring every byte of a chunk in order does not trust its running digest") {
  const auto all = bytes(4u << 20);
  const uint64_t step = 1u << 20;
  const auto locate = [&](uint32_t, uint64_t offset, uint64_t nbytes, Spans& spans) {
    spans.push_back({all.data() + offset, nbytes});
  };
  for (const auto& order : {std::array{0, 2, 1, 3}, {1, 0, 2, 3}, {2, 3, 0, 1}, {0, 1, 2, 3}}) {
    for (const size_t threads : {size_t(1), size_t(2)}) {
      RowDigests digests({{0, 0, 0, all.size()}});
      std::vector<RowDigests::Streak> streaks(threads);
      for (size_t i = 0; i < order.size(); ++i) {
        const uint64_t from = static_cast<uint64_t>(order[i]) * step;
        digests.arrived(0, from, from + step, locate, streaks[i % threads]);
      }
      REQUIRE(digests.complete());
      CHECK(digests.take().front() == tensor_digest(all));
    }
  }
}
