#include "tc/file_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

namespace tc {
namespace {

constexpr unsigned kFileSamples = 16;
constexpr unsigned kUnitSamples = 2;
constexpr int64_t kLatelyNs = 60'000'000'000;     // longer than one write call takes, also to a slow disk
constexpr uint64_t kConfirmBytes = 1u << 20;      // compared at a time
constexpr uint64_t kDirectBytesMin = 256u << 10;  // below, a seek costs more than the page cache's copy

uint64_t up(uint64_t value) { return (value + kDirectAlignBytes - 1) / kDirectAlignBytes * kDirectAlignBytes; }

int64_t nanoseconds(const timespec& time) { return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec; }

bool is_late(int64_t mtime_ns) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return mtime_ns > nanoseconds(now) - kLatelyNs;  // or in the future: that clock proves nothing either
}

// A descriptor that cannot read must not become one that can by being opened again here: whoever passed it may not
// have the right that this process has.
bool may_read(int flags) { return (flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_WRONLY; }

// A lease belongs to an open file description, and so does its end: two readers of one description would take each
// other's away. O_NONBLOCK: nothing that this opens, nor anybody's lease on it, may make it wait.
Fd own_description(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || !may_read(flags)) return Fd();
  return Fd(open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

}  // namespace

FileReader::FileReader(const FileSource& source, uint32_t index)
    : source_(source),
      name_("file " + std::to_string(index)),
      lease_fd_(own_description(source.fd)),
      lease_(lease_fd_ ? lease_fd_.get() : source.fd),
      written_lately_(is_late(source.mtime_ns)) {}

void FileReader::check_identity() const {
  const int flags = fcntl(source_.fd, F_GETFL);
  if (flags < 0) failed("fcntl", errno);
  if (!may_read(flags)) failed("not open for reading", EBADF);
  struct stat now{};
  if (fstat(source_.fd, &now) != 0) failed("fstat", errno);
  if (!S_ISREG(now.st_mode)) failed("not a regular file", EINVAL);
  const auto compare = [&](const char* field, int64_t seen, int64_t is) {
    if (seen == is) return;
    throw Trouble{FillStatus::kSourceChanged, 0,
                  name_ + " changed: " + field + " was " + std::to_string(seen) + ", is " + std::to_string(is)};
  };
  compare("device", static_cast<int64_t>(source_.device), static_cast<int64_t>(now.st_dev));
  compare("inode", static_cast<int64_t>(source_.inode), static_cast<int64_t>(now.st_ino));
  compare("size", static_cast<int64_t>(source_.size), now.st_size);
  compare("mtime_ns", source_.mtime_ns, nanoseconds(now.st_mtim));
  check_writers();
}

void FileReader::check_writers() const {
  if (lease_.state() == ReadLease::State::kBeingWritten && written_lately_)
    throw Trouble{FillStatus::kSourceChanged, 0,
                  name_ + " is open for writing in some process, and was written lately"};
  if (lease_.wanted_by_a_writer())
    throw Trouble{FillStatus::kSourceChanged, 0, name_ + " was opened for writing while it was read"};
}

void FileReader::prepare(uint64_t offset, uint64_t nbytes) {
  if (nbytes < kDirectBytesMin) return;
  pages_ = sample(offset, nbytes, kFileSamples);
  if (pages_ == Pages::kResident) return;
  // Another open file description, so that the caller's keeps its flags. Not every file system has O_DIRECT.
  const std::string path = "/proc/self/fd/" + std::to_string(source_.fd);
  direct_fd_.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
}

void FileReader::read(uint64_t offset, std::span<uint8_t> to, const Crew& crew) {
  const auto address = reinterpret_cast<uintptr_t>(to.data());
  const uint64_t head = std::min<uint64_t>(up(offset) - offset, to.size());
  const uint64_t body = (to.size() - head) / kDirectAlignBytes * kDirectAlignBytes;
  const bool congruent = (address + head) % kDirectAlignBytes == 0;
  const bool direct = direct_fd_ && congruent && body >= kDirectBytesMin && direct_works_.load() &&
                      (pages_ == Pages::kCold || sample(offset, to.size(), kUnitSamples) != Pages::kResident);
  if (!direct) return read_buffered(offset, to, crew);
  if (head > 0) read_buffered(offset, to.first(head), crew);
  const size_t done = head + read_direct(offset + head, to.subspan(head, body), crew);
  if (done < to.size()) read_buffered(offset + done, to.subspan(done), crew);
}

void FileReader::confirm(uint64_t offset, std::span<const uint8_t> held, const Crew& crew) const {
  std::vector<uint8_t> again(std::min<uint64_t>(held.size(), kConfirmBytes));
  while (!held.empty()) {
    const auto part = held.first(std::min(held.size(), again.size()));
    read_buffered(offset, std::span(again).first(part.size()), crew);
    if (std::memcmp(again.data(), part.data(), part.size()) != 0)
      throw Trouble{FillStatus::kSourceChanged, 0,
                    name_ + " changed while it was read: other bytes near offset " + std::to_string(offset)};
    offset += part.size();
    held = held.subspan(part.size());
  }
}

// preadv2(RWF_NOWAIT) of single bytes, since mincore lies about files that we may not write.
FileReader::Pages FileReader::sample(uint64_t offset, uint64_t nbytes, unsigned samples) const {
  unsigned resident = 0;
  for (unsigned i = 0; i < samples; ++i) {
    uint8_t byte = 0;
    const iovec into{&byte, 1};
    const uint64_t at = offset + nbytes / samples * i + nbytes / samples / 2;
    const ssize_t got = preadv2(source_.fd, &into, 1, static_cast<off_t>(at), RWF_NOWAIT);
    // A file system without RWF_NOWAIT is unlikely to have O_DIRECT: leave it to the page cache.
    if (got == 1 || (got < 0 && errno == EOPNOTSUPP)) ++resident;
  }
  if (resident == samples) return Pages::kResident;
  return resident == 0 ? Pages::kCold : Pages::kMixed;
}

void FileReader::read_buffered(uint64_t offset, std::span<uint8_t> to, const Crew& crew) const {
  while (!to.empty()) {
    crew.check();
    const ssize_t got = pread(source_.fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (got == 0) ended(offset);
    if (got < 0 && errno != EINTR) failed("pread at " + std::to_string(offset), errno);
    if (got <= 0) continue;
    offset += static_cast<uint64_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
}

// How many bytes O_DIRECT gave; less than asked where it refuses, or where the file ends on the way: the page
// cache then finds out.
size_t FileReader::read_direct(uint64_t offset, std::span<uint8_t> to, const Crew& crew) {
  size_t done = 0;
  while (done < to.size() && done % kDirectAlignBytes == 0) {
    crew.check();
    const ssize_t got = pread(direct_fd_.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
      direct_works_.store(false);
      break;
    }
    if (got < 0) failed("direct read at " + std::to_string(offset + done), errno);
    done += static_cast<size_t>(got);
    was_direct_.store(true, std::memory_order_relaxed);
  }
  return done;
}

void FileReader::ended(uint64_t at) const {
  check_identity();
  throw Trouble{FillStatus::kSourceShort, 0,
                name_ + " ends at " + std::to_string(at) + " of " + std::to_string(source_.size) + " bytes"};
}

void FileReader::failed(const std::string& what, int error) const {
  throw Trouble{FillStatus::kSourceError, error, name_ + ": " + what + ": " + std::strerror(error)};
}

}  // namespace tc
