// The bodies of the local protocol, one struct a kind. encode() makes a whole frame; decode() gives nothing
// for a body that is short, too long, or breaks a limit, nor for an artifact id that is not UTF-8.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "tc/fill.hpp"
#include "tc/wire.hpp"

namespace tc {

using Cookie = std::array<uint8_t, 16>;

inline constexpr uint32_t kPutSegmentsMax = 4096;
inline constexpr uint32_t kPutFilesMax = 4096;
inline constexpr uint32_t kArtIdBytesMax = 4096;

// Answers; the Python face is LocalStatus. kStream: the storage could not read the client's memory, stream
// it.
enum class Status : uint32_t {
  kOk = 0,
  kFailed = 1,
  kStream = 2,
  kBadRequest = 3,
  kVersion = 4,
  kMoved = 5,     // an attach: Python's word on where to look instead
  kManifest = 6,  // an attach of the manifest only: Python's word on what is not in the pool
};

struct Hello {
  static constexpr uint32_t kNoVmRead = 1;  // do not read my memory
  static constexpr uint32_t kForPut = 2;    // a data connection of `session`; carries no lifeline

  uint32_t pid = 0;  // as the client sees itself
  uint32_t flags = 0;
  uint64_t session = 0;
  uint64_t cookie_address = 0;  // where the client keeps the cookie: whoever reads it there reads the right process
  Cookie cookie{};

  std::string encode(uint16_t fds = 1) const;  // descriptors that go along; none for a put
  static std::optional<Hello> decode(std::string_view body);
};

struct Welcome {
  uint64_t session = 0;
  bool vm_read = false;
  std::string greeting;

  std::string encode() const;
  static std::optional<Welcome> decode(std::string_view body);
};

struct FileIdentity {
  uint64_t device, inode, size;
  int64_t mtime_ns;
};

struct PutMessage {
  static constexpr uint32_t kStreamed = 1;  // kMemory pieces follow on this connection after GO

  uint64_t budget_ms = 0;
  uint32_t flags = 0;
  uint64_t ticket_address = 0;  // holds the ticket while the caller still waits, zeroes once it does not
  Cookie ticket{};
  std::string art_id;
  std::string draft;
  std::vector<uint64_t> segment_bytes;
  std::vector<Piece> pieces;
  std::vector<Row> rows;
  std::string inline_bytes;
  std::vector<FileIdentity> files;

  std::string encode(uint64_t request, uint16_t fds) const;
  static std::optional<PutMessage> decode(std::string_view body);
};

struct Reply {
  uint32_t status = 0;
  std::string body;

  std::string encode(uint64_t request) const;
  static std::optional<Reply> decode(std::string_view body);
};

struct AttachMessage {
  static constexpr uint32_t kManifestOnly = 1;

  uint64_t budget_ms = 0;
  uint64_t lifeline = 0;  // the client's number of the lifeline that the pins hang on
  uint32_t flags = 0;
  std::string art_id;
  std::string body;  // for the storage's Python, where it is asked

  std::string encode(uint64_t request) const;
  static std::optional<AttachMessage> decode(std::string_view body);
};

struct AttachedRange {
  uint32_t fd_index;
  uint32_t reserved;
  uint64_t offset;  // in the extent
  uint64_t nbytes;
};

// kInline: the bytes are in the message. kMapped: map the ranges back to back. kCopied: a small segment that
// found no room in the message; copy it out of its one range.
enum class SegmentKind : uint32_t { kInline = 1, kMapped = 2, kCopied = 3 };

struct AttachedSegment {
  uint64_t nbytes = 0;
  SegmentKind kind = SegmentKind::kInline;
  std::vector<AttachedRange> ranges;
};

struct Attached {
  uint64_t pin = 0;  // 0: nothing is mapped, nothing to unpin
  uint32_t fds = 0;  // in all, FDS frames included
  std::vector<AttachedSegment> segments;
  std::string inline_bytes;  // of the kInline segments, in order

  std::string encode(uint64_t request, uint16_t fds_here) const;
  static std::optional<Attached> decode(std::string_view body);
};

struct CallMessage {
  uint64_t budget_ms = 0;
  std::string body;

  std::string encode(uint64_t request) const;
  static std::optional<CallMessage> decode(std::string_view body);
};

}  // namespace tc
