// The fast kernels against the plain one: the same bits, whatever the shape, the values and the alignment.
#include "../src/kernels.hpp"

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "../src/kernels/blocks.hpp"
#include "../src/kernels/variants.hpp"
#include "check.hpp"

using namespace expertstream;

namespace {

using Bytes = std::vector<uint8_t>;

struct Format {
    const char * name;
    uint32_t type;
    uint64_t elements;           // of a block
    uint64_t bytes;              // of a block
    std::vector<size_t> halves;  // where in a block its scales lie
};

const std::vector<Format> & formats() {
    static const std::vector<Format> all = {
        {"Q4_0", kQ4_0, 32, 18, {0}},     {"Q8_0", kQ8_0, 32, 34, {0}},       {"IQ4_NL", kIQ4_NL, 32, 18, {0}},
        {"MXFP4", kMXFP4, 32, 17, {}},    {"Q4_K", kQ4_K, 256, 144, {0, 2}},  {"Q5_K", kQ5_K, 256, 176, {0, 2}},
        {"Q6_K", kQ6_K, 256, 210, {208}}, {"IQ4_XS", kIQ4_XS, 256, 136, {0}},
    };
    return all;
}

struct Variant {
    const char * name;
    Multiply (*kernel)(uint32_t type);
    bool here;
};

std::vector<Variant> variants() {
    std::vector<Variant> all;
#ifdef __x86_64__
    const Cpu cpu = Cpu::detect();
    const bool base = cpu.avx2 && cpu.fma && cpu.f16c;
    all.push_back({"AVX2", kernel_avx2, base});
    all.push_back({"AVX-VNNI", kernel_avx_vnni, base && cpu.avx_vnni});
    all.push_back({"AVX-512-VNNI", kernel_avx512_vnni, base && cpu.avx512_vnni});
#endif
    return all;
}

using Random = std::mt19937;

uint8_t byte(Random & random) { return static_cast<uint8_t>(random()); }

// A finite half of either sign, or zero; `wide`: of any size, else near those of a model.
uint16_t half(Random & random, bool wide) {
    const auto sign = random() % 2 << 15, fraction = random() % 1024;
    const auto exponent = wide ? random() % 31 : 5 + random() % 8;
    return static_cast<uint16_t>(random() % 50 == 0 ? 0 : sign | exponent << 10 | fraction);
}

Bytes weights(const Format & format, uint64_t cols, uint32_t rows, Random & random, bool wide) {
    Bytes all(cols / format.elements * format.bytes * rows);
    for (uint8_t & b : all) b = byte(random);
    for (size_t block = 0; block < all.size(); block += format.bytes) {
        for (const size_t at : format.halves) {
            const uint16_t d = half(random, wide);
            std::memcpy(&all[block + at], &d, sizeof d);
        }
        if (format.type == kMXFP4) all[block] = static_cast<uint8_t>(wide ? random() % 200 : 110 + random() % 20);
    }
    return all;
}

void put_sums(uint8_t * block) {
    for (size_t group = 0; group < 16; ++group) {
        int16_t sum = 0;
        for (size_t i = 0; i < 16; ++i)
            sum = static_cast<int16_t>(sum + static_cast<int8_t>(block[4 + 16 * group + i]));
        std::memcpy(block + 260 + 2 * group, &sum, sizeof sum);
    }
}

// Quantised activations are never -128.
uint8_t quant(Random & random) { return static_cast<uint8_t>(static_cast<int>(random() % 255) - 127); }

Bytes activations_k(uint64_t cols, Random & random, bool wide) {
    Bytes all(cols / 256 * 292);
    for (size_t block = 0; block < all.size(); block += 292) {
        const float d = std::ldexp(static_cast<float>(random() % 2000) - 1000.0f,
                                   static_cast<int>(random() % (wide ? 60 : 6)) - 20);
        std::memcpy(&all[block], &d, sizeof d);
        for (size_t i = 0; i < 256; ++i) all[block + 4 + i] = quant(random);
        put_sums(&all[block]);
    }
    return all;
}

Bytes activations_0(uint64_t cols, Random & random, bool wide) {
    Bytes all(cols / 32 * 34);
    for (size_t block = 0; block < all.size(); block += 34) {
        const uint16_t d = half(random, wide);
        std::memcpy(&all[block], &d, sizeof d);
        for (size_t i = 0; i < 32; ++i) all[block + 2 + i] = quant(random);
    }
    return all;
}

Bytes activations(const Format & format, uint64_t cols, Random & random, bool wide) {
    return format.elements == 256 ? activations_k(cols, random, wide) : activations_0(cols, random, wide);
}

struct Case {
    Format format;
    uint64_t cols;
    uint32_t rows, count;
    size_t row_bytes;
    Bytes w;
    std::vector<Bytes> x;
};

Case make(const Format & format, uint64_t cols, uint32_t rows, uint32_t count, bool wide = false) {
    Random random(static_cast<uint32_t>(cols * 31 + rows * 7 + count + format.type));
    Case c{format, cols, rows, count, static_cast<size_t>(cols / format.elements * format.bytes), {}, {}};
    c.w = weights(format, cols, rows, random, wide);
    for (uint32_t a = 0; a < count; ++a) c.x.push_back(activations(format, cols, random, wide));
    return c;
}

// Results, activation after activation; with a guard behind each that must stay.
std::vector<float> run(Multiply kernel, const Case & c, const uint8_t * w, size_t row_bytes) {
    const size_t each = c.rows + 1;
    std::vector<float> all(c.count * each, -7.0f);
    std::vector<const uint8_t *> x;
    std::vector<float *> out;
    for (uint32_t a = 0; a < c.count; ++a) {
        x.push_back(c.x[a].data());
        out.push_back(&all[a * each]);
    }
    kernel(c.cols, w, row_bytes, c.rows, x.data(), out.data(), c.count);
    return all;
}

std::vector<float> run(Multiply kernel, const Case & c) { return run(kernel, c, c.w.data(), c.row_bytes); }

// Not a number equals itself here: infinite scales of weights must not part ways.
bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b)); }

void check_same(const std::vector<float> & expected, const std::vector<float> & got) {
    CHECK_EQ(expected.size(), got.size());
    for (size_t i = 0; i < expected.size(); ++i)
        if (!same(expected[i], got[i])) CHECK_EQ(expected[i], got[i]);
}

void check_variants(const Case & c) {
    const std::vector<float> expected = run(reference_kernel(c.format.type), c);
    for (const Variant & variant : variants())
        if (variant.here) check_same(expected, run(variant.kernel(c.format.type), c));
}

}  // namespace

TEST(every_count_of_activations_gives_the_bits_of_the_plain_kernel) {
    for (const Format & format : formats())
        for (const uint32_t count : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 33u})
            check_variants(make(format, 512, 5, count));
}

TEST(every_number_of_columns_gives_the_bits_of_the_plain_kernel) {
    for (const Format & format : formats())
        for (uint64_t cols = format.elements; cols <= 2048;
             cols += cols < 512 ? format.elements : 256 + format.elements % 256)
            for (const uint32_t count : {1u, 2u, 6u}) check_variants(make(format, cols, 3, count));
}

TEST(long_rows_and_many_activations_go_through_in_several_passes) {
    for (const Format & format : formats()) {
        check_variants(make(format, 14336, 3, 70));
        check_variants(make(format, 2048, 11, 260));
    }
}

TEST(rows_too_long_for_the_scratch_space_are_right_too) {
    for (const Format & format : formats()) check_variants(make(format, 131072, 1, 2));
}

TEST(extreme_scales_give_the_same_bits) {
    for (const Format & format : formats())
        for (const uint32_t count : {1u, 4u, 7u}) check_variants(make(format, 1024, 4, count, true));
}

TEST(zeros_give_zeros) {
    for (const Format & format : formats()) {
        Case c = make(format, 512, 3, 3);
        c.w.assign(c.w.size(), 0);
        for (Bytes & x : c.x) x.assign(x.size(), 0);
        check_variants(c);
        for (const Variant & variant : variants())
            if (variant.here) CHECK_EQ(run(variant.kernel(format.type), c)[0], 0.0f);
    }
}

TEST(the_largest_weights_and_activations_do_not_overflow) {
    for (const Format & format : formats())
        for (const int pattern : {0x00, 0x77, 0x7f, 0x80, 0x88, 0xff}) {
            Case c = make(format, 512, 2, 5);
            for (size_t i = 0; i < c.w.size(); ++i) {
                bool scale = format.type == kMXFP4 && i % format.bytes == 0;
                for (const size_t at : format.halves) scale = scale || i % format.bytes - at < 2;
                if (!scale) c.w[i] = static_cast<uint8_t>(pattern);
            }
            for (Bytes & x : c.x)
                for (size_t i = 0, size = format.elements == 256 ? 292 : 34; i < x.size(); ++i)
                    if (i % size >= (size == 292 ? 4 : 2) && i % size < 260) x[i] = &x - c.x.data() < 3 ? 127 : 0x81;
            if (format.elements == 256)
                for (Bytes & x : c.x)
                    for (size_t block = 0; block < x.size(); block += 292) put_sums(&x[block]);
            check_variants(c);
        }
}

TEST(weights_may_begin_at_any_byte_and_rows_may_be_apart) {
    for (const Format & format : formats()) {
        const Case c = make(format, 768, 4, 5);
        const std::vector<float> expected = run(reference_kernel(format.type), c);
        for (const size_t shift : {1u, 2u, 3u, 5u, 31u, 33u}) {
            const size_t apart = c.row_bytes + shift;
            Bytes moved(shift + apart * (c.rows - 1) + c.row_bytes);  // nothing may be read behind the last row
            for (uint32_t r = 0; r < c.rows; ++r)
                std::memcpy(&moved[shift + r * apart], &c.w[r * c.row_bytes], c.row_bytes);
            for (const Variant & variant : variants())
                if (variant.here) check_same(expected, run(variant.kernel(format.type), c, &moved[shift], apart));
        }
    }
}

TEST(a_row_gives_the_same_bits_alone_and_among_others) {
    for (const Format & format : formats())
        for (const Variant & variant : variants()) {
            if (!variant.here) continue;
            const Case c = make(format, 1024, 20, 9);
            const std::vector<float> all = run(variant.kernel(format.type), c);
            Case one = c;
            one.rows = one.count = 1;
            one.x = {c.x[6]};
            for (uint32_t r = 0; r < c.rows; ++r) {
                const float alone = run(variant.kernel(format.type), one, &c.w[r * c.row_bytes], c.row_bytes)[0];
                CHECK(same(alone, all[6 * (c.rows + 1) + r]));
            }
        }
}

#ifdef __x86_64__
// What programs leave on the stack, read as floats, is mostly denormal: right to multiply in lanes that nobody reads, but slow.
__attribute__((noinline)) void litter_stack() {
    volatile uint32_t stack[128 * 1024];
    for (volatile uint32_t & word : stack) word = 0x7fff;
}

TEST(what_was_on_the_stack_before_is_not_multiplied) {
    for (const Format & format : formats())
        for (const Variant & variant : variants())
            for (const uint32_t count : {1u, 2u, 3u, 5u, 17u}) {
                if (!variant.here) continue;
                const Case c = make(format, 1024, 4, count);
                litter_stack();
                _mm_setcsr(_mm_getcsr() & ~static_cast<unsigned>(_MM_EXCEPT_MASK));
                run(variant.kernel(format.type), c);
                CHECK_EQ(0u, _mm_getcsr() & _MM_EXCEPT_DENORM);
            }
}
#endif

TEST(types_without_a_kernel_have_none) {
    CHECK(reference_kernel(kF32) == nullptr);
    CHECK(fast_kernel(kF16, Cpu::detect()) == nullptr);
    CHECK(fast_kernel(kQ4_K, Cpu{}) == nullptr);
}

TEST(the_plain_kernel_multiplies_what_the_blocks_say) {
    // Q8_0: 0.5 * (1 .. 32) times 2 * (all 3).
    Bytes w(34), x(34);
    const uint16_t half_of_one = 0x3800, two = 0x4000;
    std::memcpy(w.data(), &half_of_one, 2);
    std::memcpy(x.data(), &two, 2);
    for (size_t i = 0; i < 32; ++i) {
        w[2 + i] = static_cast<uint8_t>(i + 1);
        x[2 + i] = 3;
    }
    const uint8_t * activations = x.data();
    float result = 0;
    float * out = &result;
    reference_kernel(kQ8_0)(32, w.data(), 34, 1, &activations, &out, 1);
    CHECK_EQ(result, 1584.0f);
}
