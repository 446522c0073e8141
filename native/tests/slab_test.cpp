#include "tc/slab.hpp"

#include <doctest/doctest.h>

#include <set>
#include <stdexcept>

using tc::SlabSlots;

TEST_CASE("slab: classes are powers of two from 4 KiB to 256 KiB") {
  CHECK(SlabSlots::slot_bytes(1) == 4096);
  CHECK(SlabSlots::slot_bytes(4096) == 4096);
  CHECK(SlabSlots::slot_bytes(4097) == 8192);
  CHECK(SlabSlots::slot_bytes(tc::kSlotBytesMax - 1) == tc::kSlotBytesMax);
  CHECK_THROWS_AS(SlabSlots::slot_bytes(0), std::logic_error);
  CHECK_THROWS_AS(SlabSlots::slot_bytes(tc::kSlotBytesMax + 1), std::logic_error);
}

TEST_CASE("slab: a block gives all its slots once each, lowest first, and returns when all are back") {
  SlabSlots slabs;
  CHECK_FALSE(slabs.take(8192).has_value());
  slabs.add(7, 8192);
  std::set<uint64_t> taken;
  uint64_t expected = 7 * tc::kBlockBytes;
  while (const auto slot = slabs.take(8192)) {
    CHECK(*slot == expected);
    expected += 8192;
    taken.insert(*slot);
  }
  CHECK(taken.size() == tc::kBlockBytes / 8192);
  CHECK_FALSE(slabs.take(4096).has_value());
  const uint64_t last = *taken.begin();
  taken.erase(last);
  for (const uint64_t slot : taken) CHECK_FALSE(slabs.give(slot).has_value());
  CHECK(slabs.blocks() == 1);
  CHECK(slabs.give(last) == 7u);
  CHECK(slabs.blocks() == 0);
}

TEST_CASE("slab: giving back what is not in use is an error") {
  SlabSlots slabs;
  slabs.add(0, 4096);
  CHECK_THROWS_AS(slabs.add(0, 8192), std::logic_error);
  CHECK_THROWS_AS(slabs.add(1, 5000), std::logic_error);
  const uint64_t slot = *slabs.take(4096);
  const uint64_t other = *slabs.take(4096);
  CHECK_FALSE(slabs.give(slot).has_value());
  CHECK_THROWS_AS(slabs.give(slot), std::logic_error);
  CHECK_THROWS_AS(slabs.give(other + 1), std::logic_error);
  CHECK_THROWS_AS(slabs.give(5 * tc::kBlockBytes), std::logic_error);
  CHECK(*slabs.take(4096) == slot);
}
