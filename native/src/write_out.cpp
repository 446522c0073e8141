#include "tc/write_out.hpp"

#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tc/segment_view.hpp"

namespace tc {

namespace {

// One user more: whoever drops the segment meanwhile does not hand its memory to somebody else.
class Held {
 public:
  Held(Pool& pool, SegmentId id) : pool_(pool), id_(id) {
    try {
      pool.hold(id);
    } catch (const std::logic_error&) {
      throw std::invalid_argument("segment " + std::to_string(id) + " is not sealed");
    }
  }
  ~Held() { pool_.drop(id_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  Pool& pool_;
  const SegmentId id_;
};

}  // namespace

void write_out(Pool& pool, SegmentId id, int fd, uint64_t offset, uint64_t nbytes) {
  const Held held(pool, id);
  const SegmentView view(pool, id);
  view.check(offset, nbytes);
  while (nbytes > 0) {
    const auto from = view.at(offset, nbytes);
    const ssize_t wrote = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      throw std::system_error(wrote < 0 ? errno : EIO, std::generic_category(),
                              "writing out segment " + std::to_string(id));
    }
    offset += static_cast<uint64_t>(wrote);
    nbytes -= static_cast<uint64_t>(wrote);
  }
}

}  // namespace tc
