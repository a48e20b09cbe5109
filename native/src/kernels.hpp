// Products of quantised matrices and quantised activations. Pure functions, chosen once by what the processor can.
#pragma once

#include <cstddef>
#include <cstdint>

namespace expertstream {

// ggml's numbers of the types that have a kernel here.
enum Type : uint32_t {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ8_0 = 8,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kIQ4_NL = 20,
    kIQ4_XS = 23,
    kMXFP4 = 39
};

struct Cpu {
    bool avx2 = false, fma = false, f16c = false, avx_vnni = false, avx512 = false, avx512_vnni = false;
    static Cpu detect();
};

// For every row r of `rows` and every activation a of `count`: out[a][r] = row r of the matrix (which begins at `w`, rows `row_bytes`
// apart) times activation x[a], `cols` long. Activations are quantised as ggml's vec_dot of the type wants them: Q8_0 blocks
// for Q4_0, Q8_0, IQ4_NL and MXFP4, Q8_K blocks for Q4_K, Q5_K, Q6_K, IQ4_XS.
using Multiply = void (*)(uint64_t cols, const uint8_t * w, size_t row_bytes, uint32_t rows, const uint8_t * const * x,
                          float * const * out, uint32_t count);

// How much one call is given at most, and in what steps rows are shared out among threads.
constexpr uint32_t kMostActivations = 128;  // they stay in the second-level cache
constexpr uint32_t kMostItemRows = 256;
constexpr uint32_t kLeastItemRows = 32;  // a whole number of every SIMD width: parts give the same bits as the whole

// The fast kernel of a type on this processor; nullptr where there is none (then ggml's own vec_dot does it).
Multiply fast_kernel(uint32_t type, const Cpu & cpu);

// The same in plain C++, slow; to compare with. nullptr for other types.
Multiply reference_kernel(uint32_t type);

}  // namespace expertstream
