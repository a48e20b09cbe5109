// What experts are worth: by recency, by frequency, and which of the two counts.
#include "../src/worth.hpp"

#include <algorithm>
#include <cmath>
#include <list>
#include <random>

#include "check.hpp"

using namespace expertstream;

namespace {

constexpr uint32_t kExperts = 64;

Index index_of(uint32_t layers) {
    Index index;
    for (uint32_t l = 0; l < layers; ++l) {
        Layer layer;
        layer.number = l;
        layer.experts = kExperts;
        layer.slot_bytes = kPage;
        index.layers.push_back(layer);
    }
    return index;
}

// Four of a few that are wanted ever again, and four that come in turn: what came in turn was used just now.
std::vector<uint32_t> favourites_and_passers_by(uint32_t pass) {
    std::vector<uint32_t> experts;
    for (uint32_t i = 0; i < 4; ++i) experts.push_back((pass * 4 + i) % 12);
    for (uint32_t i = 0; i < 4; ++i) experts.push_back(12 + (pass * 4 + i) % 52);
    return experts;
}

}  // namespace

TEST(a_directory_is_a_plain_lru_if_worth_is_time) {
    const std::vector<uint64_t> bytes(60, 1);
    Directory directory(bytes);
    std::list<uint32_t> model;  // newest first
    std::mt19937 random(7);
    for (int i = 0; i < 20000; ++i) {
        const auto expert = static_cast<uint32_t>(std::min(random(), random()) % bytes.size());
        const auto at = std::find(model.begin(), model.end(), expert);
        const bool there = at != model.end();
        if (there)
            model.erase(at);
        else if (model.size() == 17)
            model.pop_back();
        model.push_front(expert);
        CHECK_EQ(directory.use({expert}, {static_cast<double>(i)}, 17), there ? 0u : 1u);
    }
}

TEST(what_is_needed_together_does_not_leave_for_one_another) {
    const std::vector<uint64_t> bytes(6, 10);
    Directory directory(bytes);
    CHECK_EQ(directory.use({0, 1, 2}, {9, 9, 9}, 30), 3u);
    CHECK_EQ(directory.use({0, 3}, {1, 1}, 30), 1u);  // 1 left for 3, not 0
    CHECK_EQ(directory.use({0, 2, 3}, {1, 9, 1}, 30), 0u);
    CHECK_EQ(directory.use({0, 1, 2, 3, 4}, {1, 1, 1, 1, 1}, 30), 2u);  // no room for all: two pass through
    CHECK_EQ(directory.use({0, 2, 3}, {1, 1, 1}, 30), 0u);
}

TEST(a_smaller_room_is_kept_to_as_soon_as_something_comes) {
    const std::vector<uint64_t> bytes(6, 10);
    Directory directory(bytes);
    CHECK_EQ(directory.use({0, 1, 2, 3}, {1, 2, 3, 4}, 40), 4u);
    CHECK_EQ(directory.use({4}, {5}, 20), 1u);
    CHECK_EQ(directory.use({3, 4}, {6, 6}, 20), 0u);
    CHECK_EQ(directory.use({2}, {7}, 20), 1u);
}

TEST(recency_alone_counts_at_first) {
    const Index index = index_of(2);
    Worth worth(index);
    for (int pass = 0; pass < 3; ++pass)
        for (uint32_t layer : {0u, 1u}) worth.asked(layer, {1, 2}, 4 * kPage);
    CHECK_EQ(worth.pass(), 4u);
    CHECK(!worth.often());
    CHECK_EQ(worth.credit(0, 1), 0.);
}

TEST(where_some_are_wanted_ever_again_frequency_takes_over) {
    const Index index = index_of(1);
    Worth worth(index);
    for (uint32_t pass = 0; pass < 200; ++pass) worth.asked(0, favourites_and_passers_by(pass), 20 * kPage);
    CHECK(worth.often());
    // A favourite is used every third pass, one that comes in turn every thirteenth.
    CHECK(worth.credit(0, 0) > worth.credit(0, 20) + 32);
}

TEST(where_favourites_change_recency_comes_back) {
    const Index index = index_of(1);
    Worth worth(index);
    for (uint32_t pass = 0; pass < 200; ++pass) worth.asked(0, favourites_and_passers_by(pass), 20 * kPage);
    CHECK(worth.often());
    // Each expert is wanted in eight passes on end, then not for a long time.
    for (uint32_t pass = 0; pass < 2000; ++pass) {
        std::vector<uint32_t> experts;
        for (uint32_t i = 0; i < 8; ++i) experts.push_back((pass / 8 * 8 + i + pass % 2 * 4) % kExperts);
        worth.asked(0, experts, 20 * kPage);
    }
    CHECK(!worth.often());
}

TEST(a_use_counts_half_after_its_half_life) {
    const Index index = index_of(1);
    Worth worth(index);
    for (uint32_t pass = 0; !worth.often(); ++pass) worth.asked(0, favourites_and_passers_by(pass), 20 * kPage);
    const double before = std::exp2(worth.credit(0, 0) / Worth::kHalfLife);
    worth.asked(0, {0}, 0);
    const double now = std::exp2(worth.credit(0, 0) / Worth::kHalfLife);
    CHECK(now > 1 && now <= before + 1);
    for (int pass = 1; pass < static_cast<int>(Worth::kHalfLife); ++pass) worth.asked(0, {63}, 0);
    worth.asked(0, {0}, 0);
    const double later = std::exp2(worth.credit(0, 0) / Worth::kHalfLife);
    CHECK(std::fabs(later - (1 + now / 2)) < 1e-9);
}

TEST(a_pass_without_room_teaches_nothing_about_rules) {
    const Index index = index_of(1);
    Worth worth(index);
    for (uint32_t pass = 0; pass < 500; ++pass) worth.asked(0, favourites_and_passers_by(pass), 0);
    CHECK(!worth.often());
}
