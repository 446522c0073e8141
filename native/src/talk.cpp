#include "tc/talk.hpp"

#include <sys/socket.h>

#include <cerrno>

#include "tc/message.hpp"

namespace tc {

uint32_t answer_body_limit(Kind) { return kBodyBytesMax; }

PeerGone talk_over(const std::string& path, Got got, const FrameReader& reader) {
  if (got == Got::kOtherVersion) {
    return PeerGone("the storage at " + path + " speaks version " + std::to_string(reader.other_version()) +
                    " of the local protocol and this process version " + std::to_string(kWireVersion) +
                    ": run the same release on both sides");
  }
  if (got == Got::kBroken) return PeerGone("what answers at " + path + " makes no sense: " + reader.why());
  return PeerGone(hung_up(path));
}

Talk::Talk(std::string path, const Wait& wait)
    : path_(std::move(path)), socket_(std::make_shared<OwnFd>(&unix_socket)), reader_(&answer_body_limit) {
  connect_to(socket_->get(), path_, wait);
}

void Talk::send(std::string frame, const std::vector<int>& fds, const Wait& wait) {
  Outbox outbox;
  outbox.push(0, std::move(frame), fds);
  while (outbox.flush(socket_->get()) == Outbox::Flushed::kBlocked) {
    wait.poll_once(socket_->get(), POLLOUT, "send");
    if (wait.left_ms() == 0) wait.check("send");
  }
}

bool Talk::send_bytes(uint64_t address, uint64_t nbytes, const Wait& wait) {
  constexpr uint64_t kAtOnce = 4u << 20;
  const char* from = reinterpret_cast<const char*>(address);
  while (nbytes > 0) {
    const ssize_t n = ::send(socket_->get(), from, std::min(nbytes, kAtOnce), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      from += n;
      nbytes -= static_cast<uint64_t>(n);
      if (wait.left_ms() == 0) wait.check("stream");
      continue;
    }
    if (errno == EFAULT) throw std::invalid_argument("a piece of the put lies in memory that cannot be read");
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
    if (wait.poll_once(socket_->get(), POLLOUT | POLLIN, "stream") & POLLIN) return false;
  }
  return true;
}

Frame Talk::receive(const Wait& wait) {
  Frame frame;
  for (;;) {
    const Got got = reader_.read(socket_->get(), frame);
    if (got == Got::kNothing || got == Got::kMore) {
      if (got == Got::kNothing) wait.poll_once(socket_->get(), POLLIN, "answer");
      if (wait.left_ms() == 0) wait.check("answer");
      continue;
    }
    if (got != Got::kFrame) throw talk_over(path_, got, reader_);
    if (frame.kind() != Kind::kReply || frame.header.request != 0) return frame;
    const std::optional<Reply> reply = Reply::decode(frame.body);
    throw PeerGone("the storage at " + path_ + " refused the connection: " + (reply ? reply->body : "no reason given"));
  }
}

}  // namespace tc
