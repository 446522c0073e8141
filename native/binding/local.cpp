// Binds the local socket: its errors and statuses here, the storage's end in local_server.cpp, the client's
// in local_client.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cerrno>

#include "tc/message.hpp"
#include "tc/server.hpp"
#include "tc/socket.hpp"

namespace nb = nanobind;

void bind_local_server(nb::module_& m);
void bind_local_client(nb::module_& m);

namespace {

struct LocalStatus {};

void bind_errors(nb::module_& m) {
  nb::exception<tc::PeerGone>(m, "PeerGone");
  nb::exception<tc::WaitedTooLong>(m, "WaitedTooLong");
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const tc::NotAllowed& refused) {
      const nb::tuple args = nb::make_tuple(EACCES, refused.what(), refused.path);
      PyErr_SetObject(PyExc_PermissionError, args.ptr());
    } catch (const tc::UnknownRequest& unknown) {
      PyErr_SetString(PyExc_KeyError, unknown.what());
    }
  });
}

void bind_status(nb::module_& m) {
  nb::class_<LocalStatus> status(m, "LocalStatus");
  status.attr("OK") = static_cast<uint32_t>(tc::Status::kOk);
  status.attr("FAILED") = static_cast<uint32_t>(tc::Status::kFailed);
  status.attr("STREAM") = static_cast<uint32_t>(tc::Status::kStream);
  status.attr("BAD_REQUEST") = static_cast<uint32_t>(tc::Status::kBadRequest);
  status.attr("VERSION") = static_cast<uint32_t>(tc::Status::kVersion);
  status.attr("MOVED") = static_cast<uint32_t>(tc::Status::kMoved);
  status.attr("MANIFEST") = static_cast<uint32_t>(tc::Status::kManifest);
}

}  // namespace

void bind_local(nb::module_& m) {
  // Clients and attachments that live until the interpreter ends are no leak: the kernel ends their pins.
  nb::set_leak_warnings(false);
  bind_errors(m);
  bind_status(m);
  bind_local_server(m);
  bind_local_client(m);
}
