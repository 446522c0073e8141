// How much memory this process may still take: the host's figure and every memory cgroup (v1 and v2) it lives
// in. Past a cgroup's limit a fault is a kill, not an error, so the pool asks here before every growth. Reads
// files only; safe to call from any thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tc {

struct MemoryRoom {
  uint64_t bytes;
  std::string source;  // "the host" or "memory cgroup /path"
};

class MemoryLimit {
 public:
  explicit MemoryLimit(std::string proc_dir = "/proc", std::string cgroup_dir = "/sys/fs/cgroup");

  MemoryRoom total() const;      // the smallest of MemTotal and the limits
  MemoryRoom available() const;  // the smallest of MemAvailable and what each limit leaves

 private:
  struct Group {
    std::string dir, path;  // where its files are, and its name for texts
    const char *limit, *used, *inactive_file, *active_file;
  };
  void find_groups(const std::string& mount, std::string path, bool v2);

  std::string proc_dir_;
  std::vector<Group> groups_;
};

}  // namespace tc
