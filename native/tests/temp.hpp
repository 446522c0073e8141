// Files and bytes for tests: a folder that goes away with its owner, patterns that no two places share.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tc/fill.hpp"

namespace testing {

// Bytes that depend on their place, so that a shifted, stale or zero stretch shows.
inline std::vector<uint8_t> pattern(uint64_t nbytes, uint64_t seed = 1) {
  std::vector<uint8_t> bytes(nbytes);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return bytes;
}

class TempDir {
 public:
  explicit TempDir(const std::string& where = std::filesystem::temp_directory_path()) {
    std::string name = where + "/tensorcast-test-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = path_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// An open file of these bytes.
class TempFile {
 public:
  explicit TempFile(const std::vector<uint8_t>& bytes,
                    const std::string& where = std::filesystem::temp_directory_path())
      : dir_(where) {
    path_ = dir_.write("file", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(fd_ >= 0);
  }
  ~TempFile() { close(fd_); }

  tc::FileSource source() const {
    struct stat now{};
    REQUIRE(fstat(fd_, &now) == 0);
    return {fd_,
            0,
            now.st_dev,
            now.st_ino,
            static_cast<uint64_t>(now.st_size),
            int64_t(now.st_mtim.tv_sec) * 1'000'000'000 + now.st_mtim.tv_nsec};
  }
  // Leaves the page cache. False where the file system keeps its pages (tmpfs).
  bool make_cold() const {
    fdatasync(fd_);
    return posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED) == 0;
  }
  const std::string& path() const { return path_; }
  int fd() const { return fd_; }

 private:
  TempDir dir_;
  std::string path_;
  int fd_ = -1;
};

}  // namespace testing
