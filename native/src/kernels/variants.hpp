// The kernels of each instruction set; a caller must know that the processor has it. nullptr for types without one.
#pragma once

#include "../kernels.hpp"

namespace expertstream {

#ifdef __x86_64__
Multiply kernel_avx2(uint32_t type);         // AVX2, FMA, F16C
Multiply kernel_avx_vnni(uint32_t type);     // and AVX-VNNI
Multiply kernel_avx512_vnni(uint32_t type);  // and AVX-512 F, BW, VL, VNNI
#endif

}  // namespace expertstream
