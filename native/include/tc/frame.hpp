// Receiving: frames out of a stream socket, piece by piece, with the descriptors that came along. Reads
// exactly one frame and never past its end, so descriptors cannot be taken for another frame's. Only regular files and
// ends of pipes to read come through. Used by both ends.
#pragma once
#include <string>
#include <vector>

#include "tc/fd.hpp"
#include "tc/wire.hpp"

namespace tc {

struct Frame {
  Header header{};
  std::string body;
  std::vector<Fd> fds;
  Kind kind() const { return static_cast<Kind>(header.kind); }
};

// kNothing: no whole frame yet, and no more bytes now. kMore: the same, but there may be more bytes: come
// again at once, after the others' turn. kBroken: the bytes make no sense, see why().
enum class Got { kFrame, kNothing, kMore, kEnd, kOtherVersion, kBroken };

class FrameReader {
 public:
  using BodyLimit = uint32_t (*)(Kind kind);

  // `limit` gives the largest body to accept for a kind; 0 refuses the kind unless its body is empty.
  explicit FrameReader(BodyLimit limit) : limit_(limit) {}

  // Takes what is there, at most about a MiB, without blocking.
  Got read(int fd, Frame& out);
  uint64_t held_bytes() const { return frame_.body.capacity(); }  // of a body that is half there
  const std::string& why() const { return why_; }
  uint16_t other_version() const { return other_version_; }

 private:
  Got take(int fd, char* into, size_t nbytes, size_t& got);
  Got check_header();
  Got broken(std::string why);

  BodyLimit limit_;
  Frame frame_;
  size_t header_have_ = 0;
  size_t body_have_ = 0;
  size_t fds_checked_ = 0;
  std::string why_;
  uint16_t other_version_ = 0;
};

}  // namespace tc
