// A process's link to the storage of its host: put, attach, call. Thread-safe. A forked child makes its own;
// what was attached before the fork stays right in both.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tc/attachment.hpp"
#include "tc/fill.hpp"
#include "tc/link.hpp"
#include "tc/ticket.hpp"

namespace tc {

// What a put brings. kMemory pieces name this process's memory, which the caller keeps alive and unchanged
// during the call (and only during it: a put that was given up is never committed from memory read later).
struct PutOrder {
  std::string art_id;
  std::string draft;
  std::vector<uint64_t> segment_bytes;
  std::vector<Piece> pieces;
  std::vector<Row> rows;
  std::string inline_bytes;
  std::vector<FileSource> files;   // fds stay the caller's
  const Ticket* ticket = nullptr;  // one that outlives the call; else there is one for the call alone
};

class Client {
 public:
  using Answered = std::pair<uint32_t, std::string>;  // status, body

  // Throws PeerGone, NotAllowed, WaitedTooLong. With `vm_read` false the storage never reads this process's
  // memory.
  Client(std::string path, const Wait& wait, bool vm_read);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& greeting() const { return greeting_; }
  bool alive() const { return link_->alive(); }
  pid_t pid() const { return pid_; }
  bool vm_read() const { return vm_read_; }

  // All throw PeerGone, WaitedTooLong, and std::invalid_argument on what does not fit the protocol.
  Answered put(const PutOrder& order, const Wait& wait);
  std::variant<Answered, Attachment> attach(const std::string& art_id, const Wait& wait, bool manifest_only,
                                            const std::string& body = {});
  Answered call(const std::string& body, const Wait& wait);
  void close() { link_->close(); }

 private:
  Answered put_once(const PutOrder& order, const Wait& wait, bool streamed);

  const std::string path_;
  const pid_t pid_;
  const std::unique_ptr<Cookie> cookie_;
  std::string greeting_;
  uint64_t session_ = 0;
  std::atomic<bool> vm_read_{false};
  std::shared_ptr<Link> link_;
};

}  // namespace tc
