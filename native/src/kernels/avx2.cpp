// The kernels for AVX2.
#include "variants.hpp"

#ifdef __x86_64__

#define ES_TARGET "avx2,fma,f16c"
#define ES_VNNI 0
#include "drive.hpp"

namespace expertstream {

Multiply kernel_avx2(uint32_t type) { return kernel_here(type); }

}  // namespace expertstream

#endif
