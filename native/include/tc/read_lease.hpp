// A read lease on a file (fcntl(2), F_SETLEASE): while it is held nobody has the file open for writing, and whoever
// tries to open or truncate it waits until the lease is given up. A file's times cannot prove that: a write sets them
// when it begins, not when it ends. Only a file's owner, or a process with CAP_LEASE, may take one, and not every file
// system has them.
#pragma once

namespace tc {

class ReadLease {
 public:
  enum class State { kHeld, kBeingWritten, kNotToBeHad };

  // `fd` is open for reading only, and stays the caller's; it outlives the lease.
  explicit ReadLease(int fd);
  ~ReadLease();
  ReadLease(const ReadLease&) = delete;
  ReadLease& operator=(const ReadLease&) = delete;

  State state() const { return state_; }
  bool wanted_by_a_writer() const;  // held, and somebody waits to write: what is read from now on is still the old

 private:
  const int fd_;
  State state_;
};

}  // namespace tc
