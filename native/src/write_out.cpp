#include "tc/write_out.hpp"

#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tc/segment_view.hpp"

namespace tc {

void write_out(const Pool& pool, SegmentId id, int fd, uint64_t offset, uint64_t nbytes) {
  if (!pool.sealed(id)) throw std::invalid_argument("segment " + std::to_string(id) + " is not sealed");
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
