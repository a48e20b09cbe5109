// Owns the decision how much memory the experts take, and the thread that makes it again and again.
#include "governor.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "pressure.hpp"
#include "share.hpp"

namespace expertstream {
namespace {

constexpr uint64_t kShareOfRam = 5;     // the rest of the system, and its page cache
constexpr uint64_t kShareOfLimit = 10;  // inside of a limit there is nobody else, nor is its page cache ours
constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint64_t kLeastReserve = 256 * kMiB;
constexpr uint64_t kLeastStep = 16 * kMiB;
constexpr double kFullHigh = 0.005;  // of the time every task waited for memory: from here on the budget shrinks
constexpr double kFullQuiet = 0.001, kSomeQuiet = 0.02;
constexpr uint64_t kCalmMs = 3000;  // no growth for so long after it shrank: who took the memory may want more
constexpr uint64_t kInUseMs = 60'000;
constexpr uint64_t kWeightInUse = 4;

uint64_t now_us() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

bool known(const Pressure & now) { return now.total > 0 || now.limit > 0; }

uint64_t clamp(uint64_t budget, const Bounds & bounds) { return std::max(bounds.least, std::min(bounds.most, budget)); }

// Bytes that are free above the reserve; negative: that are missing.
int64_t room_above_reserve(const Pressure & now, uint64_t reserve) {
    int64_t room = INT64_MAX;
    if (now.total > 0) {
        room = static_cast<int64_t>(now.available) - static_cast<int64_t>(reserve);
    }
    if (now.limit > 0) {
        const uint64_t kept = std::min(reserve, now.limit / kShareOfLimit);
        room = std::min(room, static_cast<int64_t>(now.limit) - static_cast<int64_t>(now.used + kept));
    }
    return room;
}

// Bytes that may be held in all, of which `resident` are held already.
uint64_t supportable(uint64_t resident, const Pressure & now, uint64_t reserve) {
    const int64_t bytes = static_cast<int64_t>(resident) + room_above_reserve(now, reserve);
    return static_cast<uint64_t>(std::max<int64_t>(0, bytes));
}

// Room that is left unused, so that the ups and downs of everything else neither shrink nor grow the budget.
uint64_t band(const Bounds & bounds) { return std::max(bounds.reserve / 8, 4 * kLeastStep); }

uint64_t step_up(uint64_t budget, uint64_t goal) {
    return std::min(goal, budget + std::max((goal - budget) / 4, kLeastStep));
}

}  // namespace

uint64_t next_budget(uint64_t budget, uint64_t resident, const Pressure & now, const Bounds & bounds) {
    if (!known(now)) {
        return clamp(budget, bounds);
    }
    const uint64_t most = supportable(resident, now, bounds.reserve);
    if (now.full > kFullHigh) {
        return clamp(std::min(most, budget - budget / 20), bounds);
    }
    const bool quiet = now.full < kFullQuiet && now.some < kSomeQuiet;
    if (quiet && most > budget && most - budget > band(bounds)) {
        return clamp(step_up(budget, most - band(bounds)), bounds);
    }
    return clamp(std::min(budget, most), bounds);
}

uint64_t reserve_of(const Pressure & now) {
    const bool limited = now.limit > 0 && (now.total == 0 || now.limit < now.total);
    const bool tighter = limited && (now.total == 0 || now.limit - std::min(now.used, now.limit) < now.available);
    return std::max(tighter ? now.limit / kShareOfLimit : now.total / kShareOfRam, kLeastReserve);
}

struct Governor::State {
    Bounds bounds;
    std::chrono::milliseconds interval;
    std::function<uint64_t()> resident;
    std::function<void(uint64_t)> apply;
    std::function<Pressure()> sample;
    std::unique_ptr<Share> share;
    std::string unshared;
    std::atomic<uint64_t> touched_us{0};

    uint64_t budget = 0;
    uint64_t calm_until_us = 0;  // no growth before

    std::mutex mutex;
    std::condition_variable stopping;
    bool stop = false;
    std::thread thread;

    Bounds shared_bounds(uint64_t held, const Pressure & now, uint64_t at_us);
    void begin();
    void step();
    void watch();
};

// The bounds, but for no more than this process's share of what all of them may hold together.
Bounds Governor::State::shared_bounds(uint64_t held, const Pressure & now, uint64_t at_us) {
    if (!share || !known(now)) {
        return bounds;
    }
    const uint64_t touched = touched_us.load(std::memory_order_relaxed);
    const bool in_use = touched != 0 && at_us - std::min(touched, at_us) < kInUseMs * 1000;
    share->publish({bounds.least, bounds.most, held, in_use ? kWeightInUse : 1});
    const std::vector<Claim> claims = share->claims();
    uint64_t all = 0;
    for (const Claim & claim : claims) {
        all += claim.resident;
    }
    const uint64_t mine = divide(supportable(all, now, bounds.reserve), claims)[0];
    const bool nearly = mine < budget && budget - mine < band(bounds);
    return {bounds.least, std::min(bounds.most, nearly && claims.size() > 1 ? budget : mine), bounds.reserve};
}

void Governor::State::begin() {
    const Pressure now = sample();
    const uint64_t held = resident();
    const Bounds within = shared_bounds(held, now, now_us());
    const uint64_t most = known(now) ? supportable(held, now, bounds.reserve) : 0;
    budget = clamp(most - std::min(most, band(bounds)), within);
    apply(budget);
}

void Governor::State::step() {
    const Pressure now = sample();
    const uint64_t held = resident(), at_us = now_us();
    const uint64_t next = next_budget(budget, held, now, shared_bounds(held, now, at_us));
    if (next < budget) {
        calm_until_us = at_us + kCalmMs * 1000;
    }
    if (next < budget || (next > budget && at_us >= calm_until_us)) {
        budget = next;
        apply(budget);
    }
}

void Governor::State::watch() {
    std::unique_lock<std::mutex> lock(mutex);
    while (!stopping.wait_for(lock, interval, [this] { return stop; })) {
        lock.unlock();
        step();
        lock.lock();
    }
}

Governor::Governor(Bounds bounds, const std::string & share_file, unsigned interval_ms,
                   std::function<uint64_t()> resident, std::function<void(uint64_t)> apply,
                   std::function<Pressure()> sample)
    : state_(std::make_unique<State>()) {
    state_->bounds = bounds;
    state_->interval = std::chrono::milliseconds(interval_ms);
    state_->resident = std::move(resident);
    state_->apply = std::move(apply);
    state_->sample = std::move(sample);
    if (!state_->sample) {
        state_->sample = [gauge = PressureGauge()]() mutable { return gauge.sample(now_us()); };
    }
    if (!share_file.empty()) {
        state_->share = Share::open(share_file, state_->unshared);
    }
    state_->begin();
    state_->thread = std::thread([this] { state_->watch(); });
}

Governor::~Governor() {
    {
        std::lock_guard<std::mutex> lock(state_->mutex);
        state_->stop = true;
    }
    state_->stopping.notify_all();
    state_->thread.join();
}

void Governor::touch() { state_->touched_us.store(now_us(), std::memory_order_relaxed); }

const std::string & Governor::unshared() const { return state_->unshared; }

}  // namespace expertstream
