#include "worth.hpp"

#include <cmath>

namespace expertstream {
namespace {

constexpr double kMemory = 256;    // passes after which a miss counts half
constexpr double kClearly = 0.97;  // the other rule's share of misses that is worth a change
constexpr double kEnough = 64;     // misses before there is anything to compare

std::vector<uint64_t> bytes_of(const Index & index) {
    std::vector<uint64_t> bytes;
    for (const Layer & layer : index.layers) bytes.insert(bytes.end(), layer.experts, layer.slot_bytes);
    return bytes;
}

}  // namespace

void Directory::enter(uint32_t expert, uint64_t room) {
    while (used_ + bytes_[expert] > room && !at_rest_.empty()) {
        const uint32_t leaving = at_rest_.begin()->second;
        at_rest_.erase(at_rest_.begin());
        places_[leaving] = {};
        used_ -= bytes_[leaving];
    }
    if (used_ + bytes_[expert] > room) return;
    used_ += bytes_[expert];
    places_[expert].second = ++sequence_;
}

uint32_t Directory::use(const std::vector<uint32_t> & together, const std::vector<double> & worth, uint64_t room) {
    std::vector<uint32_t> missing;
    for (uint32_t expert : together) {
        if (there(expert))
            at_rest_.erase({places_[expert], expert});
        else
            missing.push_back(expert);
    }
    for (uint32_t expert : missing) enter(expert, room);
    for (size_t i = 0; i < together.size(); ++i) {
        if (!there(together[i])) continue;
        places_[together[i]] = {worth[i], ++sequence_};
        at_rest_.insert({places_[together[i]], together[i]});
    }
    return static_cast<uint32_t>(missing.size());
}

Worth::Worth(const Index & index) : bytes_(bytes_of(index)), uses_(bytes_.size()), recent_(bytes_), frequent_(bytes_) {
    uint32_t experts = 0;
    for (const Layer & layer : index.layers) {
        first_.push_back(experts);
        experts += layer.experts;
    }
}

void Worth::asked(uint32_t layer, const std::vector<uint32_t> & experts, uint64_t room) {
    if (layer <= layer_) begin_pass();
    layer_ = layer;
    numbers_.clear();
    by_recency_.clear();
    by_frequency_.clear();
    for (uint32_t expert : experts) {
        Uses & uses = uses_[first_[layer] + expert];
        count(uses);
        numbers_.push_back(first_[layer] + expert);
        by_recency_.push_back(static_cast<double>(pass_));
        by_frequency_.push_back(static_cast<double>(pass_) + kHalfLife * std::log2(uses.count));
    }
    if (room != 0) {
        recent_misses_ += recent_.use(numbers_, by_recency_, room);
        frequent_misses_ += frequent_.use(numbers_, by_frequency_, room);
    }
}

double Worth::credit(uint32_t layer, uint32_t expert) const {
    return often_ ? kHalfLife * std::log2(uses_[first_[layer] + expert].count) : 0;
}

void Worth::begin_pass() {
    ++pass_;
    const double mine = often_ ? frequent_misses_ : recent_misses_, other = often_ ? recent_misses_ : frequent_misses_;
    if (mine >= kEnough && other < kClearly * mine) often_ = !often_;
    const double fading = std::exp2(-1 / kMemory);
    recent_misses_ *= fading;
    frequent_misses_ *= fading;
}

void Worth::count(Uses & uses) const {
    if (uses.last != 0) uses.count = 1 + uses.count * std::exp2(-static_cast<double>(pass_ - uses.last) / kHalfLife);
    uses.last = pass_;
}

}  // namespace expertstream
