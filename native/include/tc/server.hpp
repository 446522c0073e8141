// The storage's end of the local socket: one native thread serves every client process of the host, worker
// threads fill, Python decides what only it can (commit a put, load an unknown artifact, answer a call) and
// is told through events(). A client that is slow, stopped, hostile or dead costs nobody else anything: its
// socket is never waited for, its queue is bounded, its pins end by the rules of tc/ledger.hpp.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tc/catalog.hpp"
#include "tc/kept.hpp"
#include "tc/ledger.hpp"
#include "tc/request.hpp"

namespace tc {

// The request is not pending (any more), or not of the kind that the call is for.
struct UnknownRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What all clients together may hold of a storage. Where it is over, the connection that holds most is hung up on.
struct ServerLimits {
  uint64_t unsent_bytes_max = 512u << 20;  // answers that clients do not read
  uint64_t asked_bytes_max = 1ull << 30;   // bodies of messages, half received or not yet answered
  uint64_t connections_of_uid_max = 1024;
};

struct ServerOptions {
  std::string greeting;  // opaque; handed to every client
  unsigned mode = 0600;
  unsigned pull_threads = 4;
  ServerLimits limits = {};
};

class Server {
 public:
  // Request ids start here; tokens given to load() must be below, so the two never meet in a FillDone.
  static constexpr uint64_t kFirstRequest = 1ull << 32;

  // Throws std::system_error when the path cannot be served.
  Server(Pool& pool, const std::string& path, const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int event_fd() const;
  std::vector<Event> events();

  // Reserves every segment of a pending put or none (PoolFull; the put stays pending), and starts the fill.
  // Exactly one FillDone follows. `rows`, where given, are digested instead of those that the client named: what a
  // digest covers is then the storage's word. Throws UnknownRequest.
  void accept_put(uint64_t request, std::optional<std::vector<Row>> rows = std::nullopt);
  // The same for what the storage itself opened, and for sealed segments of the pool (`sources`, held until the end).
  // `files` are duplicated. Throws PoolFull, std::invalid_argument on a token in use or too large, or a source that is
  // not sealed.
  void load(uint64_t token, std::vector<uint64_t> segment_bytes, std::vector<Piece> pieces, std::vector<Row> rows,
            const std::vector<FileSource>& files, std::string inline_bytes, const std::vector<SegmentId>& sources,
            uint64_t deadline_ms);

  // Keeps what a waiting put named (plan, files, the way to its process's memory) beyond its answer, and watches the
  // process: one kDied event with the returned number when it ends. Of a streamed put only the process is kept. Throws
  // UnknownRequest, std::invalid_argument past a limit.
  uint64_t keep(uint64_t request);
  // As load(), from what keep() kept; `plan` replaces its own, over the same files and memory. Throws UnknownRequest
  // for an unknown source.
  void load_kept(uint64_t token, uint64_t source, std::vector<Row> rows, std::optional<KeptPlan> plan,
                 uint64_t deadline_ms);
  void let_go(uint64_t source);
  void cancel(uint64_t token);
  std::pair<uint64_t, uint64_t> progress(uint64_t token) const;

  void publish(const std::string& art_id, SegmentId manifest, const std::vector<SegmentId>& segments);
  // The same artifact from other segments, in one step; who maps the old ones keeps them.
  void republish(const std::string& art_id, SegmentId manifest, const std::vector<SegmentId>& segments);
  bool withdraw(const std::string& art_id);
  // Withdraws only what no client maps, in one step: no attach comes between the look and the withdrawal. False when
  // it is mapped, or not published.
  bool withdraw_idle(const std::string& art_id);
  // Answers a pending attach from what is published by now. Throws UnknownRequest.
  void attach_now(uint64_t request);
  // The same from sealed segments that are published nowhere.
  void attach_segments(uint64_t request, SegmentId manifest, const std::vector<SegmentId>& segments);
  // Ends a pending request; a fill that still runs for it is cancelled. Nothing when the asker is gone.
  void reply(uint64_t request, uint32_t status, std::string body);

  std::vector<Catalog::Usage> usage() const;
  std::vector<Ledger::SessionRow> sessions() const;
  // Hangs up on everybody, cancels fills and waits for their end. Blocks that clients map stay pinned.
  // Idempotent.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tc
