#include "tc/frame.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace tc {

namespace {

constexpr size_t kGulpBytes = 1u << 20;
constexpr size_t kScmFdsMax = 253;

// One recvmsg. Descriptors that came are owned by `fds` in any case. Returns recvmsg's result; a truncated
// control message (descriptors were lost) is EMSGSIZE.
ssize_t receive(int fd, char* into, size_t nbytes, std::vector<Fd>& fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(kScmFdsMax * sizeof(int))];
  iovec part{into, nbytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int one;
      std::memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(one);
    }
  }
  if (message.msg_flags & MSG_CTRUNC) {
    errno = EMSGSIZE;
    return -1;
  }
  return got;
}

// A socket, or the end to write of a lifeline, would keep alive here what must end with its sender. What the kernel
// knows already is enough to tell them apart: a file system that does not answer must not be asked.
bool is_welcome(int fd) {
  struct statx seen{};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &seen) != 0) return false;
  if (S_ISREG(seen.stx_mode)) return true;
  return S_ISFIFO(seen.stx_mode) && (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

}  // namespace

Got FrameReader::broken(std::string why) {
  why_ = std::move(why);
  frame_ = Frame{};
  return Got::kBroken;
}

Got FrameReader::take(int fd, char* into, size_t nbytes, size_t& got) {
  const ssize_t n = receive(fd, into, nbytes, frame_.fds);
  for (; fds_checked_ < frame_.fds.size(); ++fds_checked_) {
    if (!is_welcome(frame_.fds[fds_checked_].get()))
      return broken("a descriptor that is neither a regular file nor the read end of a pipe");
  }
  if (frame_.fds.size() > kMessageFdsMax) return broken("more than 250 descriptors with one message");
  if (n > 0) {
    got += static_cast<size_t>(n);
    return Got::kFrame;
  }
  if (n == 0) return Got::kEnd;
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return Got::kNothing;
  if (errno == ECONNRESET || errno == EPIPE) return Got::kEnd;
  if (errno == EMSGSIZE) return broken("descriptors were lost on the way: this process has too many files open");
  return broken("receiving failed: errno " + std::to_string(errno));
}

Got FrameReader::check_header() {
  const Header& h = frame_.header;
  if (h.magic != kMagic) return broken("the bytes are not a message of the local protocol");
  if (h.version != kWireVersion) {
    other_version_ = h.version;
    return Got::kOtherVersion;
  }
  if (h.body_bytes > limit_(frame_.kind())) {
    return broken("a message of kind " + std::to_string(h.kind) + " with " + std::to_string(h.body_bytes) +
                  " bytes is over its limit");
  }
  return Got::kFrame;
}

Got FrameReader::read(int fd, Frame& out) {
  char* header = reinterpret_cast<char*>(&frame_.header);
  while (header_have_ < sizeof(Header)) {
    const Got got = take(fd, header + header_have_, sizeof(Header) - header_have_, header_have_);
    if (got != Got::kFrame) return got;
    if (header_have_ == sizeof(Header)) {
      if (const Got checked = check_header(); checked != Got::kFrame) return checked;
    }
  }
  // The body grows with the bytes that really came: a header that lies about its length costs no memory.
  for (size_t gulped = 0; body_have_ < frame_.header.body_bytes;) {
    if (gulped >= kGulpBytes) return Got::kMore;
    const size_t want = std::min<size_t>(frame_.header.body_bytes - body_have_, kGulpBytes - gulped);
    if (frame_.body.size() < body_have_ + want) frame_.body.resize(body_have_ + want);
    const size_t before = body_have_;
    const Got got = take(fd, frame_.body.data() + body_have_, want, body_have_);
    if (got != Got::kFrame) return got;
    gulped += body_have_ - before;
  }
  if (frame_.fds.size() != frame_.header.fds) return broken("a message came without the descriptors that it names");
  out = std::move(frame_);
  frame_ = Frame{};
  header_have_ = body_have_ = fds_checked_ = 0;
  return Got::kFrame;
}

}  // namespace tc
