// Binds the pool, its bookkeeping (for property tests), digests, and the record of a finished fill.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "buffer.hpp"
#include "gil.hpp"
#include "tc/blocks.hpp"
#include "tc/boxes.hpp"
#include "tc/digest.hpp"
#include "tc/fill_done.hpp"
#include "tc/pool.hpp"
#include "tc/segment_view.hpp"
#include "tc/segments.hpp"
#include "tc/thread.hpp"
#include "tc/write_out.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t kGilBytesMax = 1u << 20;  // below, dropping the GIL costs more than the work
constexpr auto kSignalSlice = std::chrono::milliseconds(50);
constexpr uint64_t kDeadlineMsMax = 7ull * 24 * 3600 * 1000;

using Runs = std::vector<std::pair<uint64_t, uint64_t>>;
using FileTuple = std::tuple<int, uint64_t, uint64_t, uint64_t, int64_t>;

nb::bytes to_bytes(const tc::Digest& digest) { return nb::bytes(digest.data(), digest.size()); }

template <class Work>
tc::Digest digest_of(const HeldBuffer& buffer, const Work& work) {
  if (buffer.bytes().size() < kGilBytesMax) return work(buffer.bytes());
  const WithoutGil no_gil;
  return work(buffer.bytes());
}

nb::bytes xxh3_128(nb::handle object, uint64_t seed) {
  const HeldBuffer buffer(object);
  return to_bytes(digest_of(buffer, [&](std::span<const uint8_t> bytes) { return tc::xxh3_128(bytes, seed); }));
}

nb::bytes tensor_digest(nb::handle object) {
  const HeldBuffer buffer(object);
  return to_bytes(digest_of(buffer, tc::tensor_digest));
}

// Runs on a thread of its own, so that this one can look for Python's signals; it ends before this returns.
tc::FillDone digest_file(const FileTuple& file, const nb::bytes& rows, unsigned threads, uint64_t deadline_ms) {
  const auto [fd, device, inode, size, mtime_ns] = file;
  const tc::FileSource source{fd, 0, device, inode, size, mtime_ns};
  const auto unpacked = unpack<tc::Row>(rows, "rows");
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(std::min(deadline_ms, kDeadlineMsMax));
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::atomic<bool> cancelled{false};
  tc::FillDone done;
  std::thread thread = tc::native_thread([&] {
    done.result = tc::digest_file(source, unpacked, threads, deadline, &cancelled);
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  });
  bool interrupted = false;
  while (!interrupted) {
    {
      const WithoutGil no_gil;
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, kSignalSlice, [&] { return ended; })) break;
    }
    interrupted = PyErr_CheckSignals() != 0;
  }
  cancelled = interrupted;
  {
    const WithoutGil no_gil;
    thread.join();
  }
  if (interrupted) throw nb::python_error();
  return done;
}

const char* status_name(tc::FillStatus status) {
  switch (status) {
    case tc::FillStatus::kOk:
      return "ok";
    case tc::FillStatus::kBadPlan:
      return "bad_plan";
    case tc::FillStatus::kSourceChanged:
      return "source_changed";
    case tc::FillStatus::kSourceShort:
      return "source_short";
    case tc::FillStatus::kSourceError:
      return "source_error";
    case tc::FillStatus::kGone:
      return "gone";
    case tc::FillStatus::kDeadline:
      return "deadline";
    case tc::FillStatus::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

nb::bytes joined_digests(const tc::FillDone& done) {
  return nb::bytes(done.result.digests.data(), done.result.digests.size() * sizeof(tc::Digest));
}

// PoolFull carries figures, so it is made here and not by nb::exception. Misuse is a ValueError, also where
// C++ says out_of_range (an unknown segment, an offset outside one).
void bind_errors(nb::module_& m) {
  PyObject* pool_full = PyErr_NewException("tensorcast_native._core.PoolFull", PyExc_Exception, nullptr);
  m.attr("PoolFull") = nb::steal(pool_full);
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void* type) {
        try {
          std::rethrow_exception(error);
        } catch (const tc::PoolFull& full) {
          const nb::tuple args = nb::make_tuple(full.what(), full.free_bytes, full.longest_run_bytes);
          PyErr_SetObject(static_cast<PyObject*>(type), args.ptr());
        } catch (const std::system_error& failed) {
          const nb::tuple args = nb::make_tuple(failed.code().value(), failed.what());
          PyErr_SetObject(PyExc_OSError, args.ptr());
        } catch (const std::logic_error& misuse) {
          PyErr_SetString(PyExc_ValueError, misuse.what());
        }
      },
      pool_full);
}

void bind_bookkeeping(nb::module_& m) {
  nb::class_<tc::BlockAllocator>(m, "BlockAllocator")
      .def(nb::init<uint64_t>(), "blocks_max"_a)
      .def("add", &tc::BlockAllocator::add, "first"_a, "count"_a)
      .def(
          "allocate",
          [](tc::BlockAllocator& self, uint64_t blocks) {
            Runs runs;
            for (const tc::Run& run : self.allocate(blocks)) runs.emplace_back(run.first, run.count);
            return runs;
          },
          "blocks"_a)
      .def(
          "free",
          [](tc::BlockAllocator& self, const Runs& runs) {
            std::vector<tc::Run> freed;
            for (const auto& [first, count] : runs) freed.push_back({first, count});
            self.free(freed);
          },
          "runs"_a)
      .def_prop_ro("free_blocks", &tc::BlockAllocator::free_blocks)
      .def_prop_ro("longest_run", &tc::BlockAllocator::longest_run);
  nb::class_<tc::SegmentTable>(m, "SegmentTable")
      .def(nb::init<>())
      .def("reserve", &tc::SegmentTable::reserve, "nbytes"_a)
      .def("seal", &tc::SegmentTable::seal, "segment"_a)
      .def("hold", &tc::SegmentTable::hold, "segment"_a)
      .def("drop", &tc::SegmentTable::drop, "segment"_a)
      .def("pin", &tc::SegmentTable::pin, "segment"_a)
      .def("unpin", &tc::SegmentTable::unpin, "segment"_a)
      .def(
          "state", [](const tc::SegmentTable& self, tc::SegmentId id) { return tc::name(self.state(id)); },
          "segment"_a);
}

void write(tc::Pool& pool, tc::SegmentId id, uint64_t offset, const nb::bytes& bytes) {
  pool.begin_write(id);  // throws unless reserved
  try {
    tc::SegmentView(pool, id).write(offset, {static_cast<const uint8_t*>(bytes.data()), bytes.size()});
  } catch (...) {
    pool.end_write(id);
    throw;
  }
  pool.end_write(id);
}

nb::bytes read(const tc::Pool& pool, tc::SegmentId id, uint64_t offset, uint64_t nbytes) {
  const tc::SegmentView view(pool, id);
  view.check(offset, nbytes);  // before memory is taken for the answer
  const nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes)));
  if (!bytes.is_valid()) throw nb::python_error();
  view.read(offset, {reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(bytes.ptr())), nbytes});
  return nb::borrow<nb::bytes>(bytes);
}

void hold(tc::Pool& pool, tc::SegmentId id) {
  try {
    pool.hold(id);
  } catch (const std::out_of_range& gone) {
    throw nb::key_error(gone.what());
  }
}

nb::bytes box_pieces(uint32_t segment, uint32_t kind, uint32_t src_index, uint64_t src, uint64_t dst,
                     uint64_t run_bytes, const std::vector<uint64_t>& counts, const std::vector<uint64_t>& strides,
                     uint64_t pieces_max) {
  std::vector<tc::Piece> pieces;
  {
    const WithoutGil no_gil;
    const tc::Piece first{segment, static_cast<tc::PieceKind>(kind), dst, run_bytes, src, src_index, 0};
    pieces = tc::box_pieces(first, counts, strides, pieces_max);
  }
  return nb::bytes(pieces.data(), pieces.size() * sizeof(tc::Piece));
}

nb::dict stats(const tc::Pool& pool) {
  const tc::PoolStats stats = pool.stats();
  nb::dict fields;
  const auto set = [&](const char* name, uint64_t value) { fields[name] = value; };
  set("capacity_bytes", stats.capacity_bytes);
  set("grown_bytes", stats.grown_bytes);
  set("faulted_bytes", stats.faulted_bytes);
  set("free_bytes", stats.free_bytes);
  set("longest_run_bytes", stats.longest_run_bytes);
  set("reserved_bytes", stats.reserved_bytes);
  set("used_bytes", stats.used_bytes);
  set("pinned_bytes", stats.pinned_bytes);
  set("dropped_pinned_bytes", stats.dropped_pinned_bytes);
  set("rounding_bytes", stats.rounding_bytes);
  set("slot_bytes", stats.slot_bytes);
  set("segments", stats.segments);
  set("pins", stats.pins);
  set("huge_pages", stats.huge_pages);
  return fields;
}

void bind_pool_class(nb::module_& m) {
  const tc::PoolOptions defaults;
  nb::class_<tc::Pool>(m, "Pool")
      .def(
          "__init__",
          [](tc::Pool* self, uint64_t capacity_bytes, uint64_t extent_bytes_max, uint64_t prefault_ahead_bytes,
             uint64_t memory_reserve_bytes) {
            new (self) tc::Pool({capacity_bytes, extent_bytes_max, prefault_ahead_bytes, memory_reserve_bytes});
          },
          nb::kw_only(), "capacity_bytes"_a, "extent_bytes_max"_a = defaults.extent_bytes_max,
          "prefault_ahead_bytes"_a = defaults.prefault_ahead_bytes,
          "memory_reserve_bytes"_a = defaults.memory_reserve_bytes)
      .def("reserve", &tc::Pool::reserve, "nbytes"_a, nb::call_guard<WithoutGil>())
      .def("write", &write, "segment"_a, "offset"_a, "data"_a)
      .def("read", &read, "segment"_a, "offset"_a, "nbytes"_a)
      .def("seal", &tc::Pool::seal, "segment"_a)
      .def("hold", &hold, "segment"_a)
      .def("drop", &tc::Pool::drop, "segment"_a)
      .def("write_to", &tc::write_out, "segment"_a, "fd"_a, "offset"_a, "nbytes"_a, nb::call_guard<WithoutGil>())
      .def("stats", &stats)
      .def("stop", &tc::Pool::stop, nb::call_guard<WithoutGil>());
}

void bind_fill_done(nb::module_& m) {
  nb::class_<tc::FillDone>(m, "FillDone")
      .def_ro("id", &tc::FillDone::id)
      .def_prop_ro("status", [](const tc::FillDone& self) { return status_name(self.result.status); })
      .def_prop_ro("error", [](const tc::FillDone& self) { return self.result.error; })
      .def_prop_ro("detail", [](const tc::FillDone& self) { return self.result.detail; })
      .def_ro("segments", &tc::FillDone::segments)
      .def_prop_ro("digests", &joined_digests)
      .def_prop_ro("bytes_moved", [](const tc::FillDone& self) { return self.result.bytes_moved; })
      .def_prop_ro("bytes_copied", [](const tc::FillDone& self) { return self.result.bytes_copied; })
      .def_prop_ro("ms", [](const tc::FillDone& self) { return self.result.ms; });
}

}  // namespace

void bind_pool(nb::module_& m) {
  bind_errors(m);
  bind_bookkeeping(m);
  bind_pool_class(m);
  bind_fill_done(m);
  m.def("xxh3_128", &xxh3_128, "data"_a, "seed"_a = 0);
  m.def("tensor_digest", &tensor_digest, "data"_a);
  m.def("box_pieces", &box_pieces, nb::kw_only(), "segment"_a, "kind"_a, "src_index"_a, "src"_a, "dst"_a, "run_bytes"_a,
        "counts"_a, "strides"_a, "pieces_max"_a);
  m.def("digest_file", &digest_file, "file"_a, "rows"_a, nb::kw_only(), "threads"_a = 2, "deadline_ms"_a);
}
