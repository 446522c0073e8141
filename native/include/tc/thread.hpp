// Starts a native thread with the process's signals blocked, so that they reach the threads that handle them.
#pragma once
#include <functional>
#include <thread>

namespace tc {

// Throws std::system_error when the system has no room for a thread.
std::thread native_thread(std::function<void()> body);

}  // namespace tc
