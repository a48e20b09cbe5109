// The products in plain C++: slow, and exact in every step. Also the definition of the order of floating-point
// operations that all kernels keep (that of ggml's AVX2 code): whole numbers are summed in eight lanes per block, lane
// k taking the elements 4k to 4k + 3 of every 32; each block adds scale * lane with one rounding; at the end the lanes
// are added in pairs k, k + 4, then k, k + 2, then k, k + 1.
#include <cmath>

#include "blocks.hpp"

namespace expertstream {
namespace {

float from_bits(uint32_t bits) { return read_as<float>(&bits); }

float from_half(const Half & half) {
    const uint32_t bits = read_as<uint16_t>(half);
    const uint32_t sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31) return from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) return std::copysign(static_cast<float>(fraction) * 0x1p-24f, from_bits(sign | 0x3f800000));
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

struct Lanes {
    float lane[8] = {};
    void add(float scale, const int32_t * whole) {
        for (int k = 0; k < 8; ++k) lane[k] = std::fma(scale, static_cast<float>(whole[k]), lane[k]);
    }
    float sum() const {
        float four[4];
        for (int k = 0; k < 4; ++k) four[k] = lane[k] + lane[k + 4];
        return (four[0] + four[2]) + (four[1] + four[3]);
    }
};

void dot_32(const int8_t * w, const int8_t * x, int32_t scale, int32_t * lanes) {
    for (int i = 0; i < 32; ++i) lanes[i / 4] += scale * w[i] * x[i];
}

void halves(const uint8_t * bytes, const int8_t * values, int8_t * w) {
    for (int i = 0; i < 16; ++i) {
        w[i] = values[bytes[i] & 15];
        w[16 + i] = values[bytes[i] >> 4];
    }
}

// Blocks of 32: how one is unpacked, and whether even and odd blocks are summed apart.
struct Q8_0 {
    using Block = BlockQ8_0;
    static constexpr bool kApart = false;
    static float unpack(const Block & block, int8_t * w) {
        std::memcpy(w, block.qs, 32);
        return from_half(block.d);
    }
};

struct Q4_0 {
    using Block = BlockQ4_0;
    static constexpr bool kApart = false;
    static float unpack(const Block & block, int8_t * w) {
        static constexpr int8_t kValues[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
        halves(block.qs, kValues, w);
        return from_half(block.d);
    }
};

struct IQ4_NL {
    using Block = BlockQ4_0;
    static constexpr bool kApart = true;
    static float unpack(const Block & block, int8_t * w) {
        halves(block.qs, kNonLinear, w);
        return from_half(block.d);
    }
};

struct MXFP4 {
    using Block = BlockMXFP4;
    static constexpr bool kApart = true;
    static float unpack(const Block & block, int8_t * w) {
        halves(block.qs, kFp4, w);
        return from_bits(block.e < 2 ? 0x00200000u << block.e : (block.e - 1u) << 23);
    }
};

template <class F>
float row_small(uint64_t cols, const uint8_t * w, const uint8_t * x) {
    const auto * weights = reinterpret_cast<const typename F::Block *>(w);
    const auto * activations = reinterpret_cast<const BlockQ8_0 *>(x);
    const uint64_t blocks = cols / kSmall, paired = F::kApart ? blocks / 2 * 2 : blocks;
    Lanes sums[2];
    float last_scale = 0;
    int32_t last = 0;
    for (uint64_t b = 0; b < blocks; ++b) {
        int8_t values[32];
        int32_t lanes[8] = {};
        const float d = F::unpack(weights[b], values) * from_half(activations[b].d);
        dot_32(values, activations[b].qs, 1, lanes);
        if (b < paired) {
            sums[F::kApart ? b % 2 : 0].add(d, lanes);
        } else {
            last_scale = d;
            for (const int32_t lane : lanes) last += lane;
        }
    }
    if (F::kApart)
        for (int k = 0; k < 8; ++k) sums[0].lane[k] += sums[1].lane[k];
    const float sum = sums[0].sum();
    return paired == blocks ? sum : std::fma(last_scale, static_cast<float>(last), sum);
}

struct Scales {
    uint8_t scale[8], minimum[8];
};

Scales unpack_scales(const uint8_t * packed) {
    Scales s;
    for (int i = 0; i < 4; ++i) {
        s.scale[i] = packed[i] & 63;
        s.minimum[i] = packed[4 + i] & 63;
        s.scale[4 + i] = static_cast<uint8_t>((packed[8 + i] & 15) | packed[i] >> 6 << 4);
        s.minimum[4 + i] = static_cast<uint8_t>(packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4);
    }
    return s;
}

int16_t sum_of_16(const BlockQ8_K & x, int i) { return read_as<int16_t>(x.sums + 2 * i); }
int32_t sum_of_32(const BlockQ8_K & x, int i) { return sum_of_16(x, 2 * i) + sum_of_16(x, 2 * i + 1); }

// Lane k of four: the minima 2k and 2k + 1 times the sums of their activations.
void dot_minima(const Scales & scales, const BlockQ8_K & x, int32_t * four) {
    for (int i = 0; i < 8; ++i) four[i / 2] += scales.minimum[i] * sum_of_32(x, i);
}

void halves_of_64(const uint8_t * bytes, int8_t * w) {
    for (int i = 0; i < 32; ++i) {
        w[i] = static_cast<int8_t>(bytes[i] & 15);
        w[32 + i] = static_cast<int8_t>(bytes[i] >> 4);
    }
}

float row_q4_k(uint64_t cols, const uint8_t * w, const uint8_t * x) {
    const auto * weights = reinterpret_cast<const BlockQ4_K *>(w);
    const auto * activations = reinterpret_cast<const BlockQ8_K *>(x);
    Lanes sum;
    float minima[4] = {};
    for (uint64_t b = 0; b < cols / kSuper; ++b) {
        const Scales scales = unpack_scales(weights[b].scales);
        const float d = read_as<float>(activations[b].d);
        int8_t values[64];
        int32_t lanes[8] = {}, four[4] = {};
        for (int i = 0; i < 8; ++i) {
            if (i % 2 == 0) halves_of_64(weights[b].qs + 16 * i, values);
            dot_32(values + i % 2 * 32, activations[b].qs + 32 * i, scales.scale[i], lanes);
        }
        dot_minima(scales, activations[b], four);
        sum.add(d * from_half(weights[b].d), lanes);
        for (int k = 0; k < 4; ++k)
            minima[k] = std::fma(-d * from_half(weights[b].dmin), static_cast<float>(four[k]), minima[k]);
    }
    return sum.sum() + ((minima[0] + minima[2]) + (minima[1] + minima[3]));
}

float row_q5_k(uint64_t cols, const uint8_t * w, const uint8_t * x) {
    const auto * weights = reinterpret_cast<const BlockQ5_K *>(w);
    const auto * activations = reinterpret_cast<const BlockQ8_K *>(x);
    Lanes sum;
    float minima = 0;
    for (uint64_t b = 0; b < cols / kSuper; ++b) {
        const Scales scales = unpack_scales(weights[b].scales);
        const float d = read_as<float>(activations[b].d);
        int8_t values[64];
        int32_t lanes[8] = {}, four[4] = {};
        for (int i = 0; i < 8; ++i) {
            if (i % 2 == 0) halves_of_64(weights[b].qs + 16 * i, values);
            int8_t * part = values + i % 2 * 32;
            for (int k = 0; k < 32; ++k) part[k] = static_cast<int8_t>(part[k] | (weights[b].qh[k] >> i & 1) << 4);
            dot_32(part, activations[b].qs + 32 * i, scales.scale[i], lanes);
        }
        dot_minima(scales, activations[b], four);
        sum.add(d * from_half(weights[b].d), lanes);
        minima = std::fma(-d * from_half(weights[b].dmin), static_cast<float>(four[0] + four[1] + four[2] + four[3]),
                          minima);
    }
    return sum.sum() + minima;
}

// Element 128 h + 32 part + i: four bits of `ql`, two of `qh`.
int32_t value_q6_k(const BlockQ6_K & block, int element) {
    const int h = element / 128, part = element / 32 % 4, i = element % 32;
    const int low = block.ql[64 * h + part % 2 * 32 + i] >> part / 2 * 4 & 15;
    return low | (block.qh[32 * h + i] >> 2 * part & 3) << 4;
}

float row_q6_k(uint64_t cols, const uint8_t * w, const uint8_t * x) {
    const auto * weights = reinterpret_cast<const BlockQ6_K *>(w);
    const auto * activations = reinterpret_cast<const BlockQ8_K *>(x);
    Lanes sum;
    for (uint64_t b = 0; b < cols / kSuper; ++b) {
        int32_t lanes[8] = {};
        for (int e = 0; e < 256; ++e)
            lanes[e % 32 / 4] += weights[b].scales[e / 16] * value_q6_k(weights[b], e) * activations[b].qs[e];
        for (int i = 0; i < 16; ++i) lanes[i / 2] -= 32 * weights[b].scales[i] * sum_of_16(activations[b], i);
        sum.add(read_as<float>(activations[b].d) * from_half(weights[b].d), lanes);
    }
    return sum.sum();
}

float row_iq4_xs(uint64_t cols, const uint8_t * w, const uint8_t * x) {
    const auto * weights = reinterpret_cast<const BlockIQ4_XS *>(w);
    const auto * activations = reinterpret_cast<const BlockQ8_K *>(x);
    Lanes sum;
    for (uint64_t b = 0; b < cols / kSuper; ++b) {
        const int high = read_as<uint16_t>(weights[b].scales_h);
        int32_t lanes[8] = {};
        for (int i = 0; i < 8; ++i) {
            int8_t values[32];
            halves(weights[b].qs + 16 * i, kNonLinear, values);
            const int scale = (weights[b].scales_l[i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4;
            dot_32(values, activations[b].qs + 32 * i, scale - 32, lanes);
        }
        sum.add(from_half(weights[b].d) * read_as<float>(activations[b].d), lanes);
    }
    return sum.sum();
}

using Row = float (*)(uint64_t cols, const uint8_t * w, const uint8_t * x);

template <Row kRow>
void multiply(uint64_t cols, const uint8_t * w, size_t row_bytes, uint32_t rows, const uint8_t * const * x,
              float * const * out, uint32_t count) {
    for (uint32_t a = 0; a < count; ++a)
        for (uint32_t r = 0; r < rows; ++r) out[a][r] = kRow(cols, w + r * row_bytes, x[a]);
}

}  // namespace

Multiply reference_kernel(uint32_t type) {
    switch (type) {
        case kQ4_0: return multiply<row_small<Q4_0>>;
        case kQ8_0: return multiply<row_small<Q8_0>>;
        case kIQ4_NL: return multiply<row_small<IQ4_NL>>;
        case kMXFP4: return multiply<row_small<MXFP4>>;
        case kQ4_K: return multiply<row_q4_k>;
        case kQ5_K: return multiply<row_q5_k>;
        case kQ6_K: return multiply<row_q6_k>;
        case kIQ4_XS: return multiply<row_iq4_xs>;
        default: return nullptr;
    }
}

}  // namespace expertstream
