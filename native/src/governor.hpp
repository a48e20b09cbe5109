// How much memory the experts may take, now and in a moment. Decides; the arena obeys. Owns the thread that watches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace expertstream {

// What the system says of its memory at one moment. Bytes; 0 for a limit that is not there.
struct Pressure {
    uint64_t total = 0;         // RAM of the machine
    uint64_t available = 0;     // MemAvailable
    uint64_t limit = 0;         // of the tightest memory cgroup (v1 or v2) this process is in
    uint64_t used = 0;          // of that cgroup, without what can be dropped (inactive file pages)
    double some = 0, full = 0;  // PSI of memory over the last interval: share of time, 0 to 1
};

struct Bounds {
    uint64_t least = 0, most = 0;  // of the budget: one layer's worth, and all experts (or what the user set)
    uint64_t reserve = 0;          // bytes to leave to the rest of the system
};

// The next budget, from the present one and what is resident of it. Pure. Shrinks at once, by what is missing; grows in
// steps, and only while there is no pressure. Between the two lies a band in which nothing changes. Where nothing is
// known of the system's memory (neither total nor limit), it stays. `least` holds even against `most`.
uint64_t next_budget(uint64_t budget, uint64_t resident, const Pressure & now, const Bounds & bounds);

// A fifth of RAM, or a tenth of the limit if that is lower and tighter: but at least 256 MiB. Of a limit next_budget never
// keeps more than a tenth.
uint64_t reserve_of(const Pressure & now);

Pressure sample_pressure();  // reads /proc and /sys; what is missing stays 0

class Governor {
  public:
    // Calls `apply` with the first budget before it returns: what there is room for at once, or the least. Then samples
    // every `interval_ms`, in a thread of its own, and calls it when the budget changes. `share_file` (may be empty):
    // where the workers of several models tell each other what they hold, so that together they stay inside the same
    // memory. `sample`: for tests.
    Governor(Bounds bounds, const std::string & share_file, unsigned interval_ms, std::function<uint64_t()> resident,
             std::function<void(uint64_t)> apply, std::function<Pressure()> sample = nullptr);
    ~Governor();

    // Tells that the model is in use: for a minute it then weighs more than one that is not. Any thread, at no cost.
    void touch();

    // Why `share_file` is not in use; empty if it is, or if there is none.
    const std::string & unshared() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace expertstream
