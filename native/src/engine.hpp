// One model's experts: its index, drive, memory, governor and counters, put together from the options. One per process.
#pragma once

#include <memory>
#include <string>

#include "arena.hpp"
#include "governor.hpp"
#include "index.hpp"
#include "moe_op.hpp"
#include "reader.hpp"
#include "stats.hpp"

namespace expertstream {

struct Options {
    std::string model, stats, trace, share;
    uint64_t budget = 0;  // bytes; 0: the governor decides up to all experts
    uint64_t least = 0;   // bytes; 0: as the model needs
    unsigned threads = 1;
    bool dense = true;      // dense matrices by our kernels
    bool prefetch = false;  // guess the experts of the next layer, and fetch them
    ReaderOptions reader;

    // From lines "name=value", see api.h. False and why for a name or value that is not known.
    static bool parse(const std::string & text, Options & options, std::string & error);
};

class Engine {
  public:
    static std::unique_ptr<Engine> open(const Options & options, std::string & error);
    ~Engine();

    const Options options;
    const Index index;
    Stats & stats() { return *stats_; }
    // Begins to work, with the host's mathematics.
    void start(Maths maths);
    bool started() const { return op_ != nullptr; }
    MoeOp & op() { return *op_; }
    // After a layer: copies the reader's and the arena's figures to the page of counters, and tells the governor that the model
    // is in use.
    void publish();

  private:
    Engine(Options given, Index found) : options(std::move(given)), index(std::move(found)) {}
    Bounds bounds() const;

    uint64_t passes_ = 0;  // when the governor was told last

    std::unique_ptr<Stats> stats_;
    std::unique_ptr<Arena> arena_;  // before the reader: what is on its way must have where to go
    std::unique_ptr<Reader> reader_;
    std::unique_ptr<Lookahead> lookahead_;
    std::unique_ptr<MoeOp> op_;
    std::unique_ptr<Governor> governor_;  // last: it stops before what it governs goes
};

}  // namespace expertstream
