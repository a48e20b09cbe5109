// How functions of the C interface end: a reason in the caller's buffer, no exception across the border. Private.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>

namespace expertstream {

// 0, or 1 with `text` in the caller's buffer, cut at a whole character.
inline int c_result(bool ok, const std::string & text, char * error, size_t error_bytes) {
    if (ok || error == nullptr || error_bytes == 0) return ok ? 0 : 1;
    size_t size = std::min(text.size(), error_bytes - 1);
    while (size > 0 && size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
    std::memcpy(error, text.data(), size);
    error[size] = '\0';
    return 1;
}

// Runs `body(std::string & error)`, which returns whether it went well.
template <class Body> int c_call(char * error, size_t error_bytes, Body && body) {
    try {
        std::string text;
        const bool ok = body(text);
        return c_result(ok, text, error, error_bytes);
    } catch (const std::bad_alloc &) {
        return c_result(false, "not enough memory", error, error_bytes);
    } catch (const std::exception & problem) {
        return c_result(false, problem.what(), error, error_bytes);
    }
}

}  // namespace expertstream
