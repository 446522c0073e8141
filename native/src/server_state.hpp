// Inside the local server. One lock covers connections, sessions, pins, the catalog and pending requests; it
// is never held while something blocks. Order of locks: the server's, then the pulls', the events' or the
// pool's.
#pragma once
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "tc/connection.hpp"
#include "tc/kept.hpp"
#include "tc/pulls.hpp"
#include "tc/server.hpp"

namespace tc {

// A request that Python was told of and has not answered.
struct Pending {
  enum class Stage { kWaiting, kReserving, kFilling };

  RequestKind kind = RequestKind::kCall;
  std::shared_ptr<Connection> asker;
  uint64_t number = 0;  // the client's
  uint64_t session = 0;
  std::string art_id;
  uint64_t body_bytes = 0;
  // attach
  uint64_t lifeline = 0;
  bool manifest_only = false;
  // put
  Stage stage = Stage::kWaiting;
  std::shared_ptr<PutMessage> put;
  std::vector<Fd> files;
  std::chrono::steady_clock::time_point deadline;
};

// A client's memory that waits to be read for the first time. Holds no connection open.
struct Probe {
  uint64_t connection = 0;
  std::shared_ptr<Peer> peer;
  uint64_t cookie_address = 0;
  Cookie cookie{};
};

struct Server::State {
  State(Pool& pool_, const std::string& path_, const ServerOptions& options_);
  ~State();

  // server_loop.cpp: the serving thread
  void serve();
  void accept_all();
  void ready(uint64_t id, uint32_t what);
  void receive(const std::shared_ptr<Connection>& c);
  Got listen_to(Connection& c, Frame& frame, std::string& why);
  bool heard(const std::shared_ptr<Connection>& c, Frame frame, std::string& why);

  // server_frames.cpp: what clients say; the lock is held. False: a protocol error, `why` says which.
  bool on_frame(const std::shared_ptr<Connection>& c, Frame frame, std::string& why);
  bool on_hello(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why);
  bool on_put_hello(const std::shared_ptr<Connection>& c, const Hello& hello, std::string& why);
  bool on_control(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why);
  bool on_attach(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why);
  bool on_call(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why);
  bool on_unpin(const std::shared_ptr<Connection>& c, const Frame& frame);
  void on_cancel(const std::shared_ptr<Connection>& c, uint64_t number);
  bool on_put(const std::shared_ptr<Connection>& c, Frame& frame, std::string& why);
  bool admit(const std::shared_ptr<Connection>& c, Pending pending, Request request, std::string& why);

  // server_probes.cpp; the lock is held, but for welcome_late(), which gives the ms until it must look again, or -1
  void probe(const std::shared_ptr<Connection>& c, const Hello& hello);
  void probe_next(pid_t pid);
  void welcome(Connection& c);
  int sleep_ms();
  int welcome_late();

  // server_limits.cpp; the lock is held, but for keeps_asked(): false when this connection had to go
  void take_in(const std::shared_ptr<Connection>& c);
  bool keeps_asked(const std::shared_ptr<Connection>& c);
  void doom_deafest();

  // server_answers.cpp: what clients are told; the lock is held
  void send(Connection& c, std::string frame, std::vector<int> fds = {});
  void answer(Connection& c, uint64_t number, Status status, std::string_view body);
  void attached(Connection& c, uint64_t number, uint64_t lifeline, bool manifest_only,
                const std::shared_ptr<Published>& entry);
  std::unordered_map<uint64_t, Pending>::iterator pending_attach(uint64_t request);  // throws UnknownRequest
  void settle_attached(std::unordered_map<uint64_t, Pending>::iterator it, const std::shared_ptr<Published>& entry);
  void watch(Connection& c, int operation);
  void doom(Connection& c);
  void bury(const std::shared_ptr<Connection>& c);
  void settle(std::unordered_map<uint64_t, Pending>::iterator pending);
  void gone(std::unordered_map<uint64_t, Pending>::iterator pending);
  void filled(const std::shared_ptr<Pull>& pull, FillResult result);  // takes the lock itself

  // server_kept.cpp; the lock is held
  void owner_ended(uint64_t source);

  // server_puts.cpp
  std::shared_ptr<PutMessage> begin_reserving(uint64_t request);
  void start_put(uint64_t request, const std::vector<SegmentId>& segments, std::optional<std::vector<Row>> rows);

  Pool& pool;
  const std::string path;
  const ServerOptions options;

  mutable std::mutex m;
  Fd epoll, listener, wake, spare;
  uint64_t inode = 0;
  uint64_t next_connection = 2;  // 0 and 1 are the tags of the listener and of wake
  uint64_t next_request = kFirstRequest;
  std::unordered_map<uint64_t, std::shared_ptr<Connection>> connections;
  std::unordered_map<uint64_t, Pending> pending;
  std::unordered_map<uid_t, uint64_t> connections_of_uid;
  uint64_t unsent_bytes = 0;  // of all outboxes
  uint64_t asked_bytes = 0;   // of all connections' partial_bytes and request_bytes
  std::optional<Catalog> catalog;
  std::optional<Ledger> ledger;
  std::optional<KeptSources> kept;
  EventQueue events;
  bool stopping = false;
  std::unordered_map<pid_t, std::deque<Probe>> probes;                                // the front one is under way
  std::deque<std::pair<std::chrono::steady_clock::time_point, uint64_t>> unwelcomed;  // by when, which connection
  Workers probers{16};
  std::optional<Pulls> pulls;
  std::thread thread;
};

}  // namespace tc
