// Unix sockets by path: listening, connecting, and saying well what went wrong. A path over 100 bytes is
// reached through /proc/self/fd/N/name, N being its folder held open (sun_path ends at 108); the name alone
// must be short.
#pragma once
#include <stdexcept>
#include <string>

#include "tc/fd.hpp"
#include "tc/wait.hpp"

namespace tc {

// The other end of a local socket is gone or cannot be reached.
struct PeerGone : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The socket exists, but this process may not use it.
struct NotAllowed : std::runtime_error {
  NotAllowed(const std::string& why, std::string path_) : std::runtime_error(why), path(std::move(path_)) {}
  std::string path;
};

// Binds under a temporary name with its final mode, then renames: nobody sees a half-made socket. Replaces a
// socket that nobody serves; throws std::system_error when one is served, or the path is something else.
Fd listen_at(const std::string& path, unsigned mode);

// A socket of the kind that connect_to wants. Throws std::system_error.
Fd unix_socket();
// Throws PeerGone, NotAllowed, WaitedTooLong("connect").
void connect_to(int socket, const std::string& path, const Wait& wait);
Fd connect_to(const std::string& path, const Wait& wait);

// What an error says when the storage behind `path` hung up.
std::string hung_up(const std::string& path);

}  // namespace tc
