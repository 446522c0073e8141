#if defined(__x86_64__)
#define XXH_VECTOR XXH_AVX2
#include "digest_kernel.hpp"

namespace tc {
const DigestKernel& digest_avx2() { return kThisKernel; }
}  // namespace tc
#endif
