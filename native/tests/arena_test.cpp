// The arena: who is in memory, who leaves, and when memory goes back.
#include "../src/arena.hpp"

#include <algorithm>
#include <list>
#include <random>
#include <set>
#include <thread>

#include "check.hpp"

using namespace expertstream;

namespace {

Index index_of(const std::vector<uint64_t> & pages_of_slot, uint32_t experts, bool checked = false) {
    Index index;
    index.files = {"model"};
    index.checked = checked;
    for (size_t l = 0; l < pages_of_slot.size(); ++l) {
        Layer layer;
        layer.number = static_cast<uint32_t>(l);
        layer.experts = experts;
        layer.slot_bytes = pages_of_slot[l] * kPage;
        index.layers.push_back(layer);
        Index::Places places;
        places.pieces_each = 2;
        for (uint32_t e = 0; e < experts; ++e) {
            places.pieces.push_back({0, (l * experts + e) * 1000, 10, 0});
            places.pieces.push_back({0, (l * experts + e) * 1000 + 500, 10, kPage});
            places.crcs.push_back(static_cast<uint32_t>(l * 100 + e));
        }
        index.places.push_back(places);
    }
    return index;
}

void arrive(Slot * slot) { slot->load.state.store(Load::ready); }

// As a pass of the calculation would: there, or brought from disk; used; let go. Tells whether it was there.
bool use(Arena & arena, uint32_t layer, uint32_t expert, Order order = Order::recent) {
    Slot * slot = arena.find(layer, expert);
    const bool there = slot != nullptr;
    if (!there) {
        slot = arena.claim(layer, expert, order);
        CHECK(slot != nullptr);
        arrive(slot);
    }
    arena.unpin(slot);
    return there;
}

bool holds(Arena & arena, uint32_t layer, uint32_t expert) {
    Slot * slot = arena.find(layer, expert);
    if (slot) {
        arena.unpin(slot);
    }
    return slot != nullptr;
}

}  // namespace

TEST(holds_nothing_before_it_has_a_budget) {
    const Index index = index_of({1}, 4);
    Arena arena(index);
    CHECK_EQ(arena.budget(), 0);
    CHECK(arena.find(0, 0) == nullptr);
    CHECK(arena.claim(0, 0, Order::recent) == nullptr);
}

TEST(a_claimed_slot_knows_what_to_read) {
    const Index index = index_of({1, 2}, 3, true);
    Arena arena(index);
    arena.set_budget(8 * kPage);
    Slot * slot = arena.claim(1, 2, Order::recent);
    CHECK(slot != nullptr);
    CHECK_EQ(slot->layer, 1);
    CHECK_EQ(slot->expert, 2);
    CHECK_EQ(slot->pins, 1);
    CHECK(slot->load.pieces == &index.places[1].pieces[4]);
    CHECK_EQ(slot->load.count, 2);
    CHECK(slot->load.slot == slot->data);
    CHECK_EQ(reinterpret_cast<uintptr_t>(slot->data) % kPage, 0);
    CHECK(slot->load.checked);
    CHECK_EQ(slot->load.crc, 102);
    CHECK_EQ(slot->load.state.load(), Load::idle);
    CHECK_EQ(arena.resident(), 2 * kPage);
    CHECK_EQ(arena.slots(), 1);
    slot->data[0] = 1;
    slot->data[2 * kPage - 1] = 1;
}

TEST(the_least_budget_is_a_token_of_the_largest_layer_twice) {
    CHECK_EQ(Arena::least(index_of({1, 3, 2}, 16), 4), 8 * 3 * kPage);
    CHECK_EQ(Arena::least(index_of({1, 3, 2}, 6), 4), 6 * 3 * kPage);
}

TEST(an_expert_is_found_while_it_is_on_its_way) {
    const Index index = index_of({1}, 4);
    Arena arena(index);
    arena.set_budget(4 * kPage);
    Slot * slot = arena.claim(0, 1, Order::recent);
    slot->load.state.store(Load::waiting);
    CHECK(arena.find(0, 1) == slot);
    CHECK_EQ(slot->pins, 2);
    CHECK(arena.claim(0, 1, Order::recent) == nullptr);  // there cannot be two of it
}

TEST(evicts_what_was_used_longest_ago) {
    const Index index = index_of({1, 1}, 4);
    Arena arena(index);
    arena.set_budget(3 * kPage);
    use(arena, 0, 0);
    use(arena, 1, 0);
    use(arena, 0, 1);
    use(arena, 0, 0);
    use(arena, 0, 2);
    CHECK(!holds(arena, 1, 0));
    CHECK(holds(arena, 0, 0) && holds(arena, 0, 1) && holds(arena, 0, 2));
    CHECK_EQ(arena.evictions(), 1);
    CHECK_EQ(arena.resident(), 3 * kPage);
}

TEST(never_evicts_what_is_pinned_or_on_its_way) {
    const Index index = index_of({1}, 4);
    Arena arena(index);
    arena.set_budget(2 * kPage);
    Slot * pinned = arena.claim(0, 0, Order::recent);
    arrive(pinned);
    Slot * prefetched = arena.claim(0, 1, Order::recent);
    prefetched->load.state.store(Load::waiting);
    arena.unpin(prefetched);
    CHECK(arena.claim(0, 2, Order::recent) == nullptr);
    CHECK(arena.claim(0, 2, Order::sweep) == nullptr);
    arrive(prefetched);
    Slot * next = arena.claim(0, 2, Order::recent);
    CHECK(next == prefetched);
    CHECK(arena.find(0, 1) == nullptr);
    CHECK(arena.find(0, 0) == pinned);
}

TEST(equals_a_plain_lru_over_a_long_random_walk) {
    const uint32_t layers = 5, experts = 12, places = 17;
    const Index index = index_of(std::vector<uint64_t>(layers, 1), experts);
    Arena arena(index);
    arena.set_budget(places * kPage);
    std::list<uint32_t> model;  // newest first
    std::mt19937 random(7);
    for (int i = 0; i < 20000; ++i) {
        const uint32_t key = static_cast<uint32_t>(std::min(random(), random()) % (layers * experts));
        const auto at = std::find(model.begin(), model.end(), key);
        const bool there = at != model.end();
        if (there) {
            model.erase(at);
        } else if (model.size() == places) {
            model.pop_back();
        }
        model.push_front(key);
        CHECK_EQ(use(arena, key / experts, key % experts), there);
        CHECK_EQ(arena.slots(), model.size());
    }
}

// A pass of each layer in turn: four favourites come round, and two others that are different ones each time. By recency
// alone a favourite leaves before its turn. Tells how often a favourite was there.
int favourites_there(Arena & arena, uint32_t layers, uint32_t passes) {
    int there = 0;
    for (uint32_t pass = 0; pass < passes; ++pass) {
        for (uint32_t layer = 0; layer < layers; ++layer) {
            const std::vector<uint32_t> experts{pass % 4, 4 + pass * 2 % 60, 5 + pass * 2 % 60};
            arena.asked(layer, experts, Order::recent);
            for (uint32_t expert : experts) {
                there += use(arena, layer, expert) && expert < 4;
            }
        }
    }
    return there;
}

TEST(what_is_used_often_outlives_what_was_used_just_now) {
    const Index index = index_of({1}, 64);
    Arena arena(index);
    arena.set_budget(6 * kPage);
    CHECK_EQ(favourites_there(arena, 1, 20), 0);
    favourites_there(arena, 1, 180);
    CHECK_EQ(favourites_there(arena, 1, 200), 200);
    CHECK_EQ(arena.slots(), 6);
}

TEST(what_is_used_after_a_long_prompt_does_not_stay_for_longer) {
    const Index index = index_of({1}, 64);
    Arena arena(index);
    arena.set_budget(6 * kPage);
    favourites_there(arena, 1, 200);
    std::vector<uint32_t> all;
    for (uint32_t expert = 0; expert < 64; ++expert) all.push_back(expert);
    arena.asked(0, all, Order::sweep);
    for (uint32_t expert : all) use(arena, 0, expert, Order::sweep);
    favourites_there(arena, 1, 8);
    CHECK_EQ(favourites_there(arena, 1, 16), 16);  // the others come round after 30 passes
}

TEST(of_two_that_are_used_as_often_the_one_whose_memory_fits_leaves) {
    const Index index = index_of({1, 2}, 64);
    Arena arena(index);
    arena.set_budget(18 * kPage);
    favourites_there(arena, 2, 400);
    arena.set_budget(12 * kPage);  // what is left are the favourites: four of each size
    const uint64_t before = arena.evictions();
    use(arena, 1, 63);
    CHECK_EQ(arena.evictions(), before + 1);
    CHECK_EQ(arena.resident(), 12 * kPage);
    CHECK(holds(arena, 0, 0) && holds(arena, 0, 1) && holds(arena, 0, 2) && holds(arena, 0, 3));
}

TEST(sweep_evicts_the_layer_that_is_needed_latest) {
    const Index index = index_of({1, 1, 1, 1}, 4);
    Arena arena(index);
    arena.set_budget(4 * kPage);
    for (uint32_t layer : {1u, 0u, 3u, 2u}) {
        use(arena, layer, 0);
    }
    use(arena, 2, 1, Order::sweep);  // layer 1 has just been gone through
    CHECK(!holds(arena, 1, 0));
    use(arena, 2, 2, Order::sweep);  // then layer 0
    CHECK(!holds(arena, 0, 0));
    use(arena, 2, 3, Order::sweep);  // then, going round, layer 3
    CHECK(!holds(arena, 3, 0));
    CHECK(holds(arena, 2, 0) && holds(arena, 2, 1) && holds(arena, 2, 2) && holds(arena, 2, 3));
}

TEST(sweep_evicts_the_least_recently_used_of_a_layer) {
    const Index index = index_of({1, 1}, 4);
    Arena arena(index);
    arena.set_budget(3 * kPage);
    for (uint32_t expert : {2u, 0u, 1u}) {
        use(arena, 0, expert);
    }
    use(arena, 1, 0, Order::sweep);
    CHECK(!holds(arena, 0, 2));
    CHECK(holds(arena, 0, 0) && holds(arena, 0, 1));
}

TEST(sweep_within_one_layer_evicts_what_had_its_turn) {
    const Index index = index_of({1}, 4);
    Arena arena(index);
    arena.set_budget(3 * kPage);
    for (uint32_t expert : {0u, 1u, 2u}) {
        use(arena, 0, expert);
    }
    use(arena, 0, 3, Order::sweep);
    CHECK(!holds(arena, 0, 2));
    CHECK(holds(arena, 0, 0) && holds(arena, 0, 1) && holds(arena, 0, 3));
}

// The point of it: going round through more layers than fit, LRU would never hit; this is as good as Belady's choice.
TEST(sweep_hits_as_often_as_can_be) {
    const Index index = index_of({1, 1, 1, 1, 1, 1, 1, 1}, 4);
    Arena arena(index);
    arena.set_budget(5 * 4 * kPage);
    int hits = 0;
    for (int pass = 0; pass < 8; ++pass) {
        for (uint32_t layer = 0; layer < 8; ++layer) {
            for (uint32_t expert = 0; expert < 4; ++expert) {
                hits += use(arena, layer, expert, Order::sweep) && pass > 0;
            }
        }
    }
    CHECK_EQ(hits, 7 * 8 * 4 * 4 / 7);  // (fitting - 1) / (layers - 1) of all, over any 7 passes
}

TEST(slots_of_other_sizes_make_room) {
    const Index index = index_of({1, 3}, 8);
    Arena arena(index);
    arena.set_budget(7 * kPage);
    for (uint32_t expert = 0; expert < 7; ++expert) {
        use(arena, 0, expert);
    }
    use(arena, 1, 0);
    CHECK_EQ(arena.resident(), 7 * kPage);
    CHECK_EQ(arena.slots(), 5);
    use(arena, 1, 1);
    CHECK_EQ(arena.resident(), 7 * kPage);
    CHECK_EQ(arena.slots(), 3);
    use(arena, 0, 0);  // evicts the last small one that is older than the large ones
    CHECK_EQ(arena.slots(), 3);
    use(arena, 0, 1);  // now a large one leaves for a small one
    CHECK(!holds(arena, 1, 0));
    CHECK_EQ(arena.resident(), 5 * kPage);
}

TEST(of_two_that_are_nearly_as_old_the_one_whose_memory_fits_leaves) {
    const Index index = index_of({1, 2}, 8);
    Arena arena(index);
    arena.set_budget(5 * kPage);
    use(arena, 0, 0);
    use(arena, 1, 0);
    for (int i = 0; i < 10; ++i) {
        use(arena, 0, 1);
        use(arena, 0, 2);
    }
    use(arena, 1, 1);
    CHECK(holds(arena, 0, 0) && !holds(arena, 1, 0));
    CHECK_EQ(arena.evictions(), 1);
}

TEST(sweep_prefers_memory_that_fits_among_layers_that_are_needed_late) {
    const Index index = index_of({1, 2, 1, 2}, 4);
    Arena arena(index);
    arena.set_budget(5 * kPage);
    use(arena, 0, 0);
    use(arena, 1, 0);
    use(arena, 3, 0);
    use(arena, 2, 0, Order::sweep);
    CHECK(!holds(arena, 0, 0) && holds(arena, 1, 0) && holds(arena, 3, 0));
    use(arena, 2, 1, Order::sweep);  // nothing that fits is left but this layer: the one before it goes
    CHECK(!holds(arena, 1, 0) && holds(arena, 2, 0) && holds(arena, 3, 0));
}

TEST(memory_that_went_back_comes_back_as_zeros) {
    const Index index = index_of({1, 2}, 2);
    Arena arena(index);
    arena.set_budget(2 * kPage);
    Slot * slot = arena.claim(0, 0, Order::recent);
    slot->data[5] = 42;
    arrive(slot);
    arena.unpin(slot);
    uint8_t * data = slot->data;
    use(arena, 1, 0);  // of another size: the page goes back to the system
    Slot * again = arena.claim(0, 1, Order::recent);
    CHECK(again->data == data);
    CHECK_EQ(again->data[5], 0);
}

TEST(a_smaller_budget_evicts_at_once_but_for_what_is_pinned) {
    const Index index = index_of({1}, 64);
    Arena arena(index);
    arena.set_budget(50 * kPage);
    for (uint32_t expert = 0; expert < 50; ++expert) {
        use(arena, 0, expert);
    }
    Slot * oldest = arena.find(0, 0);
    arena.set_budget(10 * kPage);
    CHECK_EQ(arena.resident(), 10 * kPage);
    CHECK(holds(arena, 0, 49) && holds(arena, 0, 41) && !holds(arena, 0, 40));
    arena.set_budget(0);
    CHECK_EQ(arena.resident(), kPage);
    CHECK(arena.claim(0, 60, Order::recent) == nullptr);
    arena.unpin(oldest);
    CHECK_EQ(arena.resident(), 0);
    CHECK_EQ(arena.slots(), 0);
}

TEST(a_claim_that_was_never_submitted_is_forgotten_when_unpinned) {
    const Index index = index_of({1}, 2);
    Arena arena(index);
    arena.set_budget(2 * kPage);
    arena.unpin(arena.claim(0, 0, Order::recent));
    CHECK(arena.find(0, 0) == nullptr);
    CHECK_EQ(arena.resident(), 0);
}

TEST(a_failed_load_can_be_claimed_again_while_others_still_hold_it) {
    const Index index = index_of({1}, 2);
    Arena arena(index);
    arena.set_budget(2 * kPage);
    Slot * failed = arena.claim(0, 0, Order::recent);
    CHECK(arena.find(0, 0) == failed);  // a second one waits for it
    failed->load.error = "input/output error";
    failed->load.state.store(Load::failed);
    CHECK(arena.find(0, 0) == nullptr);
    arena.discard(failed);
    CHECK_EQ(failed->load.error, "input/output error");  // the other still reads it
    Slot * anew = arena.claim(0, 0, Order::recent);
    CHECK(anew != nullptr && anew != failed);
    arrive(anew);
    arena.unpin(failed);
    CHECK_EQ(arena.slots(), 1);
    CHECK(arena.find(0, 0) == anew);
}

TEST(a_prefetch_that_failed_unseen_is_forgotten) {
    const Index index = index_of({1}, 2);
    Arena arena(index);
    arena.set_budget(2 * kPage);
    for (int again = 0; again < 2; ++again) {
        Slot * slot = arena.claim(0, 0, Order::recent);
        CHECK(slot != nullptr);
        slot->load.state.store(Load::waiting);
        arena.unpin(slot);
        slot->load.state.store(Load::failed);
    }
    CHECK(arena.find(0, 0) == nullptr);
    CHECK_EQ(arena.slots(), 0);
}

TEST(a_slot_into_which_a_stalled_read_may_still_write_is_kept_apart) {
    const Index index = index_of({1}, 2);
    Arena arena(index);
    arena.set_budget(kPage);
    Slot * stalled = arena.claim(0, 0, Order::recent);
    stalled->load.left.store(1);
    stalled->load.state.store(Load::failed);
    arena.discard(stalled);
    CHECK(arena.find(0, 0) == nullptr);
    CHECK_EQ(arena.resident(), kPage);                   // its memory is still written to
    CHECK(arena.claim(0, 0, Order::recent) == nullptr);  // so it counts
    arena.set_budget(2 * kPage);
    Slot * other = arena.claim(0, 0, Order::recent);
    CHECK(other != nullptr && other->data != stalled->data);
    stalled->load.left.store(0);
    CHECK(arena.claim(0, 1, Order::recent) == stalled);
}

TEST(large_slots_with_and_without_huge_pages) {
    const Index index = index_of({700}, 4);
    for (bool huge : {false, true}) {
        Arena arena(index, huge);
        arena.set_budget(2 * 700 * kPage);
        for (uint32_t expert = 0; expert < 4; ++expert) {
            Slot * slot = arena.claim(0, expert, Order::recent);
            std::fill(slot->data, slot->data + 700 * kPage, static_cast<uint8_t>(expert));
            arrive(slot);
            arena.unpin(slot);
        }
        Slot * slot = arena.find(0, 2);
        CHECK(std::all_of(slot->data, slot->data + 700 * kPage, [](uint8_t byte) { return byte == 2; }));
        CHECK_EQ(arena.resident(), 2 * 700 * kPage);
    }
}

TEST(threads_and_a_changing_budget_never_share_a_slot) {
    const Index index = index_of({1, 2, 1}, 16);
    Arena arena(index);
    arena.set_budget(24 * kPage);
    std::atomic<bool> wrong{false};
    auto calculate = [&](unsigned seed) {
        std::mt19937 random(seed);
        for (int i = 0; i < 4000; ++i) {
            const uint32_t layer = static_cast<uint32_t>(random() % 3), expert = static_cast<uint32_t>(random() % 16);
            const uint8_t mark = static_cast<uint8_t>(1 + layer * 16 + expert);
            Slot * slot = arena.find(layer, expert);
            if (!slot && (slot = arena.claim(layer, expert, i % 2 ? Order::recent : Order::sweep))) {
                slot->data[0] = mark;
                slot->data[index.layers[layer].slot_bytes - 1] = mark;
                arrive(slot);
            }
            if (slot) {
                if (slot->load.state.load(std::memory_order_acquire) == Load::ready) {
                    wrong = wrong || slot->data[0] != mark || slot->data[index.layers[layer].slot_bytes - 1] != mark;
                }
                arena.unpin(slot);
            }
        }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 3; ++seed) {
        threads.emplace_back(calculate, seed);
    }
    for (uint64_t pages = 0; pages < 400; ++pages) {
        arena.set_budget((pages % 20 + 4) * kPage);
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    CHECK(!wrong);
    arena.set_budget(0);
    CHECK_EQ(arena.resident(), 0);
}
