// What the kernels are made of, for one instruction set. Included once in each of avx2.cpp, avx_vnni.cpp and
// avx512_vnni.cpp, which define ES_TARGET (its name for the compiler) and ES_VNNI (0: none, 1: AVX-VNNI, 2:
// AVX-512-VNNI on 256 bits). Every function carries the target itself, so that one plain command compiles all files.
// Sums of whole numbers are exact in every variant.
#pragma once

#include <immintrin.h>

#include "blocks.hpp"

#define ES_FN __attribute__((target(ES_TARGET), always_inline)) inline

#if defined(__SANITIZE_ADDRESS__)
#define ES_UNROLL  // a watched build would take minutes to compile
#elif defined(__clang__)
#define ES_UNROLL _Pragma("unroll")
#else
#define ES_UNROLL _Pragma("GCC unroll 8")
#endif

namespace expertstream {
namespace {

using Bytes = __m256i;         // 32 of 8 bits
using Words = __m256i;         // 16 of 16 bits
using Ints = __m256i;          // 8 of 32 bits
using Floats = __m256;         // 8
constexpr uint32_t kTile = 4;  // activations that share one pass over a row

ES_FN Bytes load(const void * from) { return _mm256_loadu_si256(static_cast<const __m256i *>(from)); }
ES_FN void store(void * to, Bytes value) { _mm256_storeu_si256(static_cast<__m256i *>(to), value); }
ES_FN __m128i load_16(const void * from) { return _mm_loadu_si128(static_cast<const __m128i *>(from)); }
ES_FN Ints everywhere(const uint32_t & value) { return _mm256_set1_epi32(static_cast<int>(value)); }

// Asks for the memory `ahead` bytes behind `from`, as much as `bytes`. A wrong address does no harm.
ES_FN void fetch(const void * from, size_t bytes, size_t ahead) {
    ES_UNROLL
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(static_cast<const char *>(from) + ahead + i, _MM_HINT_T0);
}

// Pairs of products; a pair must fit in 16 bits.
ES_FN Words pairs(Bytes unsigned_bytes, Bytes signed_bytes) {
    return _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
}

// sum + words * scales, pair by pair.
ES_FN Ints add_pairs(Ints sum, Words words, Words scales) {
#if ES_VNNI == 2
    return _mm256_dpwssd_epi32(sum, words, scales);
#elif ES_VNNI == 1
    return _mm256_dpwssd_avx_epi32(sum, words, scales);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(words, scales));
#endif
}

// sum + four products per lane; a pair of products must fit in 16 bits.
ES_FN Ints add_fours(Ints sum, Bytes unsigned_bytes, Bytes signed_bytes) {
#if ES_VNNI == 2
    return _mm256_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
#elif ES_VNNI == 1
    return _mm256_dpbusd_avx_epi32(sum, unsigned_bytes, signed_bytes);
#else
    return add_pairs(sum, pairs(unsigned_bytes, signed_bytes), _mm256_set1_epi16(1));
#endif
}

// 16 bytes to 32 of four bits: the low halves, then the high halves.
ES_FN Bytes halves(const uint8_t * from) {
    const Bytes twice = _mm256_broadcastsi128_si256(load_16(from));
    return _mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
}

ES_FN Bytes look_up(const int8_t * table, Bytes indices) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16(table)), indices);
}

ES_FN float from_half(const Half & half) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(read_as<uint16_t>(half))));
}

ES_FN float multiply_add(float a, float b, float c) {  // with one rounding
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

// In the order that makes the result the same to the last bit: lanes k, k + 4, then k, k + 2, then k, k + 1.
ES_FN float sum_of(Floats x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace expertstream
