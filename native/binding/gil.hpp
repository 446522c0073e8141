// Python's lock around native calls. While an interpreter ends, CPython before 3.14 ends each other thread that asks
// for the lock with pthread_exit(), and unwinding C++ frames that way ends the whole process in std::terminate(). Such
// a thread sleeps here instead until the process is gone, as CPython 3.14 has it.
#pragma once
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

template <class Take>
auto take_gil(const Take& take) {
  try {
    return take();
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

// The lock: held at first, given up before a wait that may be long, taken back at the end.
class Gil {
 public:
  Gil() = default;
  ~Gil() {
    if (state_ != nullptr) take_gil([&] { PyEval_RestoreThread(state_); });
  }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  void let_go() {
    if (state_ == nullptr) state_ = PyEval_SaveThread();
  }

 private:
  PyThreadState* state_ = nullptr;
};

// Without the lock from here to the end of the scope; for nb::call_guard too.
class WithoutGil {
 public:
  WithoutGil() { gil_.let_go(); }

 private:
  Gil gil_;
};

// With the lock, from a thread that does not hold it.
class WithGil {
 public:
  WithGil() : state_(take_gil([] { return PyGILState_Ensure(); })) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};
