// How functions of the C interface end: a reason in the caller's buffer, no exception across the border. Private.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <string>

#include "text.hpp"

namespace expertstream {

// 0, or 1 with `text` in the caller's buffer, cut at a whole character.
inline int c_result(bool ok, const std::string & text, char * error, size_t error_bytes) {
    if (!ok && error != nullptr && error_bytes > 0) write_text(error, error_bytes, text);
    return ok ? 0 : 1;
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
