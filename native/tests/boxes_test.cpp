#include "tc/boxes.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

namespace {

using tc::Piece;
using tc::PieceKind;

Piece run_of(uint64_t src, uint64_t dst, uint64_t nbytes) { return {3, PieceKind::kFile, dst, nbytes, src, 7, 0}; }

// What the pieces bring, laid out where they say.
std::string brought(const std::vector<Piece>& pieces, const std::string& source, uint64_t dst) {
  std::string out;
  for (const Piece& piece : pieces) {
    CHECK(piece.dst == dst + out.size());
    out += source.substr(piece.src, piece.nbytes);
  }
  return out;
}

}  // namespace

TEST_CASE("a box brings its bytes in row-major order") {
  std::string source;  // 4 x 5 x 6 elements of two bytes
  for (int i = 0; i < 4 * 5 * 6; ++i) source += {static_cast<char>(i), 'x'};
  std::string wanted;  // [1:4, 0:5:2, 2:5]
  for (int i = 1; i < 4; ++i)
    for (int j = 0; j < 5; j += 2)
      for (int k = 2; k < 5; ++k) wanted += source.substr(static_cast<size_t>(i * 30 + j * 6 + k) * 2, 2);
  const auto pieces = tc::box_pieces(run_of(64, 10, 6), {3, 3}, {60, 24}, 9);
  CHECK(pieces.size() == 9);
  CHECK(brought(pieces, source, 10) == wanted);
  for (const Piece& piece : pieces) {
    CHECK(piece.segment == 3);
    CHECK(piece.kind == PieceKind::kFile);
    CHECK(piece.src_index == 7);
  }
}

TEST_CASE("runs that lie together are one piece, whatever the limit says of them apart") {
  const auto pieces = tc::box_pieces(run_of(8, 0, 4), {2, 1, 1000}, {1 << 20, 77, 4}, 2);
  REQUIRE(pieces.size() == 2);
  CHECK(pieces[0].nbytes == 4000);
  CHECK(pieces[1].src == 8 + (1 << 20));
  CHECK(pieces[1].dst == 4000);
}

TEST_CASE("a run may be read again and again") {
  const auto pieces = tc::box_pieces(run_of(5, 0, 3), {4}, {0}, 4);
  REQUIRE(pieces.size() == 4);
  for (const Piece& piece : pieces) CHECK(piece.src == 5);
}

TEST_CASE("a box of nothing has no pieces") {
  CHECK(tc::box_pieces(run_of(0, 0, 0), {5}, {5}, 1).empty());
  CHECK(tc::box_pieces(run_of(0, 0, 4), {UINT64_MAX, 0}, {UINT64_MAX, 1}, 1).empty());
}

TEST_CASE("a box with too many runs, or beyond the end of numbers, is refused") {
  constexpr uint64_t kHuge = UINT64_MAX;
  CHECK_THROWS_AS(tc::box_pieces(run_of(0, 0, 1), {3, 3}, {100, 10}, 8), std::invalid_argument);
  CHECK_THROWS_AS(tc::box_pieces(run_of(0, 0, 1), {kHuge, kHuge}, {kHuge, kHuge}, kHuge), std::invalid_argument);
  CHECK_THROWS_AS(tc::box_pieces(run_of(0, 0, 2), {1ull << 32, 1ull << 32}, {1, 1}, kHuge), std::invalid_argument);
  CHECK_THROWS_AS(tc::box_pieces(run_of(0, 0, 1), {2}, {kHuge}, 8), std::invalid_argument);
  CHECK_THROWS_AS(tc::box_pieces(run_of(kHuge, 0, 2), {}, {}, 8), std::invalid_argument);
  CHECK_THROWS_AS(tc::box_pieces(run_of(0, kHuge, 2), {}, {}, 8), std::invalid_argument);
  CHECK_THROWS_AS(tc::box_pieces(run_of(0, 0, 1), {2}, {}, 8), std::invalid_argument);
}
