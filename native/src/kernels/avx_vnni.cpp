// The kernels for AVX-VNNI.
#include "variants.hpp"

#ifdef __x86_64__

#define ES_TARGET "avx2,fma,f16c,avxvnni"
#define ES_VNNI 1
#include "drive.hpp"

namespace expertstream {

Multiply kernel_avx_vnni(uint32_t type) { return kernel_here(type); }

}  // namespace expertstream

#endif
