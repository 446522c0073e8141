#include "tc/server.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "server_state.hpp"
#include "tc/socket.hpp"
#include "tc/thread.hpp"
#include "tc/wait.hpp"

namespace tc {

namespace {

constexpr size_t kGreetingBytesMax = 1u << 20;

// Every client costs two descriptors or three, so the soft limit is raised as far as it goes.
void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

uint64_t inode_of(const std::string& path) {
  struct stat found{};
  return ::lstat(path.c_str(), &found) == 0 ? found.st_ino : 0;
}

void watch_forever(int epoll, int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "the local server cannot watch its sockets");
  }
}

}  // namespace

Server::State::State(Pool& pool_, const std::string& path_, const ServerOptions& options_)
    : pool(pool_), path(path_), options(options_) {
  if (options.greeting.size() > kGreetingBytesMax) throw std::invalid_argument("a greeting has at most 1 MiB");
  raise_open_files();
  epoll.reset(::epoll_create1(EPOLL_CLOEXEC));
  wake.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  spare.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!epoll || !wake || !spare) throw std::system_error(errno, std::generic_category(), "no descriptor is left");
  catalog.emplace(pool);
  ledger.emplace(pool, epoll.get());
  kept.emplace(epoll.get());
  pulls.emplace(pool, options.pull_threads,
                [this](const std::shared_ptr<Pull>& pull, FillResult result) { filled(pull, std::move(result)); });
  listener = listen_at(path, options.mode);
  inode = inode_of(path);
  watch_forever(epoll.get(), listener.get(), 0);
  watch_forever(epoll.get(), wake.get(), 1);
  thread = native_thread([this] { serve(); });
}

Server::State::~State() {
  for (const Event& event : events.drain()) {
    if (const auto* done = std::get_if<FillDone>(&event)) {
      for (SegmentId segment : done->segments) pool.drop(segment);
    }
  }
}

Server::Server(Pool& pool, const std::string& path, const ServerOptions& options)
    : state_(std::make_unique<State>(pool, path, options)) {}

Server::~Server() { stop(); }

void Server::stop() {
  {
    const std::lock_guard lock(state_->m);
    if (std::exchange(state_->stopping, true)) return;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(state_->wake.get(), &one, sizeof(one));
  state_->thread.join();
  if (inode_of(state_->path) == state_->inode) ::unlink(state_->path.c_str());
  {
    const std::lock_guard lock(state_->m);
    state_->listener.reset();
    const auto living = state_->connections;
    for (const auto& [id, c] : living) state_->bury(c);
  }
  state_->probers.stop();
  state_->pulls->stop();
}

int Server::event_fd() const { return state_->events.fd(); }

std::vector<Event> Server::events() { return state_->events.drain(); }

void Server::cancel(uint64_t token) { state_->pulls->cancel(token); }

std::pair<uint64_t, uint64_t> Server::progress(uint64_t token) const { return state_->pulls->progress(token); }

void Server::publish(const std::string& art_id, SegmentId manifest, const std::vector<SegmentId>& segments) {
  const std::lock_guard lock(state_->m);
  state_->catalog->publish(art_id, manifest, segments);
}

void Server::republish(const std::string& art_id, SegmentId manifest, const std::vector<SegmentId>& segments) {
  const std::lock_guard lock(state_->m);
  state_->catalog->republish(art_id, manifest, segments);
}

bool Server::withdraw(const std::string& art_id) {
  const std::lock_guard lock(state_->m);
  return state_->catalog->withdraw(art_id);
}

bool Server::withdraw_idle(const std::string& art_id) {
  const std::lock_guard lock(state_->m);
  const auto entry = state_->catalog->find(art_id);
  return entry && entry->pins == 0 && state_->catalog->withdraw(art_id);
}

void Server::attach_now(uint64_t request) {
  State& s = *state_;
  const std::lock_guard lock(s.m);
  const auto it = s.pending_attach(request);
  const auto entry = s.catalog->find(it->second.art_id);
  if (!entry) throw UnknownRequest(it->second.art_id + " is not published; publish it, or reply with a refusal");
  s.settle_attached(it, entry);
}

void Server::attach_segments(uint64_t request, SegmentId manifest, const std::vector<SegmentId>& segments) {
  State& s = *state_;
  const std::lock_guard lock(s.m);
  const auto it = s.pending_attach(request);
  // Pins alone keep what is mapped; nobody else will ever find it.
  const auto entry = std::make_shared<Published>();
  entry->art_id = it->second.art_id;
  entry->segments.push_back(manifest);
  entry->segments.insert(entry->segments.end(), segments.begin(), segments.end());
  for (SegmentId segment : entry->segments) {
    if (!s.pool.sealed(segment)) {
      throw std::invalid_argument("segment " + std::to_string(segment) + " must be sealed to be attached");
    }
    entry->nbytes += s.pool.place(segment).nbytes;
  }
  s.settle_attached(it, entry);
}

void Server::reply(uint64_t request, uint32_t status, std::string body) {
  State& s = *state_;
  const std::lock_guard lock(s.m);
  const auto it = s.pending.find(request);
  if (it == s.pending.end()) return;
  std::string frame = Reply{status, std::move(body)}.encode(it->second.number);  // throws on a body that is too long
  const std::shared_ptr<Connection> c = it->second.asker;
  s.pulls->cancel(request);
  s.settle(it);
  s.send(*c, std::move(frame));
}

std::vector<Catalog::Usage> Server::usage() const {
  const std::lock_guard lock(state_->m);
  return state_->catalog->usage();
}

std::vector<Ledger::SessionRow> Server::sessions() const {
  const std::lock_guard lock(state_->m);
  return state_->ledger->sessions();
}

}  // namespace tc
