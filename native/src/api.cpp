// The part of the C interface that puts the engine up; see api.h.
#include "api.h"

#include <cstdio>
#include <memory>
#include <string>

#include "c_call.hpp"
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
    return c_call(error, error_bytes, [&](std::string & reason) {
        if (engine != nullptr && engine->started()) {
            reason = "this process streams a model already";
            return false;
        }
        engine.reset();
        Options options;
        if (Options::parse(text, options, reason)) engine = Engine::open(options, reason);
        return engine != nullptr;
    });
}
