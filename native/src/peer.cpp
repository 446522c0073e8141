#include "tc/peer.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace tc {

namespace {

// The pid of `pid` in its own innermost namespace: a client in a container knows itself by that one.
pid_t pid_inside(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("NSpid:", 0) != 0) continue;
    const size_t last = line.find_last_of(" \t");
    return static_cast<pid_t>(std::strtol(line.c_str() + last, nullptr, 10));
  }
  return pid;
}

Fd pidfd_of(int socket, pid_t pid) {
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0 && pidfd >= 0) return Fd(pidfd);
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

std::shared_ptr<Peer> Peer::identify(int socket, pid_t claimed) {
  auto peer = std::make_shared<Peer>();
  peer->pid_ = claimed;
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 || credentials.pid <= 0) return peer;
  peer->pidfd_ = pidfd_of(socket, credentials.pid);
  if (!peer->pidfd_ || (credentials.pid != claimed && pid_inside(credentials.pid) != claimed)) return peer;
  peer->pid_ = credentials.pid;
  peer->known_ = true;
  return peer;
}

bool Peer::alive() const {
  if (!pidfd_) return true;
  pollfd entry{pidfd_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 0;
}

bool Peer::holds(uint64_t address, const Cookie& ticket) const {
  if (!known_) return false;
  Cookie found{};
  const iovec here{found.data(), found.size()};
  const iovec there{reinterpret_cast<void*>(address), found.size()};
  const ssize_t n = ::process_vm_readv(pid_, &here, 1, &there, 1, 0);
  return n == static_cast<ssize_t>(found.size()) && found == ticket && alive();
}

void Peer::probe(uint64_t cookie_address, const Cookie& cookie) { vm_read_ = holds(cookie_address, cookie); }

}  // namespace tc
