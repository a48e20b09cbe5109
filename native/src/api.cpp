// The part of the C interface that puts the engine up; see api.h.
#include "api.h"

#include <cstdio>
#include <memory>
#include <new>
#include <string>

#include "registry.hpp"

namespace expertstream {
namespace {

std::unique_ptr<Engine> engine;
std::string refusal;

}  // namespace

Engine * configured() { return engine.get(); }

void refuse(const std::string & reason) {
    refusal = reason;
    std::fprintf(stderr, "expertstream: %s\n", reason.c_str());
}

}  // namespace expertstream

extern "C" const char * es_version(void) { return "1"; }

extern "C" const char * es_refusal(void) { return expertstream::refusal.c_str(); }

extern "C" int es_configure(const char * text, char * error, size_t error_bytes) {
    using namespace expertstream;
    std::string reason;
    try {
        Options options;
        if (Options::parse(text, options, reason)) engine = Engine::open(options, reason);
    } catch (const std::bad_alloc &) {
        reason = "there is no memory to open the model";
    }
    if (!reason.empty()) {
        engine.reset();
        std::snprintf(error, error_bytes, "%s", reason.c_str());
    }
    return reason.empty() ? 0 : 1;
}
