// Rows in blocks of 32 (Q4_0, Q8_0, IQ4_NL, MXFP4) times activations in Q8_0. See simd.hpp for how this file is used.
// Eight blocks are a group: their scales are multiplied at once. The last group of a row may have fewer.
#pragma once

#include "simd.hpp"

namespace expertstream {
namespace {

// Activations of one tile, group by group.
template <class F>
struct alignas(64) SmallTile {
    int8_t qs[8][kTile][32];
    int32_t excess[F::kRaise != 0 ? 8 : 1][kTile][8];  // what F::kRaise adds to the sums of each lane
    float ds[kTile][8];
};

// ---- one type each ----

// Weights must be unsigned for the instruction that multiplies bytes. Small ones are raised by a constant, and what
// that adds is taken off again. With larger ones a pair of products would not fit in 16 bits: there the signs go over
// to the activations.
struct Q8_0 {
    static constexpr uint32_t kType = kQ8_0;
    using Block = BlockQ8_0;
    static constexpr int kRaise = 0;
    static constexpr bool kApart = false;
    ES_FN static Bytes weights(const Block & block) { return load(block.qs); }
    ES_FN static float scale(const Block & block) { return from_half(block.d); }
};

struct Q4_0 {
    static constexpr uint32_t kType = kQ4_0;
    using Block = BlockQ4_0;
    static constexpr int kRaise = 8;
    static constexpr bool kApart = false;
    ES_FN static Bytes weights(const Block & block) { return halves(block.qs); }
    ES_FN static float scale(const Block & block) { return from_half(block.d); }
};

struct IQ4_NL {
    static constexpr uint32_t kType = kIQ4_NL;
    using Block = BlockQ4_0;
    static constexpr int kRaise = 0;
    static constexpr bool kApart = true;
    ES_FN static Bytes weights(const Block & block) { return look_up(kNonLinear, halves(block.qs)); }
    ES_FN static float scale(const Block & block) { return from_half(block.d); }
};

alignas(16) constexpr int8_t kRaisedFp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};  // kFp4 + 12

struct MXFP4 {
    static constexpr uint32_t kType = kMXFP4;
    using Block = BlockMXFP4;
    static constexpr int kRaise = 12;
    static constexpr bool kApart = true;
    ES_FN static Bytes weights(const Block & block) { return look_up(kRaisedFp4, halves(block.qs)); }
    ES_FN static float scale(const Block & block) {
        const uint32_t bits = block.e < 2 ? 0x00200000u << block.e : (block.e - 1u) << 23;
        return read_as<float>(&bits);
    }
};

template <class Block>
ES_FN Floats eight_scales(const Block * block) {
    __m128i all = _mm_setzero_si128();
    all = _mm_insert_epi16(all, read_as<uint16_t>(block[0].d), 0);
    all = _mm_insert_epi16(all, read_as<uint16_t>(block[1].d), 1);
    all = _mm_insert_epi16(all, read_as<uint16_t>(block[2].d), 2);
    all = _mm_insert_epi16(all, read_as<uint16_t>(block[3].d), 3);
    all = _mm_insert_epi16(all, read_as<uint16_t>(block[4].d), 4);
    all = _mm_insert_epi16(all, read_as<uint16_t>(block[5].d), 5);
    all = _mm_insert_epi16(all, read_as<uint16_t>(block[6].d), 6);
    all = _mm_insert_epi16(all, read_as<uint16_t>(block[7].d), 7);
    return _mm256_cvtph_ps(all);
}

ES_FN Floats eight_scales(const BlockMXFP4 * block) {
    uint64_t bytes = 0;
    ES_UNROLL
    for (int i = 0; i < 8; ++i) bytes |= uint64_t{block[i].e} << 8 * i;
    const Ints e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
    const Ints normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const Ints least = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, least, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

template <class F>
ES_FN void scales_of(const typename F::Block * group, uint64_t blocks, float * ds) {
    if (blocks == 8) {
        _mm256_storeu_ps(ds, eight_scales(group));
        return;
    }
    for (uint64_t i = 0; i < 8; ++i) ds[i] = i < blocks ? F::scale(group[i]) : 0;
}

// ---- where the weights of a row come from ----

template <class F>
struct FromBlocks {
    using Block = typename F::Block;
    size_t ahead;
    static constexpr uint64_t kStep = 8;  // of `Block`s to a group
    ES_FN Floats scales(const Block * group, uint64_t blocks) const {
        fetch(group, 8 * sizeof(Block), ahead);
        if (blocks == 8) return eight_scales(group);
        alignas(32) float ds[8];
        scales_of<F>(group, blocks, ds);
        return _mm256_load_ps(ds);
    }
    ES_FN static Bytes weights(const Block * group, uint64_t i) { return F::weights(group[i]); }
};

template <class F>
struct FromGroups {
    struct alignas(32) Block {
        float ds[8];
        uint8_t qs[8][32];
    };
    static constexpr uint64_t kStep = 1;
    ES_FN Floats scales(const Block * group, uint64_t) const { return _mm256_load_ps(group->ds); }
    ES_FN static Bytes weights(const Block * group, uint64_t i) { return load(group->qs[i]); }
};

// ---- one row times the A activations of a tile ----

// The whole numbers of a block, one vector per activation.
template <class F, int A, class Source>
ES_FN void multiply_block(const typename Source::Block * group, const SmallTile<F> & x, uint64_t i, Ints * whole) {
    const Bytes weights = Source::weights(group, i);
    const Bytes size = _mm256_abs_epi8(weights);
    ES_UNROLL
    for (int a = 0; a < A; ++a) {
        const Bytes activation = load(x.qs[i][a]);
        if constexpr (F::kRaise != 0)
            whole[a] = _mm256_sub_epi32(add_fours(_mm256_setzero_si256(), weights, activation), load(x.excess[i][a]));
        else
            whole[a] = add_fours(_mm256_setzero_si256(), size, _mm256_sign_epi8(activation, weights));
    }
}

template <class F, int A>
struct Sums {
    Floats even[A], odd[F::kApart ? A : 1];
    // Of an odd last block, where even and odd ones are apart: added at the very end, as one number.
    float last_scale[A], last[A];
};

template <class F, int A, class Source, bool kOdd>
ES_FN void add_block(const typename Source::Block * group, const SmallTile<F> & x, uint64_t i, const float (*ds)[8],
                     Sums<F, A> & sums) {
    Ints whole[A];
    multiply_block<F, A, Source>(group, x, i, whole);
    ES_UNROLL
    for (int a = 0; a < A; ++a) {
        Floats & sum = F::kApart && kOdd ? sums.odd[a] : sums.even[a];
        sum = _mm256_fmadd_ps(_mm256_broadcast_ss(&ds[a][i]), _mm256_cvtepi32_ps(whole[a]), sum);
    }
}

ES_FN float total(Ints whole) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return static_cast<float>(_mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1));
}

template <class F, int A, class Source>
ES_FN void add_two(const typename Source::Block * group, const SmallTile<F> & x, uint64_t i, const float (*ds)[8],
                   Sums<F, A> & sums) {
    add_block<F, A, Source, false>(group, x, i, ds, sums);
    add_block<F, A, Source, true>(group, x, i + 1, ds, sums);
}

template <class F, int A, class Source>
ES_FN void add_last(const typename Source::Block * group, const SmallTile<F> & x, uint64_t i, const float (*ds)[8],
                    Sums<F, A> & sums) {
    if constexpr (!F::kApart) {
        add_block<F, A, Source, false>(group, x, i, ds, sums);
    } else {
        Ints whole[A];
        multiply_block<F, A, Source>(group, x, i, whole);
        ES_UNROLL
        for (int a = 0; a < A; ++a) {
            sums.last_scale[a] = ds[a][i];
            sums.last[a] = total(whole[a]);
        }
    }
}

template <class F, int A, class Source>
ES_FN void add_group(const Source & source, const typename Source::Block * group, const SmallTile<F> & x,
                     uint64_t blocks, Sums<F, A> & sums) {
    alignas(32) float ds[A][8];
    const Floats scales = source.scales(group, blocks);
    ES_UNROLL
    for (int a = 0; a < A; ++a) _mm256_store_ps(ds[a], _mm256_mul_ps(scales, _mm256_load_ps(x.ds[a])));
    if (blocks == 8) {
        ES_UNROLL
        for (uint64_t i = 0; i < 8; i += 2) add_two<F, A, Source>(group, x, i, ds, sums);
        return;
    }
    for (uint64_t i = 0; i + 1 < blocks; i += 2) add_two<F, A, Source>(group, x, i, ds, sums);
    if (blocks % 2 == 1) add_last<F, A, Source>(group, x, blocks - 1, ds, sums);
}

template <class F, int A, class Source>
ES_FN void multiply_small_row(const Source & source, const typename Source::Block * row, uint64_t blocks,
                              const SmallTile<F> * x, float * totals) {
    Sums<F, A> sums;
    ES_UNROLL
    for (int a = 0; a < A; ++a) {
        sums.even[a] = sums.odd[F::kApart ? a : 0] = _mm256_setzero_ps();
        sums.last_scale[a] = sums.last[a] = 0;
    }
    for (uint64_t group = 0; group < blocks / 8; ++group)
        add_group<F, A>(source, row + group * Source::kStep, x[group], 8, sums);
    if (blocks % 8 != 0) add_group<F, A>(source, row + blocks / 8 * Source::kStep, x[blocks / 8], blocks % 8, sums);
    ES_UNROLL
    for (int a = 0; a < A; ++a) {
        totals[a] = sum_of(F::kApart ? _mm256_add_ps(sums.even[a], sums.odd[F::kApart ? a : 0]) : sums.even[a]);
        if (F::kApart && blocks % 2 == 1) totals[a] = multiply_add(sums.last_scale[a], sums.last[a], totals[a]);
    }
}

// What drive.hpp asks of a family of types.
template <class F>
struct Small {
    using Format = F;
    using Tile = SmallTile<F>;
    using Row = typename FromGroups<F>::Block;
    static uint64_t groups(uint64_t cols) { return (cols / kSmall + 7) / 8; }
    ES_FN static void take(uint64_t cols, const uint8_t * x, uint32_t a, Tile * tile) {
        const auto * from = reinterpret_cast<const BlockQ8_0 *>(x);
        for (uint64_t b = 0, blocks = cols / kSmall; b < blocks; b += 8) {
            const uint64_t here = blocks - b < 8 ? blocks - b : 8;
            for (uint64_t i = 0; i < here; ++i) {
                const Bytes qs = load(from[b + i].qs);
                store(tile[b / 8].qs[i][a], qs);
                if constexpr (F::kRaise != 0)
                    store(tile[b / 8].excess[i][a], add_fours(_mm256_setzero_si256(), _mm256_set1_epi8(F::kRaise), qs));
            }
            scales_of<Q8_0>(from + b, here, tile[b / 8].ds[a]);
        }
    }
    ES_FN static void unpack(uint64_t cols, const uint8_t * row, Row * to) {
        const auto * from = reinterpret_cast<const typename F::Block *>(row);
        for (uint64_t b = 0, blocks = cols / kSmall; b < blocks; b += 8) {
            const uint64_t here = blocks - b < 8 ? blocks - b : 8;
            scales_of<F>(from + b, here, to[b / 8].ds);
            for (uint64_t i = 0; i < here; ++i) store(to[b / 8].qs[i], F::weights(from[b + i]));
        }
    }
    template <int A>
    ES_FN static void packed(uint64_t cols, const uint8_t * row, size_t ahead, const Tile * x, float * totals) {
        const FromBlocks<F> source{ahead};
        multiply_small_row<F, A>(source, reinterpret_cast<const typename F::Block *>(row), cols / kSmall, x, totals);
    }
    template <int A>
    ES_FN static void unpacked(uint64_t cols, const Row * row, const Tile * x, float * totals) {
        multiply_small_row<F, A>(FromGroups<F>(), row, cols / kSmall, x, totals);
    }
};

}  // namespace
}  // namespace expertstream
