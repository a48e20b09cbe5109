// Owns the mapped page of counters and the trace file.
#include "stats.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <type_traits>

#include "text.hpp"

namespace expertstream {
namespace {

constexpr size_t kTraceBuffer = 1 << 20;
constexpr uint32_t kMaxRecord = 1024;  // experts in one record of a trace; more of them become several records

// drivetrain.engines.expertstream.page knows these numbers.
static_assert(std::is_standard_layout<Page>::value && std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint64_t>) == 8);
static_assert(offsetof(Page, pid) == 8 && offsetof(Page, experts) == 24 && offsetof(Page, budget) == 40);
static_assert(offsetof(Page, hits) == 72 && offsetof(Page, reads) == 88 && offsetof(Page, wait_ns) == 112);
static_assert(offsetof(Page, tokens) == 128 && offsetof(Page, evictions) == 144 && offsetof(Page, crc_errors) == 168);
static_assert(offsetof(Page, abort_below) == 176 && offsetof(Page, error_seq) == 184 && offsetof(Page, error) == 192);
static_assert(offsetof(Page, reader) == 704 && offsetof(Page, kernel) == 768 && offsetof(Page, layer_hits) == 832);
static_assert(offsetof(Page, layer_misses) == 832 + 8 * kMaxLayers && sizeof(Page) == 832 + 16 * kMaxLayers);

std::string failed(const char * what, const std::string & path) {
    return std::string("cannot ") + what + " " + path + ": " + std::strerror(errno);
}

struct File {
    int fd = -1;
    ~File() {
        if (fd >= 0) {
            close(fd);
        }
    }
};

// Blocks are taken at once: a full disk is an error here, not a SIGBUS at the first count.
int take_blocks(int fd, size_t bytes) {
#ifdef __linux__
    const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    if (error != EINVAL && error != EOPNOTSUPP) {
        return error;
    }
#endif
    return ftruncate(fd, static_cast<off_t>(bytes)) ? errno : 0;
}

// Never made shorter: another process may have it mapped.
void * map_file(const std::string & path, size_t bytes, std::string & error) {
    File file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)};
    struct stat status{};
    if (file.fd < 0 || fstat(file.fd, &status) || fchmod(file.fd, 0600)) {
        error = failed("open the page of counters", path);
        return nullptr;
    }
    if (!S_ISREG(status.st_mode)) {
        error = "the page of counters " + path + " is not a regular file";
        return nullptr;
    }
    errno = take_blocks(file.fd, bytes);
    void * map = errno ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (map == MAP_FAILED) {
        error = failed("map the page of counters", path);
        return nullptr;
    }
    return map;
}

void * map_private(size_t bytes, std::string & error) {
    void * map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        error = failed("map", "a page of counters");
        return nullptr;
    }
    return map;
}

// A reader takes the page for one of ours once `magic` is there, so that comes last.
void begin(Page & page) {
    __atomic_store_n(&page.magic, 0, __ATOMIC_RELEASE);
    std::memset(reinterpret_cast<char *>(&page) + sizeof page.magic, 0, sizeof page - sizeof page.magic);
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    page.started_ns.store(static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec));
    page.pid.store(static_cast<uint64_t>(getpid()));
    __atomic_store_n(&page.magic, kPageMagic, __ATOMIC_RELEASE);
}

}  // namespace

std::unique_ptr<Stats> Stats::open(const std::string & path, std::string & error) {
    std::unique_ptr<Stats> stats(new Stats());
    void * map = path.empty() ? map_private(sizeof(Page), error) : map_file(path, sizeof(Page), error);
    if (!map) {
        return nullptr;
    }
    stats->page_ = static_cast<Page *>(map);
    begin(*stats->page_);
    return stats;
}

Stats::~Stats() {
    if (trace_) {
        std::fclose(trace_);
    }
    if (page_) {
        munmap(page_, sizeof(Page));
    }
}

void Stats::fail(const std::string & what) {
    std::lock_guard<std::mutex> lock(failing_);
    page_->error_seq.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    const size_t size = fitting(what, sizeof page_->error - 1);
    std::memcpy(page_->error, what.data(), size);
    std::memset(page_->error + size, 0, sizeof page_->error - size);
    page_->error_seq.fetch_add(1, std::memory_order_release);
    page_->failures.fetch_add(1, std::memory_order_relaxed);
}

bool Stats::trace_to(const std::string & path, uint32_t layers, uint32_t experts, std::string & error) {
    std::lock_guard<std::mutex> lock(tracing_);
    FILE * file = trace_ ? nullptr : std::fopen(path.c_str(), "wbe");
    if (!file) {
        error = trace_ ? "there is a trace already" : failed("write the trace", path);
        return false;
    }
    std::setvbuf(file, nullptr, _IOFBF, kTraceBuffer);
    const uint32_t sizes[] = {layers, experts};
    const bool begun = std::fwrite("DRTTRC01", 8, 1, file) == 1 && std::fwrite(sizes, sizeof sizes, 1, file) == 1;
    if (!begun || std::fflush(file)) {
        error = failed("write the trace", path);
        std::fclose(file);
        return false;
    }
    trace_ = file;
    return true;
}

void Stats::trace(uint32_t layer, const uint32_t * experts, uint32_t count) {
    std::lock_guard<std::mutex> lock(tracing_);
    uint16_t record[2 + kMaxRecord];
    for (uint32_t done = 0; trace_ && done < count; done += kMaxRecord) {
        const uint32_t some = std::min(count - done, kMaxRecord);
        record[0] = static_cast<uint16_t>(layer);
        record[1] = static_cast<uint16_t>(some);
        std::transform(experts + done, experts + done + some, record + 2,
                       [](uint32_t expert) { return static_cast<uint16_t>(expert); });
        if (std::fwrite(record, sizeof *record, 2 + some, trace_) != 2 + some) {
            fail(std::string("the trace ends here: ") + std::strerror(errno));
            std::fclose(trace_);
            trace_ = nullptr;
        }
    }
}

}  // namespace expertstream
