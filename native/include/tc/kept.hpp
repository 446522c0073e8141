// What the storage keeps of registrations: the plan of a put, its open files and the process whose memory it names, for
// pulls that come later, or never. The process is watched by its pidfd in the server's epoll, under kept_tag(source);
// where there is none, the end of its session stands for its end. Not locked: the server's lock covers it.
#pragma once
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tc/fd.hpp"
#include "tc/message.hpp"
#include "tc/peer.hpp"
#include "tc/pulls.hpp"

namespace tc {

// Another way to read what was kept: pieces over the same memory, inline bytes of its own, the same files.
struct KeptPlan {
  std::vector<uint64_t> segment_bytes;
  std::vector<Piece> pieces;
  std::string inline_bytes;
};

class KeptSources {
 public:
  static constexpr uint64_t kTagBit = 1ull << 62;
  // Of one process; what cannot be told apart by process counts by session.
  static constexpr uint64_t kSourcesMax = 4096;
  static constexpr uint64_t kFilesMax = 8192;
  static constexpr uint64_t kPlanBytesMax = 128u << 20;
  static constexpr uint64_t kAllPlanBytesMax = 512u << 20;
  static constexpr uint64_t kept_tag(uint64_t source) { return kTagBit | source; }

  explicit KeptSources(int epoll);

  // Takes over `files`. Throws std::invalid_argument past a limit, std::system_error without a descriptor.
  uint64_t keep(const PutMessage& put, std::vector<Fd> files, std::shared_ptr<Peer> peer, uint64_t session);
  // A pull over it, but for its id, segments and rows; empty for an unknown source. Throws std::invalid_argument for a
  // plan that reaches beyond what was kept, std::system_error without a descriptor.
  std::shared_ptr<Pull> pull(uint64_t source, std::optional<KeptPlan> plan) const;
  void let_go(uint64_t source);

  // Which sources have lost their owner by this: each is told once.
  std::optional<uint64_t> process_ended(uint64_t source);
  std::vector<uint64_t> hung_up(uint64_t session);
  bool watched(uint64_t source) const;  // by a pidfd
  pid_t pid(uint64_t source) const;

 private:
  struct Kept {
    std::vector<uint64_t> segment_bytes;
    std::vector<Piece> pieces;
    std::string inline_bytes;
    std::vector<FileIdentity> identities;
    std::vector<Fd> files;
    std::shared_ptr<Peer> peer;
    uint64_t ticket_address = 0;
    Cookie ticket{};
    uint64_t session = 0;
    uint64_t owner = 0;  // as Pull::asker
    bool streamed = false;
    Fd watch;  // a pidfd of its own
    bool told = false;
    uint64_t plan_bytes = 0;
  };
  // What one owner has, or all together.
  struct Sum {
    uint64_t sources = 0, files = 0, plan_bytes = 0;
  };

  void check_room(const Kept& kept) const;
  void count(const Kept& kept);
  void uncount(const Kept& kept);
  void watch(Kept& kept, uint64_t source);
  void unwatch(Kept& kept);

  const int epoll_;
  uint64_t descriptors_max_;  // of all: what is open here serves others too
  uint64_t next_ = 1;
  Sum all_;
  std::unordered_map<uint64_t, Sum> of_owner_;
  std::unordered_map<uint64_t, Kept> kept_;
};

// Duplicates; throws std::system_error when no descriptor is left.
std::vector<Fd> duplicates(const std::vector<int>& fds);

}  // namespace tc
