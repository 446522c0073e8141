// Binds the client's end of the local socket. Blocking calls drop the GIL and take it every 50 ms to look for
// signals.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "buffer.hpp"
#include "gil.hpp"
#include "tc/client.hpp"
#include "tc/dlpack.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using FileTuple = std::tuple<int, uint64_t, uint64_t, uint64_t, int64_t>;

std::string to_string(const nb::bytes& bytes) { return {static_cast<const char*>(bytes.data()), bytes.size()}; }

constexpr size_t kGilBytesMax = 1u << 20;  // below, dropping the GIL costs more than the work

void look_for_signals() {
  const WithGil gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

tc::Wait wait_for(uint64_t deadline_ms) { return tc::Wait::of_ms(deadline_ms, look_for_signals); }

nb::tuple answered(const tc::Client::Answered& answer) {
  return nb::make_tuple(answer.first, nb::bytes(answer.second.data(), answer.second.size()));
}

// A read-only buffer over part of a mapping: a borrowed export, like a tensor.
struct View {
  std::span<uint8_t> bytes;
  tc::Mapping::Ref mapping;
};

int get_buffer(PyObject* self, Py_buffer* out, int flags) {
  const View* view = nb::inst_ptr<View>(self);
  return PyBuffer_FillInfo(out, self, view->bytes.data(), static_cast<Py_ssize_t>(view->bytes.size()), 1, flags);
}

PyType_Slot view_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

// Whoever takes the tensor renames the capsule; one that nobody took is still ours.
void end_capsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;
  auto* managed = static_cast<tc::DlManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  managed->deleter(managed);
}

nb::object dlpack(const tc::Attachment& self, size_t segment, uint64_t offset, const std::vector<int64_t>& shape,
                  uint8_t code, uint8_t bits) {
  tc::DlManagedTensor* managed = tc::export_tensor(self, segment, offset, shape, code, bits);
  PyObject* capsule = PyCapsule_New(managed, "dltensor", &end_capsule);
  if (capsule == nullptr) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

nb::object put(tc::Client& client, const std::string& art_id, const nb::bytes& draft,
               std::vector<uint64_t> segment_bytes, const nb::bytes& pieces, const nb::bytes& rows,
               const nb::bytes& inline_bytes, const std::vector<FileTuple>& files, const tc::Ticket* ticket,
               uint64_t deadline_ms) {
  const tc::Wait wait = wait_for(deadline_ms);
  tc::PutOrder order{art_id,
                     to_string(draft),
                     std::move(segment_bytes),
                     unpack<tc::Piece>(pieces, "pieces"),
                     unpack<tc::Row>(rows, "rows"),
                     to_string(inline_bytes),
                     {},
                     ticket};
  for (const auto& [fd, device, inode, size, mtime_ns] : files) {
    order.files.push_back({fd, 0, device, inode, size, mtime_ns});
  }
  tc::Client::Answered answer;
  {
    const WithoutGil no_gil;
    answer = client.put(order, wait);
  }
  return answered(answer);
}

nb::object attach(tc::Client& client, const std::string& art_id, uint64_t deadline_ms, bool manifest_only,
                  const nb::bytes& body) {
  tc::Wait wait = wait_for(deadline_ms);
  const std::string message = to_string(body);
  std::variant<tc::Client::Answered, tc::Attachment> got;
  {
    Gil gil;
    wait.let_go = [&gil] { gil.let_go(); };
    got = client.attach(art_id, wait, manifest_only, message);
  }
  if (auto* refused = std::get_if<tc::Client::Answered>(&got)) return answered(*refused);
  return nb::cast(std::move(std::get<tc::Attachment>(got)));
}

nb::tuple call(tc::Client& client, const nb::bytes& body, uint64_t deadline_ms) {
  tc::Wait wait = wait_for(deadline_ms);
  const std::string message = to_string(body);
  tc::Client::Answered answer;
  {
    Gil gil;
    wait.let_go = [&gil] { gil.let_go(); };
    if (message.size() >= kGilBytesMax) gil.let_go();
    answer = client.call(message, wait);
  }
  return answered(answer);
}

void bind_attachment(nb::module_& m) {
  nb::class_<View>(m, "_View", nb::type_slots(view_slots));
  nb::class_<tc::Attachment>(m, "Attachment")
      .def_prop_ro("manifest",
                   [](const tc::Attachment& self) {
                     const std::span<uint8_t> bytes = self.segment(0);
                     return nb::bytes(bytes.data(), bytes.size());
                   })
      .def_prop_ro("segments", &tc::Attachment::segments)
      .def_prop_ro("borrowed", &tc::Attachment::borrowed)
      .def_prop_ro("mapped_bytes", &tc::Attachment::mapped_bytes)
      .def("dlpack", &dlpack, "segment"_a, "offset"_a, "shape"_a, "code"_a, "bits"_a)
      .def(
          "view",
          [](const tc::Attachment& self, size_t segment, uint64_t offset, uint64_t nbytes) {
            const std::span<uint8_t> bytes = self.part(segment, offset, nbytes);
            return View{bytes, self.borrow()};
          },
          "segment"_a, "offset"_a, "nbytes"_a)
      .def("release", &tc::Attachment::release);
}

}  // namespace

void bind_local_client(nb::module_& m) {
  bind_attachment(m);
  nb::class_<tc::Ticket>(m, "Ticket").def(nb::init<>()).def("end", &tc::Ticket::end);
  nb::class_<tc::Client>(m, "Client")
      .def(
          "__init__",
          [](tc::Client* self, const std::string& socket_path, uint64_t deadline_ms, bool vm_read) {
            const tc::Wait wait = wait_for(deadline_ms);
            const WithoutGil no_gil;
            new (self) tc::Client(socket_path, wait, vm_read);
          },
          "socket_path"_a, nb::kw_only(), "deadline_ms"_a, "vm_read"_a = true)
      .def_prop_ro("greeting",
                   [](const tc::Client& self) { return nb::bytes(self.greeting().data(), self.greeting().size()); })
      .def_prop_ro("alive", &tc::Client::alive)
      .def_prop_ro("pid", &tc::Client::pid)
      .def_prop_ro("vm_read", &tc::Client::vm_read)
      .def("put", &put, "art_id"_a, nb::kw_only(), "draft"_a, "segment_bytes"_a, "pieces"_a, "rows"_a,
           "inline"_a = nb::bytes("", 0), "files"_a = std::vector<FileTuple>{}, "ticket"_a = nb::none(),
           "deadline_ms"_a)
      .def("attach", &attach, "art_id"_a, nb::kw_only(), "deadline_ms"_a, "manifest_only"_a = false,
           "body"_a = nb::bytes("", 0))
      .def("call", &call, "body"_a, nb::kw_only(), "deadline_ms"_a)
      .def("close", &tc::Client::close, nb::call_guard<WithoutGil>());
}
