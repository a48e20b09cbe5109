// How far a long job has come, told to whoever asked for it. Private to the library.
#pragma once

#include <cstdint>
#include <string>

#include "api.h"

namespace expertstream {

struct Progress {
    es_progress tell = nullptr;
    void * context = nullptr;
    uint64_t total = 0, done = 0;

    // False once the other side wants it to stop.
    bool add(uint64_t bytes, std::string & error) {
        done += bytes;
        if (tell == nullptr || tell(done, total, context) == 0) return true;
        error = "stopped";
        return false;
    }
};

}  // namespace expertstream
