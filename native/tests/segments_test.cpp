#include "tc/segments.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

using tc::SegmentState;
using tc::SegmentTable;

TEST_CASE("segments: a sealed segment is freed once nobody uses or pins it, in either order") {
  SegmentTable table;
  const auto id = table.reserve(100);
  table.seal(id);
  table.hold(id);
  table.pin(id);
  CHECK_FALSE(table.drop(id));
  CHECK(table.state(id) == SegmentState::kSealed);
  CHECK_FALSE(table.drop(id));
  CHECK(table.state(id) == SegmentState::kDropped);
  CHECK(table.totals().dropped_bytes == 100);
  CHECK(table.totals().pinned_bytes == 100);
  CHECK(table.unpin(id));
  CHECK(table.state(id) == SegmentState::kUnknown);
  CHECK(table.totals().dropped_bytes == 0);
  CHECK(table.totals().pins == 0);
  const auto next = table.reserve(1);
  CHECK(next > id);
  table.seal(next);
  table.pin(next);
  CHECK_FALSE(table.unpin(next));
  CHECK(table.drop(next));
}

TEST_CASE("segments: every misuse is an error and changes nothing") {
  SegmentTable table;
  const auto id = table.reserve(8);
  CHECK_THROWS_AS(table.pin(id), std::logic_error);
  CHECK_THROWS_AS(table.hold(id), std::logic_error);
  CHECK_THROWS_AS(table.unpin(id), std::logic_error);
  CHECK_THROWS_AS(table.end_write(id), std::logic_error);
  table.seal(id);
  CHECK_THROWS_AS(table.seal(id), std::logic_error);
  CHECK_THROWS_AS(table.begin_write(id), std::logic_error);
  table.pin(id);
  CHECK_FALSE(table.drop(id));
  CHECK_THROWS_AS(table.drop(id), std::logic_error);
  CHECK_THROWS_AS(table.hold(id), std::logic_error);
  CHECK_THROWS_AS(table.pin(id), std::logic_error);
  CHECK_THROWS_AS(table.seal(id), std::logic_error);
  CHECK(table.unpin(id));
  CHECK_THROWS_AS(table.drop(id), std::out_of_range);
  CHECK_THROWS_AS(table.nbytes(77), std::out_of_range);
}

TEST_CASE("segments: a reserved segment dropped while it is written lives until the writer ends") {
  SegmentTable table;
  const auto id = table.reserve(8);
  table.begin_write(id);
  CHECK_FALSE(table.drop(id));
  CHECK(table.state(id) == SegmentState::kDropped);
  CHECK_THROWS_AS(table.seal(id), std::logic_error);
  CHECK(table.end_write(id));
  CHECK(table.size() == 0);
}
