// What is read of /proc and /sys, from trees made up here.
#include "../src/pressure.hpp"

#include <filesystem>
#include <fstream>

#include "check.hpp"
#include "temporary.hpp"

using namespace expertstream;

namespace {

constexpr uint64_t kGiB = 1024ULL * 1024 * 1024;
const char * const kV1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";
const char * const kV2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

struct Tree {
    Folder folder;
    Tree() {
        write("/proc/meminfo",
              "MemTotal:       33554432 kB\nMemFree:         1048576 kB\nMemAvailable:   20971520 kB\n");
    }
    void write(const std::string & path, const std::string & text) const {
        std::filesystem::create_directories(std::filesystem::path(folder.path + path).parent_path());
        std::ofstream(folder.path + path) << text;
    }
    Pressure sample() const { return PressureGauge(folder.path).sample(1); }
};

std::string stalls(const char * average, uint64_t some_us, uint64_t full_us) {
    const auto line = [&](const char * kind, uint64_t us) {
        return std::string(kind) + " avg10=" + average + " avg60=0.00 avg300=0.00 total=" + std::to_string(us) + "\n";
    };
    return line("some", some_us) + line("full", full_us);
}

}  // namespace

TEST(reads_the_memory_of_the_machine) {
    const Tree tree;
    const Pressure now = tree.sample();
    CHECK_EQ(now.total, 32 * kGiB);
    CHECK_EQ(now.available, 20 * kGiB);
    CHECK_EQ(now.limit, 0);
    CHECK_EQ(now.used, 0);
    CHECK_EQ(now.full, 0.0);
}

TEST(nothing_is_known_where_there_is_nothing_to_read) {
    const Pressure now = PressureGauge("/nowhere").sample(1);
    CHECK_EQ(now.total, 0);
    CHECK_EQ(now.available, 0);
}

TEST(v1_counts_what_is_used_without_what_can_be_dropped) {
    const Tree tree;
    tree.write("/proc/self/mountinfo", kV1);
    tree.write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n");
    tree.write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "4000000000\n");
    tree.write("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "3000000000\n");
    tree.write("/sys/fs/cgroup/memory/a/b/memory.stat", "cache 9\ninactive_file 7\ntotal_inactive_file 1000000000\n");
    tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    const Pressure now = tree.sample();
    CHECK_EQ(now.limit, 4000000000);
    CHECK_EQ(now.used, 2000000000);
}

TEST(v2_takes_the_level_with_the_least_room) {
    const Tree tree;
    tree.write("/proc/self/mountinfo", kV2);
    tree.write("/proc/self/cgroup", "0::/user.slice/app.scope\n");
    tree.write("/sys/fs/cgroup/user.slice/app.scope/memory.max", "max\n");
    tree.write("/sys/fs/cgroup/user.slice/app.scope/memory.high", "6000000000\n");
    tree.write("/sys/fs/cgroup/user.slice/app.scope/memory.current", "1000000000\n");
    tree.write("/sys/fs/cgroup/user.slice/memory.max", "9000000000\n");
    tree.write("/sys/fs/cgroup/user.slice/memory.current", "8500000000\n");
    tree.write("/sys/fs/cgroup/user.slice/memory.stat", "anon 5\ninactive_file 500000000\nactive_file 3\n");
    const Pressure now = tree.sample();
    CHECK_EQ(now.limit, 9000000000);
    CHECK_EQ(now.used, 8000000000);
}

TEST(a_limit_above_all_of_ram_is_none) {
    const Tree tree;
    tree.write("/proc/self/mountinfo", kV2);
    tree.write("/proc/self/cgroup", "0::/a\n");
    tree.write("/sys/fs/cgroup/a/memory.max", std::to_string(33 * kGiB) + "\n");
    tree.write("/sys/fs/cgroup/a/memory.current", "5\n");
    CHECK_EQ(tree.sample().limit, 0);
}

TEST(a_container_sees_its_part_of_the_tree_as_the_whole) {
    const Tree tree;
    tree.write("/proc/self/mountinfo", "35 31 0:32 /docker/1234 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    tree.write("/proc/self/cgroup", "4:memory:/docker/1234\n");
    tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000000\n");
    tree.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
    CHECK_EQ(tree.sample().limit, 2000000000);
    tree.write("/proc/self/cgroup", "4:memory:/docker/12345/x\n");  // not below it, whatever the beginning says
    CHECK_EQ(tree.sample().limit, 2000000000);
}

TEST(stalls_are_counted_between_two_samples) {
    const Tree tree;
    tree.write("/proc/pressure/memory", stalls("1.50", 5000000, 1000000));
    PressureGauge gauge(tree.folder.path);
    const Pressure first = gauge.sample(10'000'000);
    CHECK_EQ(first.some, 0.015);  // nothing to compare with: the kernel's average
    CHECK_EQ(first.full, 0.015);
    tree.write("/proc/pressure/memory", stalls("1.50", 5050000, 1010000));
    const Pressure second = gauge.sample(10'250'000);
    CHECK_EQ(second.some, 0.2);
    CHECK_EQ(second.full, 0.04);
    const Pressure third = gauge.sample(10'500'000);
    CHECK_EQ(third.some, 0.0);
    CHECK_EQ(third.full, 0.0);
}

TEST(stalls_of_the_own_cgroup_come_before_those_of_the_machine) {
    const Tree tree;
    tree.write("/proc/pressure/memory", stalls("50.00", 0, 0));
    tree.write("/proc/self/mountinfo", kV2);
    tree.write("/proc/self/cgroup", "0::/a\n");
    CHECK_EQ(tree.sample().full, 0.5);
    tree.write("/sys/fs/cgroup/a/memory.pressure", stalls("2.00", 0, 0));
    CHECK_EQ(tree.sample().full, 0.02);
}

TEST(nonsense_is_nothing) {
    const Tree tree;
    tree.write("/proc/meminfo", "MemTotal\nMemTotal: lots kB\n\n");
    tree.write("/proc/self/mountinfo", std::string("x\n- - -\n35 31 0:32 / /sys/fs/cgroup rw -\n") + kV2);
    tree.write("/proc/self/cgroup", "::\nmemory\n4:memory\n0::nonsense\n");
    tree.write("/proc/pressure/memory", "some avg10=\nfull total=x avg10=y\n");
    const Pressure now = tree.sample();
    CHECK_EQ(now.total, 0);
    CHECK_EQ(now.limit, 0);
    CHECK_EQ(now.some, 0.0);
}
