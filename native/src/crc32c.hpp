// The two ways to calculate a CRC-32C, for the tests that hold one against the other. Private; others use reader.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace expertstream {

uint32_t crc32c_by_table(uint32_t crc, const void * data, size_t size);

// SSE4.2; only where crc32c_has_instruction().
uint32_t crc32c_by_instruction(uint32_t crc, const void * data, size_t size);
bool crc32c_has_instruction();

}  // namespace expertstream
