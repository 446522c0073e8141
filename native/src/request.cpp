#include "tc/request.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>

namespace tc {

EventQueue::EventQueue() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "no eventfd could be made");
}

void EventQueue::push(Event event) {
  const std::lock_guard lock(m_);
  events_.push_back(std::move(event));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof(one));
}

std::vector<Event> EventQueue::drain() {
  const std::lock_guard lock(m_);
  uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof(count));
  return std::exchange(events_, {});
}

void EventQueue::forget_death(uint64_t source) {
  const std::lock_guard lock(m_);
  std::erase_if(events_, [source](const Event& event) {
    const auto* request = std::get_if<Request>(&event);
    return request && request->kind == RequestKind::kDied && request->id == source;
  });
}

}  // namespace tc
