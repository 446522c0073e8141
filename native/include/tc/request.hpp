// What the native server hands to the storage's Python, and the queue it does that with: events go in under a
// lock of their own, an eventfd tells, Python drains. Nothing native ever calls Python.
#pragma once
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "tc/fd.hpp"
#include "tc/fill_done.hpp"
#include "tc/message.hpp"

namespace tc {

// kGone: the asker of `id` hung up or gave up; an answer would reach nobody. kDied: the process behind what was kept
// as `id` has ended.
enum class RequestKind { kPut, kAttach, kCall, kGone, kDied };

// One thing a client asks that only the storage can decide.
struct Request {
  uint64_t id = 0;
  uint64_t session = 0;
  RequestKind kind = RequestKind::kCall;
  std::string art_id;
  std::string body;            // put: the manifest draft; call: the message; attach: what came with it
  bool manifest_only = false;  // attach
  std::vector<uint64_t> segment_bytes;
  std::vector<FileIdentity> files;  // put: those that came with it, in order
  std::vector<Piece> pieces;        // put: what is read whence; empty for one that is streamed
  std::string source;               // put: "vm_read", "socket" or "file"
  uint64_t budget_ms = 0;
  int pid = 0;
};

using Event = std::variant<Request, FillDone>;

class EventQueue {
 public:
  EventQueue();
  void push(Event event);
  std::vector<Event> drain();
  void forget_death(uint64_t source);     // a kDied of it that was not drained
  int fd() const { return wake_.get(); }  // readable while events wait

 private:
  std::mutex m_;
  std::vector<Event> events_;
  Fd wake_;
};

}  // namespace tc
