// The governor: how much memory the experts may take. Decisions over many cases, then the thread, with made-up
// pressure.
#include "../src/governor.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>
#include <vector>

#include "check.hpp"
#include "temporary.hpp"

using namespace expertstream;

namespace {

constexpr uint64_t kMiB = 1024 * 1024, kGiB = 1024 * kMiB;
const Bounds kBounds{200 * kMiB, 20 * kGiB, 4 * kGiB};

Pressure machine(uint64_t available) {
    Pressure now;
    now.total = 32 * kGiB;
    now.available = available;
    return now;
}

Pressure cgroup(uint64_t limit, uint64_t used) {
    Pressure now = machine(28 * kGiB);
    now.limit = limit;
    now.used = used;
    return now;
}

// Every combination of what matters, by chance.
struct Case {
    Pressure now;
    Bounds bounds;
    uint64_t budget, resident;
};

Case any_case(std::mt19937_64 & random) {
    const auto up_to = [&](uint64_t most) { return random() % (most + 1); };
    Case one;
    one.now.total = up_to(64 * kGiB);
    one.now.available = up_to(one.now.total);
    one.now.limit = up_to(1) * up_to(one.now.total);
    one.now.used = up_to(one.now.limit + kGiB);
    one.now.full = static_cast<double>(up_to(20)) / 1000;
    one.now.some = std::min(1.0, one.now.full + static_cast<double>(up_to(40)) / 1000);
    one.bounds.least = up_to(kGiB);
    one.bounds.most = one.bounds.least + up_to(60 * kGiB);
    one.bounds.reserve = up_to(16 * kGiB);
    one.budget = one.bounds.least + up_to(one.bounds.most - one.bounds.least);
    one.resident = up_to(one.budget);
    return one;
}

// What `apply` was called with, for a test to wait for.
struct Applied {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<uint64_t> budgets;

    void add(uint64_t budget) {
        std::lock_guard<std::mutex> lock(mutex);
        budgets.push_back(budget);
        changed.notify_all();
    }
    void wait_for(uint64_t least, uint64_t most) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return !budgets.empty() && budgets.back() >= least && budgets.back() <= most; });
    }
};

// The rest of a machine: what it has free follows from what the experts and the others hold.
struct World {
    std::mutex mutex;
    uint64_t total = 32 * kGiB, others = 8 * kGiB, experts = 0;
    double full = 0;

    Pressure sample() {
        std::lock_guard<std::mutex> lock(mutex);
        Pressure now;
        now.total = total;
        now.available = total - std::min(total, others + experts);
        now.some = now.full = full;
        return now;
    }
};

}  // namespace

TEST(stays_within_its_bounds_whatever_happens) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 100000; ++i) {
        const Case one = any_case(random);
        const uint64_t next = next_budget(one.budget, one.resident, one.now, one.bounds);
        CHECK(next >= one.bounds.least);
        CHECK(next <= one.bounds.most);
    }
}

TEST(never_promises_memory_that_is_not_there) {
    std::mt19937_64 random(2);
    for (int i = 0; i < 100000; ++i) {
        const Case one = any_case(random);
        if (one.now.total == 0) {
            continue;
        }
        const uint64_t next = next_budget(one.budget, one.resident, one.now, one.bounds);
        const uint64_t more = next - std::min(next, one.resident);
        CHECK(next == one.bounds.least || one.now.available >= one.bounds.reserve + more || next < one.resident);
        if (one.now.limit > 0) {
            CHECK(next == one.bounds.least || one.now.limit >= one.now.used + more || next < one.resident);
        }
    }
}

TEST(never_grows_under_pressure) {
    std::mt19937_64 random(3);
    for (int i = 0; i < 100000; ++i) {
        Case one = any_case(random);
        const uint64_t calm = next_budget(one.budget, one.resident, one.now, one.bounds);
        one.now.full = std::max(one.now.full, 0.0011);
        const uint64_t next = next_budget(one.budget, one.resident, one.now, one.bounds);
        CHECK(next <= one.budget);
        CHECK(next <= calm);
    }
}

TEST(less_available_memory_never_means_a_larger_budget) {
    std::mt19937_64 random(4);
    for (int i = 0; i < 100000; ++i) {
        Case one = any_case(random);
        const uint64_t more = next_budget(one.budget, one.resident, one.now, one.bounds);
        one.now.available -= one.now.available / 3;
        CHECK(next_budget(one.budget, one.resident, one.now, one.bounds) <= more);
    }
}

TEST(shrinks_at_once_by_what_is_missing_below_the_reserve) {
    CHECK_EQ(next_budget(10 * kGiB, 10 * kGiB, machine(3 * kGiB), kBounds), 9 * kGiB);
    CHECK_EQ(next_budget(10 * kGiB, 10 * kGiB, machine(0), kBounds), 6 * kGiB);
}

TEST(gives_up_first_what_it_has_not_filled) {
    CHECK_EQ(next_budget(10 * kGiB, 2 * kGiB, machine(7 * kGiB), kBounds), 5 * kGiB);
    CHECK_EQ(next_budget(10 * kGiB, 2 * kGiB, machine(12 * kGiB + 512 * kMiB), kBounds), 10 * kGiB);  // in the band
}

TEST(obeys_the_limit_of_a_cgroup_and_keeps_at_most_a_tenth_of_it_free) {
    CHECK_EQ(next_budget(7 * kGiB, 7 * kGiB, cgroup(10 * kGiB, 10 * kGiB), kBounds), 6 * kGiB);
    CHECK_EQ(next_budget(7 * kGiB, 7 * kGiB, cgroup(10 * kGiB, 12 * kGiB), kBounds), 4 * kGiB);
    CHECK_EQ(next_budget(7 * kGiB, 7 * kGiB, cgroup(10 * kGiB, 9 * kGiB), kBounds), 7 * kGiB);
}

TEST(a_twentieth_less_for_every_sample_with_stalls) {
    Pressure now = machine(20 * kGiB);
    now.full = 0.006;
    CHECK_EQ(next_budget(10 * kGiB, 10 * kGiB, now, kBounds), 10 * kGiB - 512 * kMiB);
    CHECK_EQ(next_budget(210 * kMiB, 210 * kMiB, now, kBounds), 200 * kMiB);
}

TEST(grows_in_steps_and_stops_short_of_the_reserve) {
    const Pressure now = machine(8 * kGiB + 512 * kMiB);  // 4.5 GiB above the reserve, half a GiB of it the band
    uint64_t budget = next_budget(2 * kGiB, 2 * kGiB, now, kBounds);
    CHECK_EQ(budget, 3 * kGiB);
    for (int i = 0; i < 100; ++i) {
        budget = next_budget(budget, 2 * kGiB, now, kBounds);
    }
    CHECK_EQ(budget, 6 * kGiB);
}

TEST(does_not_grow_while_anything_stalls) {
    Pressure now = machine(28 * kGiB);
    now.some = 0.02;
    CHECK_EQ(next_budget(2 * kGiB, 2 * kGiB, now, kBounds), 2 * kGiB);
    now.some = 0.019;
    CHECK(next_budget(2 * kGiB, 2 * kGiB, now, kBounds) > 2 * kGiB);
}

TEST(stays_where_nothing_is_known) {
    CHECK_EQ(next_budget(2 * kGiB, 2 * kGiB, Pressure(), kBounds), 2 * kGiB);
    CHECK_EQ(next_budget(1, 1, Pressure(), kBounds), 200 * kMiB);
    CHECK_EQ(next_budget(30 * kGiB, 1, Pressure(), kBounds), 20 * kGiB);
}

// Others' use goes up and down by less than the band: nothing is ever given up for it.
TEST(does_not_follow_small_ups_and_downs) {
    std::mt19937_64 random(5);
    uint64_t budget = kBounds.least, resident = 0;
    for (int i = 0; i < 2000; ++i) {
        const uint64_t others = 12 * kGiB + random() % (256 * kMiB);
        const uint64_t next = next_budget(budget, resident, machine(32 * kGiB - others - resident), kBounds);
        CHECK(next >= budget);
        budget = next;
        resident = std::min(budget, resident + 500 * kMiB);
    }
    CHECK(budget > 15 * kGiB);
    CHECK(budget <= 16 * kGiB);
}

TEST(makes_room_for_a_memory_hog_and_returns_when_it_leaves) {
    World world;
    uint64_t budget = kBounds.least;
    const auto sample = [&] {
        budget = next_budget(budget, world.experts, world.sample(), kBounds);
        world.experts = std::min(budget, world.experts + 500 * kMiB);
    };
    const auto run = [&](int samples) {
        for (int i = 0; i < samples; ++i) {
            sample();
        }
    };
    run(200);
    CHECK(budget > 19 * kGiB);
    for (uint64_t taken = 0; taken < 16 * kGiB; taken += kGiB) {  // 4 GiB a second
        world.others += kGiB;
        sample();
        CHECK(world.sample().available >= kBounds.reserve || budget == kBounds.least);
    }
    CHECK_EQ(budget, 4 * kGiB);
    world.others -= 16 * kGiB;
    run(200);
    CHECK(budget > 19 * kGiB);
}

TEST(the_reserve_is_a_fifth_of_ram_or_a_tenth_of_a_tighter_limit) {
    CHECK_EQ(reserve_of(machine(20 * kGiB)), 32 * kGiB / 5);
    CHECK_EQ(reserve_of(cgroup(10 * kGiB, 2 * kGiB)), kGiB);
    CHECK_EQ(reserve_of(cgroup(30 * kGiB, 0)), 32 * kGiB / 5);  // lower, but the machine has less left
    CHECK_EQ(reserve_of(cgroup(kGiB, 0)), 256 * kMiB);
    CHECK_EQ(reserve_of(Pressure()), 256 * kMiB);
}

TEST(the_first_budget_is_there_when_the_governor_is) {
    World world;
    Applied applied;
    const Governor governor(
        kBounds, "", 1000000, [] { return 0; }, [&](uint64_t b) { applied.add(b); }, [&] { return world.sample(); });
    CHECK_EQ(applied.budgets.size(), 1);
    CHECK_EQ(applied.budgets[0], 20 * kGiB - 512 * kMiB);
    CHECK_EQ(governor.unshared(), "");
}  // and its thread stops at once, a long interval or not

TEST(the_first_budget_is_the_least_where_nothing_is_known) {
    Applied applied;
    const Governor governor(
        kBounds, "", 1000000, [] { return 0; }, [&](uint64_t b) { applied.add(b); }, [] { return Pressure(); });
    CHECK_EQ(applied.budgets[0], kBounds.least);
}

TEST(the_thread_tells_of_a_smaller_budget) {
    World world;
    Applied applied;
    const auto hold = [&](uint64_t budget) {
        std::lock_guard<std::mutex> lock(world.mutex);
        world.experts = budget;
    };
    const Governor governor(
        kBounds, "", 1,
        [&] {
            std::lock_guard<std::mutex> lock(world.mutex);
            return world.experts;
        },
        [&](uint64_t budget) { hold(budget), applied.add(budget); }, [&] { return world.sample(); });
    {
        std::lock_guard<std::mutex> lock(world.mutex);
        world.others = 20 * kGiB;
    }
    applied.wait_for(8 * kGiB, 8 * kGiB);
    {
        std::lock_guard<std::mutex> lock(world.mutex);
        world.full = 0.01;
    }
    applied.wait_for(kBounds.least, kBounds.least);
}

TEST(models_share_what_there_is) {
    Folder folder;
    World world;
    uint64_t held[2] = {0, 0};
    Applied applied[2];
    const auto govern = [&](int i) {
        return std::make_unique<Governor>(
            kBounds, folder / "share", 1,
            [&, i] {
                std::lock_guard<std::mutex> lock(world.mutex);
                return held[i];
            },
            [&, i](uint64_t budget) {
                {
                    std::lock_guard<std::mutex> lock(world.mutex);
                    held[i] = std::min(budget, 20 * kGiB);
                    world.experts = held[0] + held[1];
                }
                applied[i].add(budget);
            },
            [&] { return world.sample(); });
    };
    const auto first = govern(0);
    CHECK_EQ(first->unshared(), "");
    CHECK_EQ(applied[0].budgets[0], 20 * kGiB - 512 * kMiB);  // it has all of it
    const auto second = govern(1);                            // this one finds hardly any room
    CHECK(applied[1].budgets[0] <= 512 * kMiB);
    applied[0].wait_for(kBounds.least, 10 * kGiB);  // until the first has shrunk to its half
    applied[1].wait_for(kGiB, 10 * kGiB);
}

TEST(a_share_file_that_is_not_one_leaves_it_alone) {
    Folder folder;
    FILE * file = std::fopen((folder / "share").c_str(), "w");
    std::fputs("something else", file);
    std::fclose(file);
    World world;
    Applied applied;
    const Governor governor(
        kBounds, folder / "share", 1000000, [] { return 0; }, [&](uint64_t budget) { applied.add(budget); },
        [&] { return world.sample(); });
    CHECK_EQ(governor.unshared(), "the shared budget " + folder / "share" + " is another kind of file");
    CHECK_EQ(applied.budgets[0], 20 * kGiB - 512 * kMiB);
}
