// What the engine did, as others may read it while it runs: a page of counters in a file that is mapped by both sides,
// and a trace of which experts were asked for. The layout is a contract with `drivetrain.engines.expertstream.page`.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

namespace expertstream {

constexpr uint64_t kPageMagic = 0x3130'4558'5054'5244;  // "DRTPXE01" as bytes, little-endian
constexpr uint32_t kMaxLayers = 512;

struct Page {  // 8-byte fields only; written by one process, each field by one thread at a time
    uint64_t magic;
    std::atomic<uint64_t> pid, started_ns;
    std::atomic<uint64_t> experts, expert_bytes;          // of the model, in all
    std::atomic<uint64_t> budget, resident, least, most;  // bytes
    std::atomic<uint64_t> hits, misses;                   // experts asked for: there, or not
    std::atomic<uint64_t> reads, read_bytes, read_ns;     // of the drive; ns: at least one read was in flight
    std::atomic<uint64_t> wait_ns, compute_ns;            // the calculation waited for the drive; it ran (experts only)
    std::atomic<uint64_t> tokens, passes;                 // tokens through the first layer; calls of it
    std::atomic<uint64_t> evictions, failures, retries, crc_errors;
    std::atomic<uint64_t> abort_below;  // written by the other side: passes begun before this count fail
    std::atomic<uint64_t> error_seq;    // odd while `error` is being written
    char error[512];                    // the last failure, zero-terminated
    char reader[64], kernel[64];        // what was chosen
    std::atomic<uint64_t> layer_hits[kMaxLayers], layer_misses[kMaxLayers];
};

class Stats {
  public:
    // Maps `path` (created, 0600); an empty path gives a private page. nullptr and why on failure.
    static std::unique_ptr<Stats> open(const std::string & path, std::string & error);
    ~Stats();
    Page & page() { return *page_; }
    void fail(const std::string & what);  // sets `error`, counts

    // Trace: "DRTTRC01", then u32 layers, u32 experts, then records of u16: layer, count, experts…
    bool trace_to(const std::string & path, uint32_t layers, uint32_t experts, std::string & error);
    // Any thread. A trace that can no longer be written (a full disk) ends there, and fail() says so.
    void trace(uint32_t layer, const uint32_t * experts, uint32_t count);

  private:
    Stats() = default;
    Page * page_ = nullptr;
    std::mutex failing_, tracing_;
    FILE * trace_ = nullptr;
};

}  // namespace expertstream
