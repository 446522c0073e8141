// Reads one open file by pread: through the page cache where its pages are there already, with O_DIRECT where
// not. The file may be changed, cut or replaced by anyone at any time: a read gives every byte asked for or
// throws Trouble, and the caller brackets all reads of a file with check_identity(), which throws when it is
// not the file that it was.
#pragma once
#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "tc/crew.hpp"
#include "tc/fd.hpp"
#include "tc/fill.hpp"
#include "tc/read_lease.hpp"

namespace tc {

inline constexpr uint64_t kDirectAlignBytes = 4096;  // offset, destination and length of an O_DIRECT read

class FileReader {
 public:
  FileReader(const FileSource& source, uint32_t index);  // `index` is for texts

  void check_identity() const;

  // Decides how to read [offset, offset + nbytes): samples the page cache, opens the file again where it is
  // cold.
  void prepare(uint64_t offset, uint64_t nbytes);

  // Fills `to` from `offset` on. From several threads.
  void read(uint64_t offset, std::span<uint8_t> to, const Crew& crew);

  // Throws Trouble{kSourceChanged} when the file is open for writing and was lately written, or is wanted for writing.
  void check_writers() const;

  // Whether nothing but a second look can tell that no write was under way: no lease was to be had, and the file's
  // times are too young to prove anything.
  bool needs_confirming() const { return lease_.state() != ReadLease::State::kHeld && written_lately_; }

  // Reads again from `offset` on and compares. Throws Trouble{kSourceChanged} at the first difference.
  void confirm(uint64_t offset, std::span<const uint8_t> held, const Crew& crew) const;

  bool from_disk() const { return static_cast<bool>(direct_fd_); }  // as far as prepare() could tell
  bool was_direct() const { return was_direct_.load(std::memory_order_relaxed); }

 private:
  enum class Pages { kResident, kMixed, kCold };

  Pages sample(uint64_t offset, uint64_t nbytes, unsigned samples) const;
  void read_buffered(uint64_t offset, std::span<uint8_t> to, const Crew& crew) const;
  size_t read_direct(uint64_t offset, std::span<uint8_t> to, const Crew& crew);
  [[noreturn]] void ended(uint64_t at) const;
  [[noreturn]] void failed(const std::string& what, int error) const;

  const FileSource source_;
  const std::string name_;
  const Fd lease_fd_;  // an open file description of this reader's own; none where it was not to be had
  const ReadLease lease_;
  const bool written_lately_;  // as seen before the first byte is read
  Pages pages_ = Pages::kResident;
  Fd direct_fd_;
  std::atomic<bool> direct_works_{true};
  std::atomic<bool> was_direct_{false};
};

}  // namespace tc
