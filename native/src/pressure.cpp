// Owns the reading of /proc and /sys. Whatever is missing or makes no sense stays 0: not Linux, no cgroups, no PSI.
#include "pressure.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

namespace expertstream {
namespace {

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

std::string text_of(const std::string & path) {
    std::string text;
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        char some[8192];
        for (ssize_t size; (size = read(fd, some, sizeof some)) > 0;) {
            text.append(some, static_cast<size_t>(size));
        }
        close(fd);
    }
    return text;
}

// Digits at `at`, after blanks; nothing if there are none ("max").
std::optional<uint64_t> number_at(const std::string & text, size_t at) {
    at = text.find_first_not_of(" \t", at);
    if (at == std::string::npos || text[at] < '0' || text[at] > '9') {
        return std::nullopt;
    }
    return std::strtoull(text.c_str() + at, nullptr, 10);
}

// Of the line that begins with `key`: "MemTotal:  24 kB", "inactive_file 12".
uint64_t number_after(const std::string & text, const std::string & key) {
    const std::string line = "\n" + key + " ";
    const size_t at = text.compare(0, line.size() - 1, line, 1) == 0 ? 0 : text.find(line);
    return at == std::string::npos ? 0 : number_at(text, text.find(' ', at)).value_or(0);
}

std::optional<uint64_t> number_in(const std::string & path) { return number_at(text_of(path), 0); }

// Lines of /proc/self/mountinfo: id parent device base point options… - type source options (proc(5)).
std::vector<CgroupMount> memory_mounts(const std::string & root) {
    std::ifstream file(root + "/proc/self/mountinfo");
    std::vector<CgroupMount> mounts;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string id, parent, device, base, point, word, type, source, options;
        words >> id >> parent >> device >> base >> point;
        while (words >> word && word != "-") {}
        words >> type >> source >> options;
        const bool memory = ("," + options + ",").find(",memory,") != std::string::npos;
        if (type == "cgroup2" || (type == "cgroup" && memory)) {
            mounts.push_back({point, base, type == "cgroup2"});
        }
    }
    return mounts;
}

// Of this process, in the hierarchy of v2 ("0::/a/b") or of v1's memory controller ("4:cpu,memory:/a/b"); cgroups(7).
std::optional<std::string> cgroup_of(const std::string & root, bool v2) {
    std::ifstream file(root + "/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) {
            continue;
        }
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool memory = ("," + controllers + ",").find(",memory,") != std::string::npos;
        if (v2 ? line.compare(0, 3, "0::") == 0 : memory) {
            return line.substr(second + 1);
        }
    }
    return std::nullopt;
}

// The path below the mount; in a container that sees only its own part of the tree, the mount itself.
std::string below(const CgroupMount & mount, const std::string & cgroup) {
    if (cgroup.size() < 2 || cgroup[0] != '/') {
        return "";
    }
    if (mount.base == "/") {
        return cgroup;
    }
    const bool inside = cgroup.compare(0, mount.base.size(), mount.base) == 0 &&
                        (cgroup.size() == mount.base.size() || cgroup[mount.base.size()] == '/');
    return inside ? cgroup.substr(mount.base.size()) : "";
}

struct Limit {
    uint64_t bytes = kNone, used = 0;
    uint64_t room() const { return bytes > used ? bytes - used : 0; }
};

Limit limit_at(const std::string & folder, bool v2) {
    Limit limit;
    for (const char * name : {"/memory.max", "/memory.high", "/memory.limit_in_bytes"}) {
        limit.bytes = std::min(limit.bytes, number_in(folder + name).value_or(kNone));
    }
    if (limit.bytes == kNone) {
        return limit;  // what is used is not needed then, and dear to count
    }
    const uint64_t used = number_in(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
    const char * inactive = v2 ? "inactive_file" : "total_inactive_file";
    const uint64_t droppable = number_after(text_of(folder + "/memory.stat"), inactive);
    limit.used = used - std::min(used, droppable);
    return limit;
}

// The one with the least room, from the process's own cgroup (`path` below `top`) up to the top. A limit above all of RAM
// is none.
Limit tightest(const std::string & top, std::string path, bool v2, uint64_t total) {
    Limit tightest;
    for (;;) {
        const Limit limit = limit_at(top + path, v2);
        const bool counts = limit.bytes != kNone && (total == 0 || limit.bytes < total);
        if (counts && (tightest.bytes == kNone || limit.room() < tightest.room())) {
            tightest = limit;
        }
        if (path.empty()) {
            return tightest;
        }
        path.erase(path.rfind('/'));
    }
}

// Lines "some avg10=0.12 avg60=0.00 avg300=0.00 total=1234" and "full …": percent, and microseconds in all.
struct Stalls {
    bool there = false;
    double some = 0, full = 0;  // averages over 10 s, 0 to 1
    uint64_t some_us = 0, full_us = 0;
};

Stalls stalls_in(const std::string & path) {
    std::istringstream lines(text_of(path));
    Stalls stalls;
    for (std::string line; std::getline(lines, line);) {
        const size_t average = line.find("avg10="), total = line.find("total=");
        if (average != std::string::npos && total != std::string::npos) {
            const bool full = line.compare(0, 4, "full") == 0;
            (full ? stalls.full : stalls.some) = std::strtod(line.c_str() + average + 6, nullptr) / 100;
            (full ? stalls.full_us : stalls.some_us) = number_at(line, total + 6).value_or(0);
            stalls.there = true;
        }
    }
    return stalls;
}

double share(uint64_t before, uint64_t after, uint64_t elapsed) {
    return after <= before ? 0 : std::min(1.0, static_cast<double>(after - before) / static_cast<double>(elapsed));
}

}  // namespace

PressureGauge::PressureGauge(std::string root) : root_(std::move(root)), mounts_(memory_mounts(root_)) {}

Pressure PressureGauge::sample(uint64_t now_us) {
    Pressure now;
    const std::string memory = text_of(root_ + "/proc/meminfo");
    now.total = number_after(memory, "MemTotal:") * 1024;
    now.available = number_after(memory, "MemAvailable:") * 1024;
    Limit limit;
    Stalls stalls;
    for (const CgroupMount & mount : mounts_) {
        const std::optional<std::string> cgroup = cgroup_of(root_, mount.v2);
        if (!cgroup) {
            continue;
        }
        const std::string path = below(mount, *cgroup);
        const Limit found = tightest(root_ + mount.point, path, mount.v2, now.total);
        if (found.bytes != kNone && (limit.bytes == kNone || found.room() < limit.room())) {
            limit = found;
        }
        if (mount.v2) {
            stalls = stalls_in(root_ + mount.point + path + "/memory.pressure");
        }
    }
    if (limit.bytes != kNone) {
        now.limit = limit.bytes;
        now.used = limit.used;
    }
    if (!stalls.there) {
        stalls = stalls_in(root_ + "/proc/pressure/memory");
    }
    const bool first = at_us_ == 0 || now_us <= at_us_;
    now.some = first ? stalls.some : share(some_us_, stalls.some_us, now_us - at_us_);
    now.full = first ? stalls.full : share(full_us_, stalls.full_us, now_us - at_us_);
    some_us_ = stalls.some_us;
    full_us_ = stalls.full_us;
    at_us_ = now_us;
    return now;
}

Pressure sample_pressure() { return PressureGauge().sample(1); }

}  // namespace expertstream
