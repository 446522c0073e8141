#include "tc/memory_reader.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace tc {
namespace {

constexpr int kSliceMsMax = 50;

bool ended(int pidfd) {
  pollfd watch{pidfd, POLLIN, 0};
  return poll(&watch, 1, 0) != 0;
}

// A list of iovecs that shrinks from the front as bytes arrive.
class Vectors {
 public:
  void add(void* at, size_t nbytes) { list_.push_back({at, nbytes}); }
  bool empty() const { return first_ == list_.size(); }
  iovec* begin() { return &list_[first_]; }
  size_t size() const { return list_.size() - first_; }
  void skip(size_t nbytes) {
    while (nbytes > 0) {
      iovec& front = list_[first_];
      const size_t part = std::min(nbytes, front.iov_len);
      front = {static_cast<uint8_t*>(front.iov_base) + part, front.iov_len - part};
      nbytes -= part;
      if (front.iov_len == 0) ++first_;
    }
  }

 private:
  std::vector<iovec> list_;
  size_t first_ = 0;
};

}  // namespace

void MemoryReader::check_alive() const {
  if (ended(pidfd_)) throw Trouble{FillStatus::kGone, ESRCH, "process " + std::to_string(pid_) + " has ended"};
}

void MemoryReader::read(std::span<const Fragment> fragments, const Crew& crew) const {
  Vectors local, remote;
  for (const Fragment& fragment : fragments) {
    local.add(fragment.to.data(), fragment.to.size());
    remote.add(reinterpret_cast<void*>(fragment.src), fragment.to.size());
  }
  while (!local.empty()) {
    crew.check();
    const ssize_t got = process_vm_readv(pid_, local.begin(), local.size(), remote.begin(), remote.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) failed(reinterpret_cast<uint64_t>(remote.begin()->iov_base), got < 0 ? errno : EFAULT);
    local.skip(static_cast<size_t>(got));
    remote.skip(static_cast<size_t>(got));
  }
}

void MemoryReader::failed(uint64_t address, int error) const {
  check_alive();
  // The process lives: it refuses (EPERM), is on its way out (ESRCH), or does not have this memory.
  const bool gone = error == ESRCH || error == EPERM;
  throw Trouble{gone ? FillStatus::kGone : FillStatus::kSourceError, error,
                "reading memory of process " + std::to_string(pid_) + " at address " + std::to_string(address) + ": " +
                    std::strerror(error)};
}

void StreamReader::read(std::span<const Fragment> fragments, const Crew& crew) {
  Vectors into;
  for (const Fragment& fragment : fragments) into.add(fragment.to.data(), fragment.to.size());
  auto last_byte = Crew::Clock::now();
  while (!into.empty()) {
    crew.check();
    msghdr message{};
    message.msg_iov = into.begin();
    message.msg_iovlen = into.size();
    const ssize_t got = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got > 0) {
      into.skip(static_cast<size_t>(got));
      received_ += static_cast<uint64_t>(got);
      last_byte = Crew::Clock::now();
    } else if (got == 0) {
      throw Trouble{FillStatus::kSourceShort, 0, "the stream ended after " + std::to_string(received_) + " bytes"};
    } else if (errno == EAGAIN) {
      if (Crew::Clock::now() - last_byte >= idle_max_)
        throw Trouble{FillStatus::kSourceShort, 0,
                      "the sender stopped after " + std::to_string(received_) + " bytes: none came for " +
                          std::to_string(idle_max_.count()) + " ms"};
      wait(crew);
    } else if (errno != EINTR) {
      const int error = errno;
      throw Trouble{error == ECONNRESET ? FillStatus::kGone : FillStatus::kSourceError, error,
                    "receiving after " + std::to_string(received_) + " bytes: " + std::strerror(error)};
    }
  }
}

void StreamReader::wait(const Crew& crew) const {
  pollfd watch[] = {{fd_, POLLIN, 0}, {pidfd_, POLLIN, 0}};  // poll ignores a negative descriptor
  if (poll(watch, 2, crew.slice_ms(kSliceMsMax)) <= 0) return;
  if (watch[1].revents != 0 && watch[0].revents == 0)
    throw Trouble{FillStatus::kGone, ESRCH,
                  "the sender ended after " + std::to_string(received_) + " bytes of its stream"};
}

}  // namespace tc
