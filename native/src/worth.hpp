// Which experts are worth their memory: those that were used last, or those that were used often lately; whichever rule would
// have missed less. Owns counts of uses and directories of names, no memory of experts. Guarded by whoever owns it.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "index.hpp"

namespace expertstream {

// What would be in memory under one rule. Experts are numbers below the count of `bytes`, which has what each takes.
class Directory {
  public:
    explicit Directory(const std::vector<uint64_t> & bytes) : bytes_(bytes), places_(bytes.size()) {}
    // Experts that are needed together, and until when each is worth keeping (the one with the least leaves first). Those that are
    // there are counted before any leaves. Returns how many were not there.
    uint32_t use(const std::vector<uint32_t> & together, const std::vector<double> & worth, uint64_t room);

  private:
    using Place = std::pair<double, uint64_t>;  // worth, and of equal ones the order of use, from 1
    bool there(uint32_t expert) const { return places_[expert].second != 0; }
    void enter(uint32_t expert, uint64_t room);

    const std::vector<uint64_t> & bytes_;
    std::vector<Place> places_;
    std::set<std::pair<Place, uint32_t>> at_rest_;
    uint64_t used_ = 0, sequence_ = 0;
};

class Worth {
  public:
    // Passes after which a use counts half.
    static constexpr double kHalfLife = 32;

    explicit Worth(const Index & index);
    Worth(const Worth &) = delete;
    Worth & operator=(const Worth &) = delete;

    // The experts of a layer that one pass asks for; a layer that is not behind the one before begins a pass. `room`: bytes of
    // memory; 0: uses are counted, but nothing is learned about the rules.
    void asked(uint32_t layer, const std::vector<uint32_t> & experts, uint64_t room);
    // How many passes later than it was an expert counts as used last. 0 while recency alone counts.
    double credit(uint32_t layer, uint32_t expert) const;
    // Whether it counts how often an expert was used, too.
    bool often() const { return often_; }
    uint64_t pass() const { return pass_; }  // how many have begun

  private:
    struct Uses {
        double count = 1;  // as of the last one, each older one halved by its age
        uint64_t last = 0;
    };
    void begin_pass();
    void count(Uses & uses) const;

    std::vector<uint32_t> first_;  // [layer]: number of its first expert
    std::vector<uint64_t> bytes_;  // [number]
    std::vector<Uses> uses_;       // [number]
    Directory recent_, frequent_;
    double recent_misses_ = 0, frequent_misses_ = 0;  // lately
    uint64_t pass_ = 1;
    uint32_t layer_ = 0;
    bool often_ = false;
    std::vector<uint32_t> numbers_;  // of the call, and the worth of each under both rules
    std::vector<double> by_recency_, by_frequency_;
};

}  // namespace expertstream
