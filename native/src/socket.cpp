#include "tc/socket.hpp"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace tc {

namespace {

constexpr size_t kPathBytesMax = 100;
constexpr int kBacklog = 4096;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

// A name that fits sun_path, valid while `folder` is open.
struct ShortName {
  Fd folder;
  sockaddr_un address{};
};

ShortName short_name(const std::string& path) {
  ShortName out;
  out.address.sun_family = AF_UNIX;
  std::string name = path;
  if (path.size() > kPathBytesMax) {
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
    out.folder.reset(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!out.folder) fail(errno, "the folder " + folder + " of the socket cannot be opened");
    name = "/proc/self/fd/" + std::to_string(out.folder.get()) + "/" +
           (slash == std::string::npos ? path : path.substr(slash + 1));
  }
  if (name.size() >= sizeof(out.address.sun_path)) {
    fail(ENAMETOOLONG, "the socket's own name in " + path + " is too long; use one below 80 bytes");
  }
  std::memcpy(out.address.sun_path, name.c_str(), name.size() + 1);
  return out;
}

int connect_once(int socket, const std::string& path) {
  const ShortName name = short_name(path);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&name.address), sizeof(name.address)) == 0) return 0;
  return errno;
}

std::string name_of_owner(const struct stat& info) {
  char text[1024];
  passwd user{};
  passwd* found = nullptr;
  std::string out = std::to_string(info.st_uid);
  if (::getpwuid_r(info.st_uid, &user, text, sizeof(text), &found) == 0 && found) out = found->pw_name;
  group members{};
  group* group_found = nullptr;
  out += ":";
  if (::getgrgid_r(info.st_gid, &members, text, sizeof(text), &group_found) == 0 && group_found) {
    return out + group_found->gr_name;
  }
  return out + std::to_string(info.st_gid);
}

// The first part of the path that can be looked at, from the socket upwards: the socket, or the folder that
// hides it.
NotAllowed not_allowed(const std::string& path) {
  std::string part = path;
  struct stat info{};
  while (::stat(part.c_str(), &info) != 0 && part.find('/') != std::string::npos && part.size() > 1) {
    const size_t slash = part.rfind('/');
    part = slash == 0 ? "/" : part.substr(0, slash);
  }
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", info.st_mode & 07777);
  const std::string what = part == path ? "the socket" : "the folder " + part + " on the way to the socket";
  return NotAllowed("not allowed to connect to " + path + ": " + what + " belongs to " + name_of_owner(info) +
                        " with mode " + mode + ", and this process runs as uid " + std::to_string(::geteuid()) +
                        ", gid " + std::to_string(::getegid()) +
                        ". Run as its owner, or give the storage a socket with group access (mode 0660) in a folder "
                        "of a common group",
                    path);
}

// Whether somebody serves the socket at `path`. A full backlog is somebody too.
bool is_served(const std::string& path) {
  const Fd socket = unix_socket();
  const int error = connect_once(socket.get(), path);
  return error == 0 || error == EAGAIN;
}

void make_way(const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return;
    fail(errno, "the place of the socket " + path + " cannot be looked at");
  }
  if (!S_ISSOCK(info.st_mode)) fail(EEXIST, path + " exists and is not a socket; remove it or choose another path");
  if (is_served(path)) fail(EADDRINUSE, path + " is served by another process; stop it or choose another path");
}

}  // namespace

Fd listen_at(const std::string& path, unsigned mode) {
  make_way(path);
  const std::string fresh = path + "." + std::to_string(::getpid());
  const ShortName name = short_name(fresh);
  Fd socket = unix_socket();
  ::unlink(fresh.c_str());
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name.address), sizeof(name.address)) != 0) {
    fail(errno, "the socket " + path + " cannot be bound; its folder must exist and be writable");
  }
  if (::chmod(fresh.c_str(), mode) != 0 || ::listen(socket.get(), kBacklog) != 0 ||
      ::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    fail(error, "the socket " + path + " cannot be served");
  }
  return socket;
}

Fd unix_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) fail(errno, "no socket could be made");
  return socket;
}

Fd connect_to(const std::string& path, const Wait& wait) {
  Fd socket = unix_socket();
  connect_to(socket.get(), path, wait);
  return socket;
}

void connect_to(int socket, const std::string& path, const Wait& wait) {
  for (;;) {
    int error;
    try {
      error = connect_once(socket, path);
    } catch (const std::system_error& e) {
      error = e.code().value();
      if (error != EACCES && error != ENOENT && error != ENOTDIR) throw;
    }
    if (error == 0) return;
    if (error == EACCES || error == EPERM) throw not_allowed(path);
    if (error == EAGAIN || error == EINTR) {
      // The backlog is full, and no event tells when it is not: look again soon.
      ::poll(nullptr, 0, std::min(wait.slice_ms(), 5));
      wait.check("connect");
      continue;
    }
    throw PeerGone("no storage answers at " + path + " (" + std::strerror(error) +
                   "): start one with `tensorcast up`, or connect to another path");
  }
}

std::string hung_up(const std::string& path) {
  return "the storage at " + path +
         " hung up: it was stopped, restarted or crashed. Tensors attached so far stay valid; make a new "
         "client once "
         "it runs again (`tensorcast status` tells)";
}

}  // namespace tc
