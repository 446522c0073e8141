#include "tc/kept.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <stdexcept>
#include <system_error>

namespace tc {

namespace {

using Stretch = std::pair<uint64_t, uint64_t>;  // of memory: from, to

bool reads_memory(const std::vector<Piece>& pieces) {
  return std::any_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.kind == PieceKind::kMemory; });
}

std::vector<Stretch> memory_of(const std::vector<Piece>& pieces) {
  std::vector<Stretch> found;
  for (const Piece& piece : pieces) {
    if (piece.kind == PieceKind::kMemory && piece.nbytes > 0) found.emplace_back(piece.src, piece.src + piece.nbytes);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// A process counts once however many sessions it has; one that cannot be told counts by session.
uint64_t owner_of(const Peer& peer, uint64_t session) {
  return peer.known() ? static_cast<uint64_t>(peer.pid()) : session | 1ull << 63;
}

// Whoever registered named these stretches; nothing else of the process is ever read.
void check_within(const std::vector<Piece>& pieces, const std::vector<Piece>& kept) {
  std::vector<Stretch> allowed;
  for (const Stretch& stretch : memory_of(kept)) {
    if (!allowed.empty() && stretch.first <= allowed.back().second) {
      allowed.back().second = std::max(allowed.back().second, stretch.second);
    } else {
      allowed.push_back(stretch);
    }
  }
  for (const Piece& piece : pieces) {
    if (piece.kind == PieceKind::kPool) throw std::invalid_argument("a kept source has no segments of the pool");
    if (piece.kind != PieceKind::kMemory || piece.nbytes == 0) continue;
    const auto behind = std::upper_bound(allowed.begin(), allowed.end(), Stretch{piece.src, UINT64_MAX});
    const bool inside = behind != allowed.begin() && piece.src < std::prev(behind)->second &&
                        piece.nbytes <= std::prev(behind)->second - piece.src;
    if (!inside) {
      throw std::invalid_argument(std::to_string(piece.nbytes) + " bytes at address " + std::to_string(piece.src) +
                                  " lie outside the memory that was registered");
    }
  }
}

}  // namespace

std::vector<Fd> duplicates(const std::vector<int>& fds) {
  std::vector<Fd> made;
  for (const int fd : fds) {
    made.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!made.back()) {
      throw std::system_error(errno, std::generic_category(), "file " + std::to_string(fd) + " cannot be kept open");
    }
  }
  return made;
}

KeptSources::KeptSources(int epoll) : epoll_(epoll) {
  rlimit limit{};
  descriptors_max_ = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 2 : 512;
}

void KeptSources::check_room(const Kept& kept) const {
  const auto found = of_owner_.find(kept.owner);
  const Sum own = found == of_owner_.end() ? Sum{} : found->second;
  const std::string whose = "process " + std::to_string(kept.peer->pid()) + " has ";
  const auto within = [](uint64_t have, uint64_t more, uint64_t limit, const std::string& what) {
    if (have + more <= limit) return;
    throw std::invalid_argument(what + ": " + std::to_string(have) + " and " + std::to_string(more) +
                                " more are over the limit of " + std::to_string(limit) +
                                "; release some registrations");
  };
  within(own.sources, 1, kSourcesMax, whose + "registrations");
  within(own.files, kept.files.size(), kFilesMax, whose + "registered files");
  within(own.plan_bytes, kept.plan_bytes, kPlanBytesMax, whose + "plan bytes of registrations");
  within(all_.plan_bytes, kept.plan_bytes, kAllPlanBytesMax, "plan bytes of all registrations here");
  within(all_.files + all_.sources, kept.files.size() + 1, descriptors_max_, "descriptors of all registrations here");
}

void KeptSources::count(const Kept& kept) {
  for (Sum* sum : {&all_, &of_owner_[kept.owner]}) {
    sum->sources += 1;
    sum->files += kept.files.size();
    sum->plan_bytes += kept.plan_bytes;
  }
}

void KeptSources::uncount(const Kept& kept) {
  const auto own = of_owner_.find(kept.owner);
  if (own == of_owner_.end()) return;  // no memory was left to count it
  for (Sum* sum : {&all_, &own->second}) {
    sum->sources -= 1;
    sum->files -= kept.files.size();
    sum->plan_bytes -= kept.plan_bytes;
  }
  if (own->second.sources == 0) of_owner_.erase(own);
}

uint64_t KeptSources::keep(const PutMessage& put, std::vector<Fd> files, std::shared_ptr<Peer> peer, uint64_t session) {
  Kept kept;
  kept.peer = std::move(peer);
  kept.session = session;
  kept.owner = owner_of(*kept.peer, session);
  kept.streamed = put.flags & PutMessage::kStreamed;
  if (!kept.streamed) {
    kept.plan_bytes = put.pieces.size() * sizeof(Piece) + put.inline_bytes.size() +
                      put.segment_bytes.size() * sizeof(uint64_t) + put.files.size() * sizeof(FileIdentity);
    kept.files = std::move(files);
  }
  check_room(kept);
  if (!kept.streamed) {
    kept.segment_bytes = put.segment_bytes;
    kept.pieces = put.pieces;
    kept.inline_bytes = put.inline_bytes;
    kept.identities = put.files;
  }
  kept.ticket_address = put.ticket_address;
  kept.ticket = put.ticket;
  const uint64_t source = next_++;
  const auto it = kept_.emplace(source, std::move(kept)).first;
  try {
    count(it->second);
    watch(it->second, source);
  } catch (...) {
    // A watch without its source would wake the server for ever: the peer keeps the pidfd open.
    let_go(source);
    throw;
  }
  return source;
}

std::shared_ptr<Pull> KeptSources::pull(uint64_t source, std::optional<KeptPlan> plan) const {
  const auto it = kept_.find(source);
  if (it == kept_.end()) return nullptr;
  const Kept& kept = it->second;
  if (kept.streamed) throw std::invalid_argument("what came over a socket was taken at once and cannot be read again");
  if (plan) check_within(plan->pieces, kept.pieces);
  const auto pull = std::make_shared<Pull>();
  FillJob& job = pull->job;
  job.segment_bytes = plan ? std::move(plan->segment_bytes) : kept.segment_bytes;
  job.pieces = plan ? std::move(plan->pieces) : kept.pieces;
  job.inline_bytes = plan ? std::move(plan->inline_bytes) : kept.inline_bytes;
  std::vector<int> fds;
  for (const Fd& file : kept.files) fds.push_back(file.get());
  pull->files = duplicates(fds);
  for (size_t i = 0; i < kept.identities.size(); ++i) {
    const FileIdentity& file = kept.identities[i];
    job.files.push_back({pull->files[i].get(), 0, file.device, file.inode, file.size, file.mtime_ns});
  }
  pull->total_bytes = std::accumulate(job.segment_bytes.begin(), job.segment_bytes.end(), uint64_t{0});
  pull->kept = true;
  pull->asker = kept.owner;
  if (reads_memory(job.pieces)) {
    pull->peer = kept.peer;
    pull->ticket_address = kept.ticket_address;
    pull->ticket = kept.ticket;
    job.pid = kept.peer->pid();
    job.pidfd = kept.peer->pidfd();
  }
  return pull;
}

void KeptSources::watch(Kept& kept, uint64_t source) {
  if (!kept.peer->known()) return;
  // A descriptor of its own: others of the same process are watched under their own tags.
  kept.watch = std::move(duplicates({kept.peer->pidfd()}).front());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kept_tag(source);
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, kept.watch.get(), &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "a registration's process cannot be watched");
  }
}

void KeptSources::unwatch(Kept& kept) {
  if (!kept.watch) return;
  // The peer's own descriptor holds the same open pidfd, so that closing alone would leave it in the epoll set.
  epoll_event none{};
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, kept.watch.get(), &none);
  kept.watch.reset();
}

void KeptSources::let_go(uint64_t source) {
  const auto it = kept_.find(source);
  if (it == kept_.end()) return;
  unwatch(it->second);
  uncount(it->second);
  kept_.erase(it);
}

std::optional<uint64_t> KeptSources::process_ended(uint64_t source) {
  const auto it = kept_.find(source);
  if (it == kept_.end() || it->second.told) return std::nullopt;
  it->second.told = true;
  unwatch(it->second);
  return source;
}

std::vector<uint64_t> KeptSources::hung_up(uint64_t session) {
  std::vector<uint64_t> ended;
  for (auto& [source, kept] : kept_) {
    if (kept.session != session || kept.watch || kept.told) continue;
    kept.told = true;
    ended.push_back(source);
  }
  return ended;
}

bool KeptSources::watched(uint64_t source) const {
  const auto it = kept_.find(source);
  return it != kept_.end() && it->second.watch;
}

pid_t KeptSources::pid(uint64_t source) const {
  const auto it = kept_.find(source);
  return it == kept_.end() ? 0 : it->second.peer->pid();
}

}  // namespace tc
