#if defined(__x86_64__)
// GCC 12's own AVX-512 header trips this warning with every "undefined" register.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define XXH_VECTOR XXH_AVX512
#include "digest_kernel.hpp"

namespace tc {
const DigestKernel& digest_avx512() { return kThisKernel; }
}  // namespace tc
#endif
