// Who is at the other end of a local connection, and whether this process may read its memory. A process is
// proven by a pidfd and by a secret that it keeps at an address of its own: credentials of a socket alone
// still name the parent while a forked child speaks.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tc/fd.hpp"
#include "tc/message.hpp"

namespace tc {

class Peer {
 public:
  // Identifies the process that connected `socket`; `claimed` is the pid it sent, as it sees itself.
  static std::shared_ptr<Peer> identify(int socket, pid_t claimed);

  pid_t pid() const { return pid_; }     // as this process sees it; the claimed one where it is invisible
  bool known() const { return known_; }  // the kernel says that it is pid(), not only the process itself
  int pidfd() const { return pidfd_.get(); }
  bool alive() const;  // true when it cannot be told
  bool vm_read() const { return vm_read_; }
  void refuse_vm_read() { vm_read_ = false; }

  // Reads the cookie back from the peer's memory; may block as long as the peer's memory does, so not for the
  // serving thread. Sets vm_read().
  void probe(uint64_t cookie_address, const Cookie& cookie);
  // Whether `address` still holds `ticket`: the caller of a put waits, so the bytes read so far were right.
  bool holds(uint64_t address, const Cookie& ticket) const;

 private:
  pid_t pid_ = 0;
  bool known_ = false;
  Fd pidfd_;
  std::atomic<bool> vm_read_{false};
};

}  // namespace tc
