// The checksum of slots: published values, and both ways to calculate it against each other.
#include "../src/crc32c.hpp"

#include <string>
#include <vector>

#include "../src/reader.hpp"
#include "check.hpp"

using namespace expertstream;

namespace {

std::vector<uint8_t> noise(size_t bytes) {
    std::vector<uint8_t> data(bytes);
    uint32_t state = 12345;
    for (uint8_t & byte : data) byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
    return data;
}

}  // namespace

TEST(published_values) {  // the first is everybody's check value, the others are RFC 3720 B.4
    CHECK_EQ(crc32c(0, "123456789", 9), 0xE3069283u);
    CHECK_EQ(crc32c(0, std::string(32, '\0').data(), 32), 0x8A9136AAu);
    CHECK_EQ(crc32c(0, std::string(32, '\xFF').data(), 32), 0x62A8AB43u);
    std::vector<uint8_t> ascending(32);
    for (size_t i = 0; i < 32; ++i) ascending[i] = static_cast<uint8_t>(i);
    CHECK_EQ(crc32c(0, ascending.data(), 32), 0x46DD794Eu);
}

TEST(published_values_by_table) {
    CHECK_EQ(crc32c_by_table(0, "123456789", 9), 0xE3069283u);
    CHECK_EQ(crc32c_by_table(0, std::string(32, '\0').data(), 32), 0x8A9136AAu);
}

TEST(nothing_leaves_the_value_as_it_is) {
    CHECK_EQ(crc32c(0, "", 0), 0u);
    CHECK_EQ(crc32c(0xE3069283u, "", 0), 0xE3069283u);
}

TEST(both_ways_agree_at_every_length_and_alignment) {
    if (!crc32c_has_instruction()) return;
    const std::vector<uint8_t> data = noise(200000);
    for (size_t start = 0; start < 9; ++start) {
        for (size_t size : {0, 1, 7, 8, 9, 63, 64, 65, 4095, 4096, 32767, 32768, 32769, 32791, 32792, 100001, 199991}) {
            CHECK_EQ(crc32c_by_instruction(7, &data[start], size), crc32c_by_table(7, &data[start], size));
        }
    }
}

TEST(a_continued_value_is_that_of_the_whole) {
    const std::vector<uint8_t> data = noise(150000);
    const uint32_t whole = crc32c(0, data.data(), data.size());
    for (size_t cut : {1, 8, 4096, 40000, 149999}) {
        CHECK_EQ(crc32c(crc32c(0, data.data(), cut), data.data() + cut, data.size() - cut), whole);
    }
}

TEST(every_flipped_bit_changes_it) {
    std::vector<uint8_t> data = noise(40000);
    const uint32_t whole = crc32c(0, data.data(), data.size());
    for (size_t bit = 0; bit < 8 * data.size(); bit += 997) {
        const auto mask = static_cast<uint8_t>(1u << bit % 8);
        data[bit / 8] ^= mask;
        CHECK(crc32c(0, data.data(), data.size()) != whole);
        data[bit / 8] ^= mask;
    }
}
