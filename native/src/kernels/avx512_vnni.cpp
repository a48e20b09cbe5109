// The kernels for AVX-512-VNNI.
#include "variants.hpp"

#ifdef __x86_64__

#define ES_TARGET "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni"
#define ES_VNNI 2
#include "drive.hpp"

namespace expertstream {

Multiply kernel_avx512_vnni(uint32_t type) { return kernel_here(type); }

}  // namespace expertstream

#endif
