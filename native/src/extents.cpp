#include "tc/extents.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tc/pool.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace tc {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), "pool: " + what);
}

Fd open_memfd() {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create("tensorcast-extent", flags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("tensorcast-extent", flags);  // kernels before 6.3
  if (fd < 0) fail("memfd_create");
  return Fd(fd);
}

void map_and_seal(int fd, uint8_t* at, uint64_t nbytes) {
  if (ftruncate(fd, static_cast<off_t>(nbytes)) != 0) fail("ftruncate of an extent of " + std::to_string(nbytes));
  if (mmap(at, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) fail("mmap");
  madvise(at, nbytes, MADV_DONTDUMP);
  madvise(at, nbytes, MADV_DONTFORK);  // a child must not be able to write the pool
  madvise(at, nbytes, MADV_HUGEPAGE);  // ignored where shmem_enabled says never
  // Order matters: FUTURE_WRITE leaves maps made before it writable.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
    fail("sealing an extent (kernel 5.1 or newer is needed)");
}

}  // namespace

Extents::Extents(uint64_t capacity_bytes, uint64_t extent_bytes)
    : capacity_bytes_(capacity_bytes), extent_bytes_(extent_bytes) {
  void* at = mmap(nullptr, capacity_bytes + kBlockBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) fail("reserving addresses for " + std::to_string(capacity_bytes) + " bytes");
  reserved_ = static_cast<uint8_t*>(at);
  const auto address = reinterpret_cast<uintptr_t>(at);
  origin_ = reserved_ + ((kBlockBytes - address % kBlockBytes) % kBlockBytes);
  madvise(reserved_, capacity_bytes + kBlockBytes, MADV_DONTDUMP);
}

Extents::~Extents() { munmap(reserved_, capacity_bytes_ + kBlockBytes); }

void Extents::create_next() {
  const uint64_t offset = uint64_t(count()) * extent_bytes_;
  if (offset >= capacity_bytes_) throw std::logic_error("pool: every extent exists");
  fds_.reserve(fds_.size() + 1);
  Fd fd = open_memfd();
  const uint64_t nbytes = bytes(count());
  try {
    map_and_seal(fd.get(), origin_ + offset, nbytes);
  } catch (...) {
    // The addresses stay reserved, or a later mmap elsewhere in the process could land in the pool.
    mmap(origin_ + offset, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    throw;
  }
  fds_.push_back(std::move(fd));
}

uint64_t Extents::bytes(uint32_t extent) const {
  const uint64_t offset = uint64_t(extent) * extent_bytes_;
  if (offset >= capacity_bytes_) return 0;
  return std::min(extent_bytes_, capacity_bytes_ - offset);
}

uint64_t Extents::backed_bytes(uint32_t extent) const {
  struct stat info{};
  if (fstat(fds_.at(extent).get(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

int Extents::fd(uint32_t extent) const {
  if (extent >= fds_.size()) throw std::out_of_range("pool: extent " + std::to_string(extent) + " does not exist");
  return fds_[extent].get();
}

int populate(uint8_t* from, uint64_t nbytes) {
  while (madvise(from, nbytes, MADV_POPULATE_WRITE) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

bool shmem_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const std::string words((std::istreambuf_iterator<char>(file)), {});
  for (const char* word : {"[always]", "[within_size]", "[advise]", "[force]"})
    if (words.find(word) != std::string::npos) return true;
  return false;
}

}  // namespace tc
