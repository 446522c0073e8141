// The client's maps: the last reference, tensors for others, and what is refused.
#include <doctest/doctest.h>

#include "local_storage.hpp"
#include "tc/dlpack.hpp"

namespace {

constexpr uint64_t kBig = 3u << 20;

}  // namespace

TEST_CASE("release is refused while something is borrowed, and final afterwards") {
  Storage storage;
  storage.publish("a", {pattern(kBig, 1)});
  tc::Client client(storage.path, patient(), true);
  tc::Attachment got = attached(client, "a");
  tc::DlManagedTensor* tensor = tc::export_tensor(got, 1, 0, {3, 1024}, 2, 32);
  CHECK(got.borrowed() == 1);
  CHECK(got.release() == 1);
  CHECK(static_cast<uint8_t*>(tensor->tensor.data) == got.segment(1).data());
  CHECK(tensor->tensor.strides[0] == 1024);
  CHECK(tensor->tensor.strides[1] == 1);
  std::thread([tensor] { tensor->deleter(tensor); }).join();
  CHECK(got.release() == 0);
  CHECK(got.release() == 0);
  CHECK_THROWS_AS(tc::export_tensor(got, 1, 0, {1}, 1, 8), std::invalid_argument);
  CHECK_THROWS_AS(got.segment(0), std::invalid_argument);
}

TEST_CASE("a tensor outlives attachment, client and server, and its writes are its own") {
  tc::DlManagedTensor* tensor = nullptr;
  const std::string bytes = pattern(20u << 20, 1);
  {
    Storage storage;
    storage.publish("a", {bytes});
    tc::Client writer(storage.path, patient(), true), reader(storage.path, patient(), true);
    {
      tc::Attachment mine = attached(writer, "a");
      tensor = tc::export_tensor(mine, 1, 0, {20 << 20}, 1, 8);
      static_cast<char*>(tensor->tensor.data)[5] = static_cast<char>(~bytes[5]);
    }
    CHECK(holds(attached(reader, "a").segment(1), bytes));
  }
  auto* data = static_cast<char*>(tensor->tensor.data);
  data[5] = bytes[5];
  CHECK(std::memcmp(data, bytes.data(), bytes.size()) == 0);
  tensor->deleter(tensor);
}

TEST_CASE("shapes that do not fit, overflow or are misaligned are refused; empty and 0-d ones are not") {
  Storage storage;
  storage.publish("a", {pattern(1000, 1)});
  tc::Client client(storage.path, patient(), true);
  const tc::Attachment got = attached(client, "a");
  const auto refused = [&](uint64_t offset, std::vector<int64_t> shape, uint8_t bits) {
    try {
      tc::DlManagedTensor* tensor = tc::export_tensor(got, 1, offset, shape, 1, bits);
      tensor->deleter(tensor);
      return false;
    } catch (const std::invalid_argument&) {
      return true;
    }
  };
  CHECK_FALSE(refused(0, {1000}, 8));
  CHECK_FALSE(refused(999, {}, 8));
  CHECK_FALSE(refused(1000, {0, 7}, 8));
  CHECK_FALSE(refused(0, {0, 7, 0}, 64));
  CHECK(refused(0, {1001}, 8));
  CHECK(refused(1, {1000}, 8));
  CHECK(refused(UINT64_MAX, {1}, 8));
  CHECK(refused(1001, {0}, 8));
  CHECK(refused(2, {1}, 32));
  CHECK(refused(0, {-1}, 8));
  CHECK(refused(0, {INT64_MAX, 3}, 8));
  CHECK(refused(0, {INT64_MAX}, 64));
  CHECK(refused(0, {0, INT64_MAX, INT64_MAX}, 8));
  CHECK(refused(0, {1}, 4));
  CHECK(refused(0, {1}, 24));
  CHECK(refused(0, {1}, 0));
  CHECK(refused(0, std::vector<int64_t>(65, 1), 8));
  CHECK(got.borrowed() == 0);
}

TEST_CASE("maps are aligned for huge pages and copies to cache lines") {
  Storage storage;
  storage.publish("a", {pattern(kBig, 1), pattern(100, 2), ""});
  tc::Client client(storage.path, patient(), true);
  const tc::Attachment got = attached(client, "a");
  CHECK(reinterpret_cast<uint64_t>(got.segment(1).data()) % (2u << 20) == 0);
  CHECK(reinterpret_cast<uint64_t>(got.segment(2).data()) % 64 == 0);
  CHECK(got.segment(3).empty());
  CHECK(got.mapped_bytes() == kBig);
}
