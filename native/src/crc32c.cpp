// CRC-32C (Castagnoli, RFC 3720 §12.1): the checksum of a container's slots. Owns the choice of how to calculate it.
#include <array>
#include <cstring>

#include "crc32c.hpp"
#include "reader.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace expertstream {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // bits reversed, as all that follows
constexpr uint32_t kOne = 0x80000000;         // x^0
constexpr uint32_t kByte = 0x00800000;        // x^8: one byte further

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: what the byte b becomes when k bytes follow it.
constexpr Tables make_tables() {
    Tables tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
        tables[0][byte] = crc;
    }
    for (size_t k = 1; k < tables.size(); ++k) {
        for (size_t byte = 0; byte < 256; ++byte) {
            const uint32_t before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
        }
    }
    return tables;
}

constexpr Tables kTables = make_tables();

uint64_t word_at(const uint8_t * data) {
    uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    return word;
}

#if defined(__x86_64__)

// Product of two polynomials modulo the CRC's.
uint32_t product(uint32_t a, uint32_t b) {
    uint32_t sum = 0;
    for (; a != 0; a <<= 1) {
        if ((a & kOne) != 0) sum ^= b;
        b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
    }
    return sum;
}

// x^(8 * bytes): multiplied by it, a state moves past that many zero bytes.
uint32_t shift_by(size_t bytes) {
    uint32_t result = kOne;
    for (uint32_t square = kByte; bytes != 0; bytes >>= 1, square = product(square, square)) {
        if ((bytes & 1) != 0) result = product(result, square);
    }
    return result;
}

__attribute__((target("sse4.2"))) uint32_t one_stream(uint32_t state, const uint8_t * data, size_t size) {
    uint64_t wide = state;
    for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, word_at(data));
    state = static_cast<uint32_t>(wide);
    for (; size != 0; ++data, --size) state = _mm_crc32_u8(state, *data);
    return state;
}

// The instruction takes one cycle but answers after three, so three streams run side by side, each over a third.
__attribute__((target("sse4.2"))) uint32_t three_streams(uint32_t state, const uint8_t * data, size_t third) {
    uint64_t a = state, b = 0, c = 0;
    const uint8_t * second = data + third;
    const uint8_t * last = second + third;
    for (size_t i = 0; i < third; i += 8) {
        a = _mm_crc32_u64(a, word_at(data + i));
        b = _mm_crc32_u64(b, word_at(second + i));
        c = _mm_crc32_u64(c, word_at(last + i));
    }
    const uint32_t shift = shift_by(third);
    const uint32_t ab = product(static_cast<uint32_t>(a), shift) ^ static_cast<uint32_t>(b);
    return product(ab, shift) ^ static_cast<uint32_t>(c);
}

#endif

}  // namespace

uint32_t crc32c_by_table(uint32_t crc, const void * data, size_t size) {
    const auto * bytes = static_cast<const uint8_t *>(data);
    uint32_t state = ~crc;
    for (; size >= 8; bytes += 8, size -= 8) {
        uint32_t next = 0;
        for (size_t i = 0; i < 8; ++i) {
            const uint32_t byte = i < 4 ? bytes[i] ^ ((state >> (8 * i)) & 0xFF) : bytes[i];
            next ^= kTables[7 - i][byte];
        }
        state = next;
    }
    for (; size != 0; ++bytes, --size) state = (state >> 8) ^ kTables[0][(state ^ *bytes) & 0xFF];
    return ~state;
}

#if defined(__x86_64__)

bool crc32c_has_instruction() {
    static const bool has = __builtin_cpu_supports("sse4.2") != 0;
    return has;
}

uint32_t crc32c_by_instruction(uint32_t crc, const void * data, size_t size) {
    constexpr size_t kWorthThree = 32 * 1024;  // below it, putting the streams together costs more than they gain
    const auto * bytes = static_cast<const uint8_t *>(data);
    uint32_t state = ~crc;
    if (size >= kWorthThree) {
        const size_t third = size / 24 * 8;
        state = three_streams(state, bytes, third);
        bytes += 3 * third;
        size -= 3 * third;
    }
    return ~one_stream(state, bytes, size);
}

#else

bool crc32c_has_instruction() { return false; }

uint32_t crc32c_by_instruction(uint32_t crc, const void * data, size_t size) {
    return crc32c_by_table(crc, data, size);
}

#endif

uint32_t crc32c(uint32_t crc, const void * data, size_t size) {
    return crc32c_has_instruction() ? crc32c_by_instruction(crc, data, size) : crc32c_by_table(crc, data, size);
}

}  // namespace expertstream
