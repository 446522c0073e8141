#include "tc/memory_limit.hpp"

#include <doctest/doctest.h>

#include "temp.hpp"

namespace {

using tc::MemoryLimit;
using testing::TempDir;

constexpr uint64_t kMiB = 1u << 20;

struct Host {
  TempDir dir;
  explicit Host(const std::string& cgroup) {
    dir.write("proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\n");
    dir.write("proc/self/cgroup", cgroup);
  }
  MemoryLimit limit() const { return MemoryLimit(dir.path() + "/proc", dir.path() + "/cgroup"); }
  void file(const std::string& name, const std::string& text) const { dir.write("cgroup/" + name, text); }
};

std::string mib(uint64_t count) { return std::to_string(count * kMiB) + "\n"; }

}  // namespace

TEST_CASE("memory limit: without a cgroup limit the host's figures count") {
  const Host host("0::/a\n");
  host.file("a/memory.max", "max\n");
  host.file("a/memory.current", mib(900));
  CHECK(host.limit().total().bytes == 1024 * kMiB);
  CHECK(host.limit().available().bytes == 512 * kMiB);
  CHECK(host.limit().available().source == "the host");
}

TEST_CASE("memory limit: the tightest cgroup on the way up decides, v2") {
  const Host host("0::/a/b/c\n");
  host.file("a/b/c/memory.max", mib(400));
  host.file("a/b/c/memory.current", mib(10));
  host.file("a/b/memory.max", "max\n");
  host.file("a/memory.max", mib(300));
  host.file("a/memory.current", mib(250));
  host.file("a/memory.stat", "anon 5\ninactive_file " + mib(20) + "active_file " + mib(10));
  CHECK(host.limit().total().bytes == 300 * kMiB);
  const auto room = host.limit().available();
  CHECK(room.bytes == 75 * kMiB);  // 300 - (250 - 20 - 10 / 2)
  CHECK(room.source == "memory cgroup /a");
}

TEST_CASE("memory limit: v1, and a container that sees its own group as the root of the mount") {
  const Host host("7:cpu,cpuacct:/x\n4:memory:/docker/unseen\n0::/\n");
  host.file("memory/memory.limit_in_bytes", mib(200));
  host.file("memory/memory.usage_in_bytes", mib(180));
  host.file("memory/memory.stat", "inactive_file 1\ntotal_inactive_file " + mib(100) + "total_active_file 0\n");
  CHECK(host.limit().total().bytes == 200 * kMiB);
  CHECK(host.limit().available().bytes == 120 * kMiB);
}

TEST_CASE("memory limit: a group over its limit leaves nothing, not a huge number") {
  const Host host("0::/a\n");
  host.file("a/memory.max", mib(100));
  host.file("a/memory.current", mib(120));
  CHECK(host.limit().available().bytes == 0);
}

TEST_CASE("memory limit: this host has some") {
  CHECK(MemoryLimit().available().bytes > 0);
  CHECK(MemoryLimit().total().bytes >= MemoryLimit().available().bytes);
}
