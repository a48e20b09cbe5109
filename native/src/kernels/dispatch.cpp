// What this processor can, and which kernels that allows.
#include "variants.hpp"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace expertstream {

#ifdef __x86_64__

namespace {

struct Registers {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(uint32_t leaf, uint32_t part) {
    Registers r;
    if (!__get_cpuid_count(leaf, part, &r.a, &r.b, &r.c, &r.d)) return {};
    return r;
}

// Which registers the system saves: bits 1, 2: those of AVX; 5, 6, 7: those of AVX-512.
uint32_t saved_state() {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

bool has(uint32_t bits, int bit) { return (bits >> bit & 1) != 0; }

}  // namespace

Cpu Cpu::detect() {
    Cpu cpu;
    const Registers one = cpuid(1, 0), seven = cpuid(7, 0), more = cpuid(7, 1);
    const uint32_t state = has(one.c, 27) ? saved_state() : 0;
    const bool wide = (state & 0x06) == 0x06 && has(one.c, 28), wider = wide && (state & 0xe0) == 0xe0;
    cpu.fma = wide && has(one.c, 12);
    cpu.f16c = wide && has(one.c, 29);
    cpu.avx2 = wide && has(seven.b, 5);
    cpu.avx_vnni = wide && seven.a >= 1 && has(more.a, 4);
    cpu.avx512 = wider && has(seven.b, 16) && has(seven.b, 30) && has(seven.b, 31);  // F, BW, VL
    cpu.avx512_vnni = cpu.avx512 && has(seven.c, 11);
    return cpu;
}

Multiply fast_kernel(uint32_t type, const Cpu & cpu) {
    if (!cpu.avx2 || !cpu.fma || !cpu.f16c) return nullptr;
    if (cpu.avx512 && cpu.avx512_vnni) return kernel_avx512_vnni(type);
    if (cpu.avx_vnni) return kernel_avx_vnni(type);
    return kernel_avx2(type);
}

#else

Cpu Cpu::detect() { return {}; }
Multiply fast_kernel(uint32_t, const Cpu &) { return nullptr; }

#endif

}  // namespace expertstream
