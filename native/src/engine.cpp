#include "engine.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>

#include "text.hpp"

namespace expertstream {
namespace {

constexpr unsigned kGovernorMs = 250;
constexpr uint32_t kUsedUnlessKnown = 8;  // experts per token, where a file does not say

bool number(const std::string & text, uint64_t & value) {
    char * end = nullptr;
    value = std::strtoull(text.c_str(), &end, 10);
    return !text.empty() && text[0] != '-' && *end == '\0';
}

template <typename T>
bool whole(const std::string & text, T & value) {
    uint64_t wide = 0;
    if (!number(text, wide) || wide > static_cast<T>(~T{0})) return false;
    value = static_cast<T>(wide);
    return true;
}

bool io_of(const std::string & text, Io & io) {
    static const std::map<std::string, Io> known{
        {"auto", Io::automatic}, {"threads", Io::threads}, {"uring", Io::uring}};
    const auto found = known.find(text);
    if (found == known.end()) return false;
    io = found->second;
    return true;
}

bool direct_of(const std::string & text, bool & direct) {
    direct = text != "off";
    return text == "auto" || text == "on" || text == "off";
}

bool flag_of(const std::string & text, bool & flag) {
    flag = text == "on";
    return flag || text == "off";
}

bool text_of(const std::string & text, std::string & value) {
    value = text;
    return true;
}

using Setter = std::function<bool(Options &, const std::string &)>;

const std::map<std::string, Setter> & setters() {
    static const std::map<std::string, Setter> table{
        {"model", [](Options & o, const std::string & v) { return text_of(v, o.model); }},
        {"stats", [](Options & o, const std::string & v) { return text_of(v, o.stats); }},
        {"trace", [](Options & o, const std::string & v) { return text_of(v, o.trace); }},
        {"share", [](Options & o, const std::string & v) { return text_of(v, o.share); }},
        {"budget", [](Options & o, const std::string & v) { return whole(v, o.budget); }},
        {"least", [](Options & o, const std::string & v) { return whole(v, o.least); }},
        {"threads", [](Options & o, const std::string & v) { return whole(v, o.threads) && o.threads > 0; }},
        {"io", [](Options & o, const std::string & v) { return io_of(v, o.reader.io); }},
        {"direct", [](Options & o, const std::string & v) { return direct_of(v, o.reader.direct); }},
        {"depth", [](Options & o, const std::string & v) { return whole(v, o.reader.depth) && o.reader.depth > 0; }},
        {"piece", [](Options & o, const std::string & v) { return whole(v, o.reader.piece) && o.reader.piece > 0; }},
        {"dense", [](Options & o, const std::string & v) { return flag_of(v, o.dense); }},
        {"prefetch", [](Options & o, const std::string & v) { return flag_of(v, o.prefetch); }},
        {"stall_ms",
         [](Options & o, const std::string & v) { return whole(v, o.reader.stall_ms) && o.reader.stall_ms > 0; }},
    };
    return table;
}

}  // namespace

bool Options::parse(const std::string & text, Options & options, std::string & error) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.empty()) continue;
        const size_t equals = line.find('=');
        const auto setter = setters().find(line.substr(0, equals));
        if (equals == std::string::npos || setter == setters().end()) {
            error = "unknown option: " + line;
            return false;
        }
        if (!setter->second(options, line.substr(equals + 1))) {
            error = "an option has a value that it cannot have: " + line;
            return false;
        }
    }
    if (options.model.empty()) error = "no model was given";
    return !options.model.empty();
}

std::unique_ptr<Engine> Engine::open(const Options & options, std::string & error) {
    Index index;
    if (!index_model(options.model, index, error)) return nullptr;
    if (index.layers.empty()) {
        error = options.model + " has no experts to stream";
        return nullptr;
    }
    std::unique_ptr<Engine> engine(new Engine(options, std::move(index)));
    engine->stats_ = Stats::open(options.stats, error);
    if (!engine->stats_) return nullptr;
    uint32_t most = 0;
    for (const Layer & layer : engine->index.layers) most = std::max(most, layer.experts);
    const auto layers = static_cast<uint32_t>(engine->index.layers.size());
    if (!options.trace.empty() && !engine->stats_->trace_to(options.trace, layers, most, error)) return nullptr;
    engine->reader_ = Reader::open(engine->index, options.reader, error);
    if (!engine->reader_) return nullptr;
    engine->arena_ = std::make_unique<Arena>(engine->index);
    if (options.prefetch) engine->lookahead_ = Lookahead::read(options.model, engine->index, error);
    if (options.prefetch && !engine->lookahead_) return nullptr;
    return engine;
}

Engine::~Engine() = default;

Bounds Engine::bounds() const {
    uint64_t all = 0;
    for (const Layer & layer : index.layers) all += layer.slot_bytes * layer.experts;
    const uint64_t needed = Arena::least(index, index.used != 0 ? index.used : kUsedUnlessKnown);
    Bounds bounds;
    bounds.least = std::min(all, std::max(needed, options.least));
    bounds.most = std::max(bounds.least, options.budget != 0 ? std::min(all, options.budget) : all);
    bounds.reserve = reserve_of(sample_pressure());
    return bounds;
}

void Engine::start(Maths maths) {
    const Bounds limits = bounds();
    Page & page = stats_->page();
    page.expert_bytes = index.expert_bytes();
    for (const Layer & layer : index.layers) page.experts += layer.experts;
    page.least = limits.least;
    page.most = limits.most;
    write_text(page.reader, sizeof page.reader, reader_->name());
    op_ = std::make_unique<MoeOp>(index, std::move(maths), *arena_, *reader_, *stats_, lookahead_.get());
    governor_ = std::make_unique<Governor>(
        limits, options.share, kGovernorMs, [this] { return arena_->resident(); },
        [this](uint64_t budget) { arena_->set_budget(budget); });
    if (!governor_->unshared().empty()) std::fprintf(stderr, "expertstream: %s\n", governor_->unshared().c_str());
    publish();
}

void Engine::publish() {
    const ReaderCounters counters = reader_->counters();
    Page & page = stats_->page();
    page.reads = counters.reads;
    page.read_bytes = counters.bytes;
    page.read_ns = counters.busy_ns;
    page.retries = counters.retries;
    page.crc_errors = counters.mismatches;
    page.evictions = arena_->evictions();
    page.budget = arena_->budget();
    page.resident = arena_->resident();
    if (page.passes == passes_) return;
    passes_ = page.passes;
    governor_->touch();
}

}  // namespace expertstream
