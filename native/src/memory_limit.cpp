#include "tc/memory_limit.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace tc {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// The first number of a file; "max", an unreadable file and no file are all "no limit".
std::optional<uint64_t> number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number after `key` in a file of "key number" lines ("MemTotal: 123 kB" and "inactive_file 123").
std::optional<uint64_t> field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line, word;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    uint64_t value = 0;
    if (words >> word && word == key && words >> value) return value;
  }
  return std::nullopt;
}

}  // namespace

MemoryLimit::MemoryLimit(std::string proc_dir, std::string cgroup_dir) : proc_dir_(std::move(proc_dir)) {
  std::ifstream file(proc_dir_ + "/self/cgroup");  // lines "hierarchy:controllers:path"
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers(1, ',');
    controllers.append(line, first + 1, second - first - 1).push_back(',');
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") find_groups(cgroup_dir, path, true);
    if (controllers.find(",memory,") != std::string::npos) find_groups(cgroup_dir + "/memory", path, false);
  }
}

// The group and all its parents, since each of them limits. In a container the path may be the host's name
// for it, which is not visible; its own group is then the root of the mount.
void MemoryLimit::find_groups(const std::string& mount, std::string path, bool v2) {
  while (!path.empty() && path.front() == '/') {
    const std::string dir = path == "/" ? mount : mount + path;
    Group group{dir, path, "/memory.max", "/memory.current", "inactive_file", "active_file"};
    if (!v2)
      group = {
          dir, path, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
    if (std::ifstream(dir + group.limit).good()) groups_.push_back(group);
    if (path == "/") return;
    path.resize(std::max<size_t>(1, path.rfind('/')));
  }
}

MemoryRoom MemoryLimit::total() const {
  MemoryRoom least{field(proc_dir_ + "/meminfo", "MemTotal:").value_or(kUnlimited >> 10) << 10, "the host"};
  for (const Group& group : groups_) {
    const uint64_t limit = number(group.dir + group.limit).value_or(kUnlimited);
    if (limit < least.bytes) least = {limit, "memory cgroup " + group.path};
  }
  return least;
}

MemoryRoom MemoryLimit::available() const {
  const std::string meminfo = proc_dir_ + "/meminfo";
  const uint64_t host_total = field(meminfo, "MemTotal:").value_or(kUnlimited >> 10) << 10;
  MemoryRoom least{field(meminfo, "MemAvailable:").value_or(kUnlimited >> 10) << 10, "the host"};
  for (const Group& group : groups_) {
    const uint64_t limit = number(group.dir + group.limit).value_or(kUnlimited);
    if (limit >= host_total) continue;
    const uint64_t used = number(group.dir + group.used).value_or(limit);
    // Page cache counts as used but gives way before anybody is killed: all of the inactive part, and as much
    // of the active part as the kernel's own MemAvailable would assume. Without this, reading a checkpoint
    // through the page cache would leave no room for its copy.
    const std::string stat = group.dir + "/memory.stat";
    const uint64_t yields =
        field(stat, group.inactive_file).value_or(0) + field(stat, group.active_file).value_or(0) / 2;
    const uint64_t firm = used - std::min(used, yields);
    const uint64_t left = limit - std::min(limit, firm);
    if (left < least.bytes) least = {left, "memory cgroup " + group.path};
  }
  return least;
}

}  // namespace tc
