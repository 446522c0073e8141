// Random words in a caller's memory, there while the storage may read what the caller named. The storage compares
// them after its last read: a caller that gave up may have reused the memory, and such bytes must never become an
// artifact. One lives for a put's call, or as long as a registration.
#pragma once
#include <sys/random.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "tc/message.hpp"

namespace tc {

class Ticket {
 public:
  Ticket() {
    if (::getrandom(cookie_.data(), cookie_.size(), 0) != static_cast<ssize_t>(cookie_.size())) {
      throw std::system_error(errno, std::generic_category(), "no random bytes");
    }
    uint64_t words[2];
    std::memcpy(words, cookie_.data(), sizeof(words));
    for (size_t i = 0; i < 2; ++i) words_[i].store(words[i]);
  }
  ~Ticket() { end(); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  void end() {
    for (auto& word : words_) word.store(0);
  }
  const Cookie& cookie() const { return cookie_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(&words_); }

 private:
  Cookie cookie_{};
  std::array<std::atomic<uint64_t>, 2> words_;
};
static_assert(sizeof(std::array<std::atomic<uint64_t>, 2>) == sizeof(Cookie));

}  // namespace tc
