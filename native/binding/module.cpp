// The Python module: a thin skin over tc_core. Each noun is bound in the file that has its name; the GIL is
// dropped around everything that may take long.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_pool(nb::module_& m);
void bind_local(nb::module_& m);

NB_MODULE(_core, m) {
  bind_pool(m);
  bind_local(m);
}
