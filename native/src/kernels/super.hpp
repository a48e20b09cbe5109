// Rows in blocks of 256 (Q4_K, Q5_K, Q6_K, IQ4_XS) times activations in Q8_K. See simd.hpp for how this file is used.
#pragma once

#include <type_traits>

#include "simd.hpp"

namespace expertstream {
namespace {

// Activations of one tile, block by block: copied once per call so that loads are aligned and everything that does not
// depend on the row is done once. In `sums` and `ds`, activations 2p and 2p + 1 share an entry: lanes 0 to 3 and 4 to
// 7.
struct alignas(64) SuperTile {
    int8_t qs[kTile][256];
    int16_t sums[kTile][16];  // of 16 elements each, as given
    int16_t sums_32[2][16];   // of 32 elements each: eight of one activation, eight of the other
    float ds[2][8];           // its scale, four times each
};

ES_FN void prepare(const BlockQ8_K & from, uint32_t a, SuperTile & to) {
    if (a % 2 == 0) {  // the neighbour may not come, yet its lanes are multiplied: denormals left there halve the speed
        store(to.sums_32[a / 2], _mm256_setzero_si256());
        _mm256_store_ps(to.ds[a / 2], _mm256_setzero_ps());
    }
    ES_UNROLL
    for (int i = 0; i < 8; ++i) store(to.qs[a] + 32 * i, load(from.qs + 32 * i));
    const __m128i low = load_16(from.sums), high = load_16(from.sums + 16);
    store(to.sums[a], load(from.sums));
    _mm_store_si128(reinterpret_cast<__m128i *>(to.sums_32[a / 2] + a % 2 * 8), _mm_hadd_epi16(low, high));
    _mm_store_ps(to.ds[a / 2] + a % 2 * 4, _mm_set1_ps(read_as<float>(from.d)));
}

// ---- one type each: the head of a block (scales), its 32 weights number j, and how products with them are summed ----

// The eight scales and minima of Q4_K and Q5_K, of 6 bits each, to bytes: scales, then minima.
ES_FN __m128i unpack_scales(const uint8_t * block) {
    const __m128i packed = load_16(block);  // d, dmin, then twelve bytes
    const __m128i low =
        _mm_shuffle_epi8(packed, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m128i high =
        _mm_shuffle_epi8(packed, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    const __m128i low_bits = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                                           _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    return _mm_or_si128(low_bits, _mm_and_si128(_mm_srli_epi16(high, 2), _mm_set1_epi8(0x30)));
}

struct alignas(32) HeadOfMinima {
    uint32_t scales[8];  // twice 16 bits
    int16_t minima[16];  // eight, twice
    float d, dmin;
};

ES_FN void unpack_head(const uint8_t * block, HeadOfMinima & head) {
    const __m128i bytes = unpack_scales(block);
    const Ints scales = _mm256_cvtepu8_epi32(bytes);
    store(head.scales, _mm256_or_si256(scales, _mm256_slli_epi32(scales, 16)));
    store(head.minima, _mm256_permute4x64_epi64(_mm256_cvtepu8_epi16(bytes), 0xee));
    const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(read_as<int>(block)));
    _mm_storel_pi(reinterpret_cast<__m64 *>(&head.d), both);
}

struct Q4_K {
    static constexpr uint32_t kType = kQ4_K;
    using Block = BlockQ4_K;
    using Head = HeadOfMinima;
    static constexpr bool kSigned = false;
    ES_FN static void head(const Block & block, Head & head) { unpack_head(block.d, head); }
    ES_FN static void weights(const Block & block, int pair, Bytes & first, Bytes & second) {
        const Bytes bits = load(block.qs + 32 * pair);
        first = _mm256_and_si256(bits, _mm256_set1_epi8(15));
        second = _mm256_and_si256(_mm256_srli_epi16(bits, 4), _mm256_set1_epi8(15));
    }
    ES_FN static Words scales(const Head & head, int j) { return everywhere(head.scales[j]); }
};

struct Q5_K {
    static constexpr uint32_t kType = kQ5_K;
    using Block = BlockQ5_K;
    using Head = HeadOfMinima;
    static constexpr bool kSigned = false;
    ES_FN static void head(const Block & block, Head & head) { unpack_head(block.d, head); }
    ES_FN static void weights(const Block & block, int pair, Bytes & first, Bytes & second) {
        const Bytes bits = load(block.qs + 32 * pair), fifth = load(block.qh);
        first = _mm256_and_si256(bits, _mm256_set1_epi8(15));
        second = _mm256_and_si256(_mm256_srli_epi16(bits, 4), _mm256_set1_epi8(15));
        first = _mm256_or_si256(first, bit(fifth, 2 * pair));
        second = _mm256_or_si256(second, bit(fifth, 2 * pair + 1));
    }
    ES_FN static Words scales(const Head & head, int j) { return everywhere(head.scales[j]); }

  private:
    ES_FN static Bytes bit(Bytes bits, int which) {  // as 16
        const Bytes moved = which < 4 ? _mm256_slli_epi16(bits, 4 - which) : _mm256_srli_epi16(bits, which - 4);
        return _mm256_and_si256(moved, _mm256_set1_epi8(16));
    }
};

struct Q6_K {
    static constexpr uint32_t kType = kQ6_K;
    using Block = BlockQ6_K;
    struct alignas(32) Head {
        int16_t scales[16];  // the even ones, then the odd ones
        int16_t offset[16];  // -32 times each, in order
        float d;
    };
    static constexpr bool kSigned = false;
    ES_FN static void head(const Block & block, Head & head) {
        const __m128i bytes = load_16(block.scales);
        const __m128i apart =
            _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
        store(head.scales, _mm256_cvtepi8_epi16(apart));
        store(head.offset, _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 5)));
        head.d = from_half(block.d);
    }
    ES_FN static void weights(const Block & block, int pair, Bytes & first, Bytes & second) {
        const uint8_t * low = block.ql + pair / 2 * 64;
        const Bytes high = load(block.qh + pair / 2 * 32);
        if (pair % 2 == 0) {
            first = _mm256_or_si256(low_half(load(low)), two_bits(_mm256_slli_epi16(high, 4)));
            second = _mm256_or_si256(low_half(load(low + 32)), two_bits(_mm256_slli_epi16(high, 2)));
        } else {
            first = _mm256_or_si256(low_half(_mm256_srli_epi16(load(low), 4)), two_bits(high));
            second =
                _mm256_or_si256(low_half(_mm256_srli_epi16(load(low + 32), 4)), two_bits(_mm256_srli_epi16(high, 2)));
        }
    }
    ES_FN static Words scales(const Head & head, int j) {
        return _mm256_shuffle_epi8(load(head.scales),
                                   _mm256_set1_epi16(static_cast<int16_t>((2 * j + 1) << 8 | 2 * j)));
    }

  private:
    ES_FN static Bytes low_half(Bytes bits) { return _mm256_and_si256(bits, _mm256_set1_epi8(15)); }
    ES_FN static Bytes two_bits(Bytes bits) { return _mm256_and_si256(bits, _mm256_set1_epi8(0x30)); }
};

struct IQ4_XS {
    static constexpr uint32_t kType = kIQ4_XS;
    using Block = BlockIQ4_XS;
    struct alignas(32) Head {
        uint32_t scales[8];
        float d;
    };
    static constexpr bool kSigned = true;
    ES_FN static void head(const Block & block, Head & head) {
        const Ints low = _mm256_srlv_epi32(everywhere(read_as<uint32_t>(block.scales_l)),
                                           _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        const Ints high = _mm256_srlv_epi32(everywhere(uint32_t{read_as<uint16_t>(block.scales_h)} << 4),
                                            _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        const Ints six = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                         _mm256_and_si256(high, _mm256_set1_epi32(0x30)));
        const Ints scales = _mm256_sub_epi32(six, _mm256_set1_epi32(32));
        store(head.scales,
              _mm256_or_si256(_mm256_and_si256(scales, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(scales, 16)));
        head.d = from_half(block.d);
    }
    ES_FN static void weights(const Block & block, int pair, Bytes & first, Bytes & second) {
        first = look_up(kNonLinear, halves(block.qs + 32 * pair));
        second = look_up(kNonLinear, halves(block.qs + 32 * pair + 16));
    }
    ES_FN static Words scales(const Head & head, int j) { return everywhere(head.scales[j]); }
};

// ---- where the weights of a row come from ----

// Straight from the block: for the one tile of a decode.
template <class F>
struct Packed {
    using Block = typename F::Block;
    size_t ahead;
    typename F::Head own;
    ES_FN const typename F::Head & head(const Block & block) {
        F::head(block, own);
        fetch(&block, sizeof block, ahead);
        return own;
    }
    ES_FN static void weights(const Block & block, int pair, Bytes & first, Bytes & second) {
        F::weights(block, pair, first, second);
    }
};

// Unpacked before: for many tiles.
template <class F>
struct Unpacked {
    struct Block {
        typename F::Head head;
        alignas(32) uint8_t qs[256];
    };
    ES_FN const typename F::Head & head(const Block & block) { return block.head; }
    ES_FN static void weights(const Block & block, int pair, Bytes & first, Bytes & second) {
        first = load(block.qs + 64 * pair);
        second = load(block.qs + 64 * pair + 32);
    }
};

template <class F>
ES_FN void unpack_row(const uint8_t * row, uint64_t blocks, typename Unpacked<F>::Block * to) {
    const auto * from = reinterpret_cast<const typename F::Block *>(row);
    for (uint64_t b = 0; b < blocks; ++b) {
        F::head(from[b], to[b].head);
        ES_UNROLL
        for (int pair = 0; pair < 4; ++pair) {
            Bytes first, second;
            F::weights(from[b], pair, first, second);
            store(to[b].qs + 64 * pair, first);
            store(to[b].qs + 64 * pair + 32, second);
        }
    }
}

// ---- what a type adds beside scale * sum: the minima, in floats of their own ----

template <class F, int A>
struct Extra {  // Q6_K, IQ4_XS: nothing
    ES_FN void clear() {}
    ES_FN void add(const typename F::Head &, const SuperTile &) {}
    ES_FN void finish(float *) const {}
};

template <int A>
struct Extra<Q4_K, A> {  // four lanes per activation
    static constexpr int kPairs = (A + 1) / 2;
    Floats sum[kPairs];
    ES_FN void clear() {
        ES_UNROLL
        for (int p = 0; p < kPairs; ++p) sum[p] = _mm256_setzero_ps();
    }
    ES_FN void add(const HeadOfMinima & head, const SuperTile & x) {
        const Words minima = load(head.minima);
        ES_UNROLL
        for (int p = 0; p < kPairs; ++p) {
            const Floats whole = _mm256_cvtepi32_ps(_mm256_madd_epi16(minima, load(x.sums_32[p])));
            sum[p] = _mm256_fnmadd_ps(_mm256_mul_ps(_mm256_set1_ps(head.dmin), _mm256_load_ps(x.ds[p])), whole, sum[p]);
        }
    }
    ES_FN void finish(float * totals) const {
        ES_UNROLL
        for (int a = 0; a < A; ++a) {
            const __m128 four = a % 2 == 0 ? _mm256_castps256_ps128(sum[a / 2]) : _mm256_extractf128_ps(sum[a / 2], 1);
            const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            totals[a] += _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
        }
    }
};

template <int A>
struct Extra<Q5_K, A> {  // one float per activation, in the order 0, 2, -, -, 1, 3, -, -
    static constexpr int kLast = (A - 1) / 2;
    Floats sum;
    ES_FN void clear() { sum = _mm256_setzero_ps(); }
    ES_FN void add(const HeadOfMinima & head, const SuperTile & x) {
        const Words minima = load(head.minima);
        const Ints first = _mm256_madd_epi16(minima, load(x.sums_32[0])),
                   last = _mm256_madd_epi16(minima, load(x.sums_32[kLast]));
        const Ints two = _mm256_hadd_epi32(first, last);
        const Floats whole = _mm256_cvtepi32_ps(_mm256_hadd_epi32(two, two));
        const Floats ds = _mm256_unpacklo_ps(_mm256_load_ps(x.ds[0]), _mm256_load_ps(x.ds[kLast]));
        sum = _mm256_fnmadd_ps(_mm256_mul_ps(_mm256_set1_ps(head.dmin), ds), whole, sum);
    }
    ES_FN void finish(float * totals) const {
        alignas(32) float all[8];
        _mm256_store_ps(all, sum);
        ES_UNROLL
        for (int a = 0; a < A; ++a) totals[a] += all[a % 2 * 4 + a / 2];
    }
};

template <class F, int A>
ES_FN void begin_sums(const typename F::Head &, const SuperTile &, Ints * sums) {
    ES_UNROLL
    for (int a = 0; a < A; ++a) sums[a] = _mm256_setzero_si256();
}

template <class F, int A>
ES_FN void begin_sums_q6(const Q6_K::Head & head, const SuperTile & x, Ints * sums) {
    const Words offset = load(head.offset);
    ES_UNROLL
    for (int a = 0; a < A; ++a) sums[a] = _mm256_madd_epi16(offset, load(x.sums[a]));
}

// ---- one row times the A activations of a tile ----

template <class F, int A>
ES_FN void add_products(Bytes weights, Words scales, const SuperTile & x, int j, Ints * sums) {
    const Bytes size = F::kSigned ? _mm256_abs_epi8(weights) : weights;
    ES_UNROLL
    for (int a = 0; a < A; ++a) {
        const Bytes activation = load(x.qs[a] + 32 * j);
        sums[a] =
            add_pairs(sums[a], pairs(size, F::kSigned ? _mm256_sign_epi8(activation, weights) : activation), scales);
    }
}

template <class F, int A, class Source>
ES_FN void multiply_row(Source source, const typename Source::Block * row, uint64_t blocks, const SuperTile * x,
                        float * totals) {
    Floats sums[A];
    Extra<F, A> extra;
    ES_UNROLL
    for (int a = 0; a < A; ++a) sums[a] = _mm256_setzero_ps();
    extra.clear();
    for (uint64_t b = 0; b < blocks; ++b) {
        const typename F::Head & head = source.head(row[b]);
        Ints whole[A];
        if constexpr (std::is_same_v<F, Q6_K>)
            begin_sums_q6<F, A>(head, x[b], whole);
        else
            begin_sums<F, A>(head, x[b], whole);
        ES_UNROLL
        for (int pair = 0; pair < 4; ++pair) {
            Bytes first, second;
            Source::weights(row[b], pair, first, second);
            add_products<F, A>(first, F::scales(head, 2 * pair), x[b], 2 * pair, whole);
            add_products<F, A>(second, F::scales(head, 2 * pair + 1), x[b], 2 * pair + 1, whole);
        }
        ES_UNROLL
        for (int a = 0; a < A; ++a) {
            const Floats d = _mm256_mul_ps(_mm256_set1_ps(head.d), _mm256_broadcast_ss(&x[b].ds[a / 2][a % 2 * 4]));
            sums[a] = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(whole[a]), sums[a]);
        }
        extra.add(head, x[b]);
    }
    ES_UNROLL
    for (int a = 0; a < A; ++a) totals[a] = sum_of(sums[a]);
    extra.finish(totals);
}

// What drive.hpp asks of a family of types.
template <class F>
struct Super {
    using Format = F;
    using Tile = SuperTile;
    using Row = typename Unpacked<F>::Block;
    static uint64_t groups(uint64_t cols) { return cols / kSuper; }
    ES_FN static void take(uint64_t cols, const uint8_t * x, uint32_t a, Tile * tile) {
        for (uint64_t b = 0; b < groups(cols); ++b) prepare(reinterpret_cast<const BlockQ8_K *>(x)[b], a, tile[b]);
    }
    ES_FN static void unpack(uint64_t cols, const uint8_t * row, Row * to) { unpack_row<F>(row, groups(cols), to); }
    template <int A>
    ES_FN static void packed(uint64_t cols, const uint8_t * row, size_t ahead, const Tile * x, float * totals) {
        const Packed<F> source{ahead, {}};
        multiply_row<F, A>(source, reinterpret_cast<const typename F::Block *>(row), groups(cols), x, totals);
    }
    template <int A>
    ES_FN static void unpacked(uint64_t cols, const Row * row, const Tile * x, float * totals) {
        multiply_row<F, A>(Unpacked<F>(), row, groups(cols), x, totals);
    }
};

}  // namespace
}  // namespace expertstream
