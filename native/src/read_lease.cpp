#include "tc/read_lease.hpp"

#include <fcntl.h>
#include <cerrno>
#include <csignal>

namespace tc {
namespace {

ReadLease::State take(int fd) {
  // A break is told by a signal, SIGIO by default, which ends a process. SIGURG is ignored by default, and then nobody
  // is to be told at all: wanted_by_a_writer() asks.
  ::fcntl(fd, F_SETSIG, SIGURG);
  const int got = ::fcntl(fd, F_SETLEASE, F_RDLCK);
  const int error = errno;
  ::fcntl(fd, F_SETOWN, 0);
  if (got == 0) return ReadLease::State::kHeld;
  return error == EAGAIN ? ReadLease::State::kBeingWritten : ReadLease::State::kNotToBeHad;
}

}  // namespace

ReadLease::ReadLease(int fd) : fd_(fd), state_(take(fd)) {}

ReadLease::~ReadLease() {
  if (state_ == State::kHeld) ::fcntl(fd_, F_SETLEASE, F_UNLCK);
}

// While a break is pending, F_GETLEASE tells what the lease is to become.
bool ReadLease::wanted_by_a_writer() const { return state_ == State::kHeld && ::fcntl(fd_, F_GETLEASE) != F_RDLCK; }

}  // namespace tc
