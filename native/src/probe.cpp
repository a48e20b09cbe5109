// Measures the drive through the reader, and the memory with threads that only read.
#include "probe.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "api.h"
#include "c_call.hpp"
#include "reader_desk.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace expertstream {
namespace {

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Anonymous memory, whole pages, given back at the end.
struct Memory {
    explicit Memory(size_t size) : bytes(size) {
        void * mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return;
        data = static_cast<uint8_t *>(mapped);
#if defined(MADV_HUGEPAGE)
        madvise(data, bytes, MADV_HUGEPAGE);
#endif
    }
    ~Memory() {
        if (data != nullptr) munmap(data, bytes);
    }
    Memory(const Memory &) = delete;
    Memory & operator=(const Memory &) = delete;

    uint8_t * data = nullptr;
    size_t bytes;
};

// Numbers that look random and are the same on every run (splitmix64).
struct Places {
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9E3779B97F4A7C15);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        return z ^ (z >> 31);
    }
};

struct Shot {
    Piece piece;
    Load load;
};

// `bytes` at some page of some file of the index.
void aim(Shot & shot, const Index & index, uint64_t bytes, Places & places) {
    shot.piece.file = static_cast<uint32_t>(places.next() % index.files.size());
    const uint64_t size = index.file_bytes[shot.piece.file];
    shot.piece.size = std::min(bytes, size);
    shot.piece.offset = places.next() % ((size - shot.piece.size) / kPage + 1) * kPage;
}

// What a buffered read finds in the page cache would say nothing about the drive.
void forget(const Index & index, const Piece & piece) {
#if defined(POSIX_FADV_DONTNEED)
    const int fd = ::open(index.files[piece.file].c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    posix_fadvise(fd, static_cast<off_t>(piece.offset), static_cast<off_t>(piece.size), POSIX_FADV_DONTNEED);
    ::close(fd);
#else
    (void) index, (void) piece;
#endif
}

// Counts from the first read that came to the last one before the deadline: neither the start nor the end, when fewer
// than `depth` are in flight, says anything.
struct Count {
    Clock::time_point first, last;
    uint64_t reads = 0, bytes = 0;  // of `bytes`, those after the first

    void add(uint64_t read_bytes) {
        last = Clock::now();
        if (reads++ == 0)
            first = last;
        else
            bytes += read_bytes;
    }
};

// The rate of `io` in one short round, or 0 if it cannot read so.
double short_rate(const Index & index, ReaderOptions options, Io io, const DriveProbe & probe) {
    options.io = io;
    std::string error;
    const std::unique_ptr<Reader> reader = Reader::open(index, options, error);
    const char * expected = io == Io::uring ? "uring direct" : "threads direct";
    if (reader == nullptr || std::strcmp(reader->name(), expected) != 0) return 0;
    return std::max(0.0, drive_rate(*reader, index, probe, error));
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t read_wide(const uint8_t * data, size_t bytes) {
    __m256i sums[8] = {};
    for (size_t i = 0; i < bytes; i += sizeof sums) {
        for (size_t k = 0; k < 8; ++k) {
            const auto * at = reinterpret_cast<const __m256i *>(data + i + k * sizeof(__m256i));
            sums[k] = _mm256_xor_si256(sums[k], _mm256_load_si256(at));
        }
    }
    for (size_t k = 1; k < 8; ++k) sums[0] = _mm256_xor_si256(sums[0], sums[k]);
    return static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0));
}
#endif

uint64_t read_plain(const uint8_t * data, size_t bytes) {
    uint64_t sums[8] = {};
    for (size_t i = 0; i < bytes; i += sizeof sums) {
        uint64_t words[8];
        std::memcpy(words, data + i, sizeof words);
        for (size_t k = 0; k < 8; ++k) sums[k] ^= words[k];
    }
    return std::accumulate(sums, sums + 8, uint64_t{0});
}

uint64_t read_all(const uint8_t * data, size_t bytes) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return read_wide(data, bytes);
#endif
    return read_plain(data, bytes);
}

// Threads that all begin a pass at the same time; run() answers when the last has finished it.
class Team {
  public:
    Team(unsigned size, std::function<void(unsigned)> pass) : pass_(std::move(pass)) {
        for (unsigned i = 0; i < size; ++i) threads_.push_back(quiet_thread([this, i] { work(i); }));
    }
    ~Team() {
        {
            const std::lock_guard lock(mutex_);
            ended_ = true;
        }
        begin_.notify_all();
        for (std::thread & thread : threads_) thread.join();
    }

    void run() {
        std::unique_lock lock(mutex_);
        running_ = threads_.size();
        ++number_;
        begin_.notify_all();
        end_.wait(lock, [&] { return running_ == 0; });
    }

  private:
    void work(unsigned index) {
        std::unique_lock lock(mutex_);
        for (uint64_t seen = 0;;) {
            begin_.wait(lock, [&] { return ended_ || number_ != seen; });
            if (ended_) return;
            seen = number_;
            lock.unlock();
            pass_(index);
            lock.lock();
            if (--running_ == 0) end_.notify_one();
        }
    }

    std::function<void(unsigned)> pass_;
    std::mutex mutex_;
    std::condition_variable begin_, end_;
    uint64_t number_ = 0;
    size_t running_ = 0;
    bool ended_ = false;
    std::vector<std::thread> threads_;
};

// Several times what the caches hold, so that nothing of the last pass is left in them.
size_t beyond_caches() {
    size_t bytes = size_t{256} << 20;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0) bytes = std::clamp(4 * static_cast<size_t>(cache), bytes, 4 * bytes);
#endif
    return bytes;
}

Io io_named(const std::string & name) {
    if (name == "uring") return Io::uring;
    return name == "threads" ? Io::threads : Io::automatic;
}

double probe_file(const char * path, const char * io, bool direct, const DriveProbe & probe, std::string & error) {
    Index index;
    if (!index_for_probe(path, index, error)) return -1;
    ReaderOptions options;
    options.io = io_named(io == nullptr ? "" : io);
    options.direct = direct;
    options.depth = probe.depth;
    options.piece = probe.piece;
    const std::unique_ptr<Reader> reader = Reader::open(index, options, error);
    return reader == nullptr ? -1 : drive_rate(*reader, index, probe, error);
}

}  // namespace

double drive_rate(Reader & reader, const Index & index, const DriveProbe & probe, std::string & error) {
    const uint64_t size = (probe.piece + kPage - 1) / kPage * kPage;
    std::vector<Shot> shots(2 * probe.depth);  // as many again wait, so that the drive never does
    const Memory memory(shots.size() * size);
    if (memory.data == nullptr) {
        error = "no memory for a probe of the drive";
        return -1;
    }
    const bool buffered = std::strstr(reader.name(), "buffered") != nullptr;
    Places places{probe.seed};
    uint64_t settled = reader.settled();
    const auto shoot = [&](Shot & shot) {
        aim(shot, index, size, places);
        if (buffered) forget(index, shot.piece);
        reader.submit(shot.load, false);
    };
    for (size_t i = 0; i < shots.size(); ++i) {
        shots[i].load.pieces = &shots[i].piece;
        shots[i].load.count = 1;
        shots[i].load.slot = memory.data + i * size;
        shoot(shots[i]);
    }
    const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(probe.ms);
    Count count;
    for (size_t out = shots.size(); out > 0;) {
        settled = reader.wait(settled);
        for (Shot & shot : shots) {
            const uint32_t state = shot.load.state.load(std::memory_order_acquire);
            if (state == Load::failed && error.empty()) error = shot.load.error;
            const bool back = shot.load.left.load(std::memory_order_acquire) == 0;
            if (!back || (state != Load::ready && state != Load::failed)) continue;
            shot.load.state.store(Load::idle, std::memory_order_relaxed);
            const bool goes_on = error.empty() && Clock::now() < deadline;
            if (goes_on || count.reads <= shots.size() / 2) count.add(shot.piece.size);
            if (goes_on)
                shoot(shot);
            else
                --out;
        }
    }
    if (!error.empty()) return -1;
    return static_cast<double>(count.bytes) / std::max(seconds(count.last - count.first), 1e-9);
}

Io faster_io(const Index & index, const ReaderOptions & options) {
    constexpr double kWorthIt = 1.03;
    constexpr unsigned kRounds = 3;
    if (!options.direct) return Io::threads;  // a buffered read of the ring is a thread's read with a detour
    DriveProbe probe{std::clamp<uint64_t>(options.piece, kPage, 1 << 20), options.depth, 20, 0};
    for (unsigned round = 0; round < kRounds; ++round) {
        double rates[2] = {};
        for (unsigned turn = 0; turn < 2; ++turn) {  // who goes first changes; the places are never read twice
            const unsigned ring = (turn + round) % 2;
            ++probe.seed;
            rates[ring] = short_rate(index, options, ring == 1 ? Io::uring : Io::threads, probe);
        }
        if (rates[1] < kWorthIt * rates[0] || rates[1] <= 0) return Io::threads;
    }
    return Io::uring;
}

bool index_for_probe(const std::string & path, Index & index, std::string & error) {
    struct stat file{};
    if (::stat(path.c_str(), &file) != 0) {
        error = path + ": " + std::generic_category().message(errno);
        return false;
    }
    if (!S_ISREG(file.st_mode) || file.st_size == 0) {
        error = path + ": not a file with anything in it";
        return false;
    }
    index.files = {path};
    index.file_bytes = {static_cast<uint64_t>(file.st_size)};
    return true;
}

double memory_rate(unsigned threads, unsigned ms) {
    const unsigned count = std::clamp(threads, 1u, 1024u);
    constexpr size_t kStretches = 4;  // a pass reads one of them: short enough to find a moment without disturbance
    const size_t share = std::max<size_t>(beyond_caches() / count / kStretches / kPage, 1) * kPage;
    const Memory memory(share * count * kStretches);
    if (memory.data == nullptr) return 0;
    std::memset(memory.data, 1, memory.bytes);
    std::atomic<uint64_t> sink{0};
    size_t stretch = 0;
    Team team(count, [&](unsigned i) { sink ^= read_all(memory.data + (stretch * count + i) * share, share); });
    const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(ms);
    double best = 0;
    for (Clock::time_point before = Clock::now(); best <= 0 || before < deadline;) {
        team.run();
        stretch = (stretch + 1) % kStretches;
        const Clock::time_point now = Clock::now();
        best = std::max(best, static_cast<double>(share * count) / std::max(seconds(now - before), 1e-9));
        before = now;
    }
    return best;
}

}  // namespace expertstream

extern "C" int es_probe_drive(const char * path, const char * io, int direct, unsigned depth, uint64_t piece,
                              unsigned ms, double * bytes_per_s, char * error, size_t error_bytes) {
    using namespace expertstream;
    *bytes_per_s = 0;
    return c_call(error, error_bytes, [&](std::string & why) {
        // Other places each time: what a probe has just read, the drive's own cache may still hold.
        const auto seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
        const DriveProbe probe{piece, depth == 0 ? 1 : depth, ms, seed};
        *bytes_per_s = std::max(0.0, probe_file(path, io, direct != 0, probe, why));
        return why.empty();
    });
}

extern "C" double es_probe_memory(unsigned threads, unsigned ms) {
    try {
        return expertstream::memory_rate(threads, ms);
    } catch (const std::exception &) {
        return 0;
    }
}
