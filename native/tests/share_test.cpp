// How several models divide one memory.
#include "../src/share.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <random>

#include "../src/governor.hpp"
#include "check.hpp"
#include "temporary.hpp"

using namespace expertstream;

namespace {

constexpr uint64_t kMiB = 1024 * 1024, kGiB = 1024 * kMiB;

std::unique_ptr<Share> join(const Folder & folder) {
    std::string error;
    std::unique_ptr<Share> share = Share::open(folder / "share", error);
    CHECK_EQ(error, "");
    return share;
}

// The file as numbers: 8 of its head, then 8 per entry, of which the first is the key.
struct Numbers {
    uint64_t * at;
    explicit Numbers(const Folder & folder) {
        const int fd = open((folder / "share").c_str(), O_RDWR);
        at = static_cast<uint64_t *>(mmap(nullptr, 4160, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
        close(fd);
    }
    ~Numbers() { munmap(at, 4160); }
    uint64_t & key(size_t entry) { return at[8 + 8 * entry]; }
};

}  // namespace

TEST(one_alone_gets_what_it_wants_or_all_there_is) {
    CHECK_EQ(divide(100, {{10, 60, 0, 1}})[0], 60);
    CHECK_EQ(divide(100, {{10, 600, 0, 1}})[0], 100);
    CHECK_EQ(divide(5, {{10, 600, 0, 1}})[0], 10);
    CHECK(divide(100, {}).empty());
}

TEST(two_that_want_all_get_half_each) {
    CHECK(divide(100, {{0, 500, 0, 1}, {0, 500, 90, 1}}) == (std::vector<uint64_t>{50, 50}));
}

TEST(what_a_modest_one_leaves_goes_to_the_others) {
    CHECK(divide(100, {{0, 500, 0, 1}, {0, 20, 0, 1}, {0, 500, 0, 1}}) == (std::vector<uint64_t>{40, 20, 40}));
}

TEST(one_in_use_weighs_more) {
    CHECK(divide(100, {{0, 500, 0, 4}, {0, 500, 0, 1}}) == (std::vector<uint64_t>{80, 20}));
    CHECK(divide(100, {{0, 60, 0, 4}, {0, 500, 0, 1}}) == (std::vector<uint64_t>{60, 40}));
}

TEST(everybody_gets_the_least) {
    CHECK(divide(100, {{40, 500, 0, 1}, {10, 500, 0, 1}}) == (std::vector<uint64_t>{65, 35}));
    CHECK(divide(30, {{40, 500, 0, 1}, {10, 500, 0, 1}}) == (std::vector<uint64_t>{40, 10}));
}

TEST(the_division_is_fair_and_wastes_nothing) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 20000; ++i) {
        std::vector<Claim> claims(1 + random() % 8);
        uint64_t leasts = 0, wanted = 0, weights = 0;
        for (Claim & claim : claims) {
            claim.least = random() % 1000;
            claim.wanted = claim.least + random() % 100000;
            claim.weight = 1 + random() % 4;
            leasts += claim.least;
            wanted += claim.wanted;
            weights += claim.weight;
        }
        const uint64_t total = random() % 300000;
        const std::vector<uint64_t> shares = divide(total, claims);
        const uint64_t given = std::accumulate(shares.begin(), shares.end(), uint64_t{0});
        CHECK(given <= std::max(total, leasts));
        const uint64_t rounding = weights * claims.size();
        CHECK(given + rounding >= std::min(std::max(total, leasts), wanted));
        for (size_t a = 0; a < claims.size(); ++a) {
            CHECK(shares[a] >= claims[a].least && shares[a] <= claims[a].wanted);
            for (size_t b = 0; b < claims.size(); ++b) {  // who is not content has no less, by weight, than any other
                const uint64_t mine = (shares[a] - claims[a].least) / claims[a].weight;
                const uint64_t theirs = (shares[b] - claims[b].least) / claims[b].weight;
                CHECK(shares[a] == claims[a].wanted || mine + weights + 1 >= theirs);
            }
        }
    }
}

TEST(numbers_of_any_size_do_not_overflow) {
    const uint64_t huge = ~uint64_t{0};
    const std::vector<uint64_t> shares =
        divide(huge, {{huge, huge, huge, huge}, {huge / 2, huge, 0, 0}, {0, huge, 0, huge}});
    CHECK_EQ(shares[0], huge);
    CHECK_EQ(shares[2], 0);
}

TEST(each_sees_what_the_others_say) {
    Folder folder;
    const auto first = join(folder), second = join(folder);
    first->publish({1, 2, 3, 4});
    second->publish({5, 6, 7, 8});
    const std::vector<Claim> claims = second->claims();
    CHECK_EQ(claims.size(), 2);
    CHECK_EQ(claims[0].least, 5);
    CHECK_EQ(claims[1].least, 1);
    CHECK_EQ(claims[1].wanted, 2);
    CHECK_EQ(claims[1].resident, 3);
    CHECK_EQ(claims[1].weight, 4);
}

TEST(who_leaves_is_gone) {
    Folder folder;
    const auto first = join(folder);
    join(folder)->publish({5, 6, 7, 8});
    CHECK_EQ(first->claims().size(), 1);
}

TEST(another_process_is_seen_while_it_lives_and_dropped_when_it_was_killed) {
    Folder folder;
    const auto share = join(folder);
    int ready[2];
    CHECK_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        std::string error;
        const auto theirs = Share::open(folder / "share", error);
        if (theirs) {
            theirs->publish({0, 9, 9, 1});
        }
        (void) !write(ready[1], "x", 1);
        pause();
        _exit(0);
    }
    char byte;
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK_EQ(share->claims().size(), 2);
    kill(child, SIGKILL);
    siginfo_t info;
    CHECK_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    CHECK_EQ(share->claims().size(), 1);  // a zombie holds nothing
    CHECK_EQ(waitpid(child, nullptr, 0), child);
    CHECK_EQ(share->claims().size(), 1);
    close(ready[0]);
    close(ready[1]);
}

TEST(the_entry_of_a_process_whose_number_came_again_is_dropped) {
    Folder folder;
    const auto share = join(folder);
    Numbers numbers(folder);
    numbers.key(5) = key_of(static_cast<uint64_t>(getpid())) - 1;  // this number, but another start
    CHECK_EQ(share->claims().size(), 1);
    CHECK_EQ(numbers.key(5), 0);
}

TEST(an_entry_of_the_dead_is_taken_over_and_a_full_file_is_an_error) {
    Folder folder;
    const auto share = join(folder);
    Numbers numbers(folder);
    for (size_t i = 1; i < 64; ++i) {
        numbers.key(i) = key_of(static_cast<uint64_t>(getpid()));
    }
    std::string error;
    CHECK(Share::open(folder / "share", error) == nullptr);
    CHECK_EQ(error, "the shared budget " + folder / "share" + " has no free entry");
    numbers.key(63) = 1;
    CHECK(join(folder) != nullptr);
}

TEST(who_was_taken_for_dead_takes_another_entry) {
    Folder folder;
    const auto share = join(folder), other = join(folder);
    Numbers numbers(folder);
    numbers.key(0) = 0;
    CHECK_EQ(other->claims().size(), 1);
    share->publish({0, 1, 1, 1});
    CHECK_EQ(other->claims().size(), 2);
}

TEST(what_cannot_be_shared_says_why) {
    std::string error;
    CHECK(Share::open("/none/share", error) == nullptr);
    CHECK_EQ(error, "cannot map the shared budget /none/share: No such file or directory");
}

// Two models in one memory, as their governors would decide: the second gets its half within a second of four samples.
TEST(one_that_joins_gets_its_share_within_a_second) {
    const Bounds bounds{200 * kMiB, 40 * kGiB, 4 * kGiB};
    uint64_t held[2] = {20 * kGiB, 0}, budget[2] = {20 * kGiB, 200 * kMiB};
    for (int sample = 0; sample < 40; ++sample) {
        for (int i = 0; i < 2; ++i) {
            Pressure now;
            now.total = 32 * kGiB;
            now.available = 24 * kGiB - held[0] - held[1];
            const uint64_t all = held[0] + held[1] + now.available - std::min(now.available, bounds.reserve);
            const Claim claim{bounds.least, bounds.most, held[i], 1};  // both want all of it
            const uint64_t share = divide(all, {claim, claim})[0];
            budget[i] = next_budget(budget[i], held[i], now, {bounds.least, share, bounds.reserve});
            held[i] = std::min(budget[i], held[i] + 500 * kMiB);
        }
        if (sample == 3) {
            CHECK_EQ(budget[0], 10 * kGiB);
            CHECK(budget[1] > 5 * kGiB);
        }
    }
    CHECK_EQ(budget[0], 10 * kGiB);
    CHECK(held[1] > 9 * kGiB);
}
