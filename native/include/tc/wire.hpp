// The words of the local protocol between a storage and the client processes of its host: a fixed
// little-endian header, then a body of fixed fields and length-prefixed blobs. Both ends include this file;
// nobody else knows it. Lengths are checked against what is there before anything is allocated for them.
//   control connection: HELLO (+ lifeline) -> WELCOME; then ATTACH -> FDS* ATTACHED | REPLY, CALL -> REPLY,
//   and the
//     one-way LIFELINE, UNPIN, CANCEL. Every ATTACH and CALL gets exactly one final answer, cancelled ones
//     too.
//   data connection (one put): HELLO, FDS*, PUT -> WELCOME, then GO (send the bytes now), then REPLY.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tc {

static_assert(std::endian::native == std::endian::little, "the local protocol is little-endian, as all our hosts are");

inline constexpr uint32_t kMagic = 0x4c435454;  // "TTCL"
inline constexpr uint16_t kWireVersion = 2;
inline constexpr uint32_t kBodyBytesMax = 64u << 20;
inline constexpr uint16_t kMessageFdsMax = 250;  // the kernel refuses 254

enum class Kind : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kLifeline = 3,
  kPut = 4,
  kGo = 5,
  kReply = 6,
  kAttach = 7,
  kAttached = 8,
  kUnpin = 9,
  kCall = 10,
  kCancel = 11,
  kFds = 12,  // more descriptors for the message of the same request that follows
};

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  uint64_t request;
  uint32_t body_bytes;
  uint16_t fds;
  uint16_t flags;
};
static_assert(sizeof(Header) == 24);

// Writes one frame: the header first, completed by finish().
class Encoder {
 public:
  Encoder(Kind kind, uint64_t request);
  template <typename T>
  Encoder& put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  template <typename T>
  Encoder& array(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
    put(static_cast<uint32_t>(values.size()));
    out_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    return *this;
  }
  Encoder& blob(std::string_view bytes);
  size_t body_bytes() const { return out_.size() - sizeof(Header); }
  // The whole frame. Throws std::invalid_argument when the body is over kBodyBytesMax.
  std::string finish(uint16_t fds = 0);

 private:
  std::string out_;
};

// Reads a body. A short or overlong body makes ok() false; values read after that are zero or empty.
class Decoder {
 public:
  explicit Decoder(std::string_view body) : rest_(body) {}
  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::string_view bytes = raw(sizeof(T));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  template <typename T>
  std::vector<T> array() {
    const uint64_t count = get<uint32_t>();
    const std::string_view bytes = raw(count * sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(static_cast<void*>(values.data()), bytes.data(), bytes.size());
    return values;
  }
  std::string_view blob() { return raw(get<uint32_t>()); }
  // A blob that must be UTF-8 as Python takes it (no overlong forms, no surrogates).
  std::string_view text();
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view raw(uint64_t nbytes);
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace tc
