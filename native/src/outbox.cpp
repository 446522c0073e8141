#include "tc/outbox.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tc/wire.hpp"

namespace tc {

namespace {

ssize_t send_some(int socket, const char* bytes, size_t nbytes, const std::vector<int>& fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMessageFdsMax * sizeof(int))];
  iovec part{const_cast<char*>(bytes), nbytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    std::memset(control, 0, sizeof(control));
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

void Outbox::push(uint64_t tag, std::string frame, std::vector<int> fds, std::shared_ptr<void> keep) {
  bytes_ += frame.size();
  waiting_.push_back({tag, std::move(frame), std::move(fds), std::move(keep), 0});
}

Outbox::Flushed Outbox::flush(int socket) {
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    const ssize_t n = send_some(socket, first.frame.data() + first.sent, first.frame.size() - first.sent, first.fds);
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? Flushed::kBlocked : Flushed::kBroken;
    }
    first.fds.clear();
    first.keep.reset();
    first.sent += static_cast<size_t>(n);
    bytes_ -= static_cast<size_t>(n);
    if (first.sent == first.frame.size()) waiting_.pop_front();
  }
  return Flushed::kAll;
}

void Outbox::clear() {
  waiting_.clear();
  bytes_ = 0;
}

bool Outbox::holds(uint64_t tag) const {
  return std::any_of(waiting_.begin(), waiting_.end(), [tag](const Waiting& w) { return w.tag == tag; });
}

bool Outbox::take_back(uint64_t tag) {
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if (it->tag != tag) continue;
    if (it->sent > 0) return false;
    bytes_ -= it->frame.size();
    waiting_.erase(it);
    return true;
  }
  return false;
}

}  // namespace tc
