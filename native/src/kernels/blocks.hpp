// The layouts of quantised blocks, as they lie in a GGUF and as ggml quantises activations. Facts of the format,
// little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../kernels.hpp"

namespace expertstream {

constexpr uint64_t kSmall = 32;   // elements of a block of Q4_0, Q8_0, IQ4_NL, MXFP4
constexpr uint64_t kSuper = 256;  // elements of a block of the K types and IQ4_XS

using Half = uint8_t[2];  // a float of 16 bits; blocks may begin at any byte

struct BlockQ4_0 {
    Half d;
    uint8_t qs[16];  // element i: low half of byte i; element 16 + i: high half
};

struct BlockQ8_0 {
    Half d;
    int8_t qs[32];
};

struct BlockMXFP4 {
    uint8_t e;       // exponent alone: 2^(e - 128), with values doubled
    uint8_t qs[16];  // as Q4_0, of kFp4
};

struct BlockQ4_K {
    Half d, dmin;
    uint8_t scales[12];  // eight scales and eight minima of 6 bits
    uint8_t qs[128];     // per 64 elements 32 bytes: low halves, then high halves
};

struct BlockQ5_K {
    Half d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];  // bit s of byte i: the fifth bit of element 32 s + i
    uint8_t qs[128];
};

struct BlockQ6_K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];  // of 16 elements each
    Half d;
};

struct BlockIQ4_XS {
    Half d;
    uint8_t scales_h[2];
    uint8_t scales_l[4];
    uint8_t qs[128];  // per 32 elements 16 bytes, as Q4_0, of kNonLinear
};

struct BlockQ8_K {  // activations only
    uint8_t d[4];   // a float
    int8_t qs[256];
    uint8_t sums[32];  // int16_t: of 16 elements each
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ8_0) == 34 && sizeof(BlockMXFP4) == 17, "packed");
static_assert(sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210, "packed");
static_assert(sizeof(BlockIQ4_XS) == 136 && sizeof(BlockQ8_K) == 292, "packed");

alignas(16) constexpr int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
alignas(16) constexpr int8_t kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

template <class T>
inline T read_as(const void * bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

}  // namespace expertstream
