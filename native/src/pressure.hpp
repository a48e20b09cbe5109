// What the kernel says of memory: /proc/meminfo, the memory cgroups of this process (v1 and v2), pressure stall
// information.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "governor.hpp"

namespace expertstream {

// A hierarchy of cgroups as it is mounted here: `point` shows what the hierarchy calls `base`.
struct CgroupMount {
    std::string point, base;
    bool v2 = false;
};

// Reads one moment after another, for the share of time since the last one. One thread.
class PressureGauge {
  public:
    // `root` comes before every path ("/proc/…", "/sys/…"), for trees that tests make.
    explicit PressureGauge(std::string root = "");

    // `now_us`: of any clock that only goes forward. The first time, stalls are the kernel's average over 10 seconds.
    Pressure sample(uint64_t now_us);

  private:
    std::string root_;
    std::vector<CgroupMount> mounts_;
    uint64_t some_us_ = 0, full_us_ = 0, at_us_ = 0;  // totals of the last sample, and when; 0 before the first
};

}  // namespace expertstream
