// Text that has to fit: cut where it must be, but between two characters. Private.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace expertstream {

// The most bytes of a text that fit in `room` and do not end inside a character of UTF-8.
inline size_t fitting(const std::string & text, size_t room) {
    size_t size = std::min(text.size(), room);
    while (size > 0 && size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
    return size;
}

// As much of a text as fits, zero-terminated. `bytes` is more than 0.
inline void write_text(char * into, size_t bytes, const std::string & text) {
    into[text.copy(into, fitting(text, bytes - 1))] = '\0';
}

}  // namespace expertstream
