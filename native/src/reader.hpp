// Brings experts from disk into memory: many reads at once, past the page cache where the drive gains by it.
// Owns the file descriptors and the I/O threads (or the ring).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "index.hpp"

namespace expertstream {

enum class Io { automatic, threads, uring };

struct ReaderOptions {
    Io io = Io::automatic;  // automatic: the ring where the kernel allows one and the probe says it is faster
    bool direct = true;     // O_DIRECT, where the file system takes it; else buffered, then dropped from the cache
    unsigned depth = 8;     // reads in flight
    uint64_t piece = 512 * 1024;  // a longer read is split into several of about this many bytes
    unsigned stall_ms = 10000;    // a read that takes longer has failed: the drive does not answer
};

// One expert on its way into memory. Whoever submits it keeps it alive, and the slot untouched, until it is settled and
// `left` is 0. Those two come together, but for a load that failed because the drive does not answer: reads into its
// slot still hang, and `left` reaches 0 (load it with acquire) when the last of them has come back. Only then may the
// slot or the load be used again.
struct Load {
    const Piece * pieces = nullptr;
    uint32_t count = 0;
    uint8_t * slot = nullptr;  // aligned to kPage
    bool checked = false;      // compare `crc` with the CRC-32C of the single piece
    uint32_t crc = 0;

    enum State : uint32_t { idle, waiting, ready, failed };
    std::atomic<uint32_t> state{idle};
    std::string error;              // valid once `failed`: what happened, in which file, at which offset
    std::atomic<uint32_t> left{0};  // reads that have not come back
};

struct ReaderCounters {
    uint64_t reads = 0, bytes = 0;  // finished, as asked of the drive (with alignment)
    uint64_t busy_ns = 0;           // time during which at least one read was in flight
    uint64_t retries = 0, failures = 0;
    uint64_t mismatches = 0;  // of the failures: the checksum was another
};

class Reader {
  public:
    // Opens every file. On failure returns nullptr and says why.
    static std::unique_ptr<Reader> open(const Index & index, const ReaderOptions & options, std::string & error);
    // Fails what still waits, and waits for the reads in flight: the memory they write to may go only afterwards.
    virtual ~Reader() = default;

    // Starts it. `urgent`: before everything that is not.
    virtual void submit(Load & load, bool urgent) = 0;

    // How many loads have been settled so far (one that failed with `left` above 0 counts again when that is 0).
    // wait() returns once that is more than `seen`.
    virtual uint64_t settled() const = 0;
    virtual uint64_t wait(uint64_t seen) = 0;

    virtual ReaderCounters counters() const = 0;
    virtual const char * name() const = 0;  // "threads direct", "uring direct", "threads buffered"
};

// CRC-32C (Castagnoli) of `size` bytes, continued from `crc` (0 at the start).
uint32_t crc32c(uint32_t crc, const void * data, size_t size);

}  // namespace expertstream
