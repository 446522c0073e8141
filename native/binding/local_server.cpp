// Binds the storage's end of the local socket.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "buffer.hpp"
#include "gil.hpp"
#include "tc/server.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using FileTuple = std::tuple<int, uint64_t, uint64_t, uint64_t, int64_t>;

using IdentityTuple = std::tuple<uint64_t, uint64_t, uint64_t, int64_t>;

std::string to_string(const nb::bytes& bytes) { return {static_cast<const char*>(bytes.data()), bytes.size()}; }

const char* kind_name(tc::RequestKind kind) {
  switch (kind) {
    case tc::RequestKind::kPut:
      return "put";
    case tc::RequestKind::kAttach:
      return "attach";
    case tc::RequestKind::kCall:
      return "call";
    case tc::RequestKind::kDied:
      return "died";
    case tc::RequestKind::kGone:
      break;
  }
  return "gone";
}

nb::list events(tc::Server& server) {
  nb::list out;
  for (tc::Event& event : server.events()) {
    if (auto* done = std::get_if<tc::FillDone>(&event)) {
      out.append(nb::cast(std::move(*done)));
    } else {
      out.append(nb::cast(std::move(std::get<tc::Request>(event))));
    }
  }
  return out;
}

void load(tc::Server& server, uint64_t token, std::vector<uint64_t> segment_bytes, const nb::bytes& pieces,
          const nb::bytes& rows, const std::vector<FileTuple>& files, const nb::bytes& inline_bytes,
          const std::vector<tc::SegmentId>& held, uint64_t deadline_ms) {
  std::vector<tc::FileSource> sources;
  for (const auto& [fd, device, inode, size, mtime_ns] : files)
    sources.push_back({fd, 0, device, inode, size, mtime_ns});
  auto unpacked_pieces = unpack<tc::Piece>(pieces, "pieces");
  auto unpacked_rows = unpack<tc::Row>(rows, "rows");
  std::string copied = to_string(inline_bytes);
  const WithoutGil no_gil;
  server.load(token, std::move(segment_bytes), std::move(unpacked_pieces), std::move(unpacked_rows), sources,
              std::move(copied), held, deadline_ms);
}

void load_kept(tc::Server& server, uint64_t token, uint64_t source, const nb::bytes& rows,
               const std::optional<std::vector<uint64_t>>& segment_bytes, const std::optional<nb::bytes>& pieces,
               const std::optional<nb::bytes>& inline_bytes, uint64_t deadline_ms) {
  std::optional<tc::KeptPlan> plan;
  if (segment_bytes.has_value() != pieces.has_value()) {
    throw std::invalid_argument("a plan of its own has both segment_bytes and pieces");
  }
  if (pieces) {
    plan = tc::KeptPlan{*segment_bytes, unpack<tc::Piece>(*pieces, "pieces"),
                        inline_bytes ? to_string(*inline_bytes) : std::string()};
  }
  auto unpacked_rows = unpack<tc::Row>(rows, "rows");
  const WithoutGil no_gil;
  server.load_kept(token, source, std::move(unpacked_rows), std::move(plan), deadline_ms);
}

std::vector<IdentityTuple> files_of(const tc::Request& request) {
  std::vector<IdentityTuple> files;
  files.reserve(request.files.size());
  for (const tc::FileIdentity& file : request.files)
    files.emplace_back(file.device, file.inode, file.size, file.mtime_ns);
  return files;
}

nb::bytes pieces_of(const tc::Request& request) {
  return nb::bytes(request.pieces.data(), request.pieces.size() * sizeof(tc::Piece));
}

void accept_put(tc::Server& server, uint64_t request, const std::optional<nb::bytes>& rows) {
  std::optional<std::vector<tc::Row>> unpacked;
  if (rows) unpacked = unpack<tc::Row>(*rows, "rows");
  const WithoutGil no_gil;
  server.accept_put(request, std::move(unpacked));
}

void bind_request(nb::module_& m) {
  nb::class_<tc::Request>(m, "Request")
      .def_ro("id", &tc::Request::id)
      .def_ro("session", &tc::Request::session)
      .def_prop_ro("kind", [](const tc::Request& self) { return kind_name(self.kind); })
      .def_ro("art_id", &tc::Request::art_id)
      .def_prop_ro("body", [](const tc::Request& self) { return nb::bytes(self.body.data(), self.body.size()); })
      .def_ro("manifest_only", &tc::Request::manifest_only)
      .def_ro("segment_bytes", &tc::Request::segment_bytes)
      .def_prop_ro("files", &files_of)
      .def_prop_ro("pieces", &pieces_of)
      .def_ro("source", &tc::Request::source)
      .def_ro("budget_ms", &tc::Request::budget_ms)
      .def_ro("pid", &tc::Request::pid);
}

}  // namespace

void bind_local_server(nb::module_& m) {
  using no_gil = nb::call_guard<WithoutGil>;
  bind_request(m);
  nb::class_<tc::Server>(m, "LocalServer")
      .def(
          "__init__",
          [](tc::Server* self, tc::Pool& pool, const std::string& socket_path, const nb::bytes& greeting, unsigned mode,
             unsigned pull_threads) {
            new (self) tc::Server(pool, socket_path, {to_string(greeting), mode, pull_threads});
          },
          "pool"_a, "socket_path"_a, nb::kw_only(), "greeting"_a, "mode"_a = 0600, "pull_threads"_a = 4,
          nb::keep_alive<1, 2>())
      .def_prop_ro("event_fd", &tc::Server::event_fd)
      .def("events", &events)
      .def("accept_put", &accept_put, "request"_a, "rows"_a = nb::none())
      .def("load", &load, "token"_a, nb::kw_only(), "segment_bytes"_a, "pieces"_a, "rows"_a, "files"_a,
           "inline"_a = nb::bytes("", 0), "sources"_a = std::vector<tc::SegmentId>{}, "deadline_ms"_a)
      .def("keep", &tc::Server::keep, "request"_a)
      .def("load_kept", &load_kept, "token"_a, "source"_a, nb::kw_only(), "rows"_a, "segment_bytes"_a = nb::none(),
           "pieces"_a = nb::none(), "inline"_a = nb::none(), "deadline_ms"_a)
      .def("let_go", &tc::Server::let_go, "source"_a)
      .def("cancel", &tc::Server::cancel, "token"_a)
      .def("progress", &tc::Server::progress, "token"_a)
      .def("publish", &tc::Server::publish, "art_id"_a, "manifest"_a, "segments"_a)
      .def("republish", &tc::Server::republish, "art_id"_a, "manifest"_a, "segments"_a)
      .def("withdraw", &tc::Server::withdraw, "art_id"_a)
      .def("withdraw_idle", &tc::Server::withdraw_idle, "art_id"_a)
      .def("attach_now", &tc::Server::attach_now, "request"_a)
      .def("attach_segments", &tc::Server::attach_segments, "request"_a, "manifest"_a, "segments"_a)
      .def(
          "reply",
          [](tc::Server& self, uint64_t request, uint32_t status, const nb::bytes& body) {
            self.reply(request, status, to_string(body));
          },
          "request"_a, "status"_a, "body"_a = nb::bytes("", 0))
      .def("usage", &tc::Server::usage)
      .def("sessions", &tc::Server::sessions)
      .def("stop", &tc::Server::stop, no_gil());
}
