// A drive that fails as told: stands in for the system under a reader, in the tests of the reader. Owns the faults,
// which are the same for reads by threads and by the ring.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "../src/reader_desk.hpp"

namespace expertstream::faulty {

struct Read {
    int fd;
    uint8_t * to;
    uint64_t bytes, offset;
    ssize_t result;  // bytes, or an error number below zero; as it was without a fault
};

// What the next reads come to. Calls of `judge` come one at a time.
struct Drive {
    std::mutex mutex;
    std::condition_variable changed;
    std::function<ssize_t(const Read &)> judge;
    std::vector<uint64_t> asked;  // offsets, in the order in which they were read
    bool held = false;            // reads hang until this is false
    bool refuses_direct_open = false, refuses_ring = false;

    void reset() {
        const std::lock_guard lock(mutex);
        judge = nullptr;
        asked.clear();
        held = refuses_direct_open = refuses_ring = false;
    }
    void fail_with(std::function<ssize_t(const Read &)> how) {
        const std::lock_guard lock(mutex);
        judge = std::move(how);
    }
    void hold() {
        const std::lock_guard lock(mutex);
        held = true;
    }
    void release() {
        const std::lock_guard lock(mutex);
        held = false;
        changed.notify_all();
    }
    // Until `count` reads have reached the drive (and hang there, if they are held).
    void wait_for_reads(size_t count) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return asked.size() >= count; });
    }
    ssize_t judged(const Read & read) {
        std::unique_lock lock(mutex);
        asked.push_back(read.offset);
        changed.notify_all();
        changed.wait(lock, [&] { return !held; });
        return judge ? judge(read) : read.result;
    }
};

inline Drive & drive() {
    static Drive one;
    return one;
}

inline bool is_direct(int fd) { return (fcntl(fd, F_GETFL) & O_DIRECT) != 0; }

inline int open_file(const char * path, int flags) {
    if ((flags & O_DIRECT) != 0 && drive().refuses_direct_open) {
        errno = EINVAL;
        return -1;
    }
    return system_calls().open(path, flags);
}

inline ssize_t arrived(int fd, void * to, size_t bytes, off_t offset, ssize_t result) {
    return drive().judged({fd, static_cast<uint8_t *>(to), bytes, static_cast<uint64_t>(offset), result});
}

inline ssize_t pread_file(int fd, void * to, size_t bytes, off_t offset) {
    const ssize_t got = ::pread(fd, to, bytes, offset);
    const ssize_t result = arrived(fd, to, bytes, offset, got < 0 ? -errno : got);
    if (result >= 0) return result;
    errno = static_cast<int>(-result);
    return -1;
}

inline int ring_setup(unsigned entries, void * params) {
    if (!drive().refuses_ring) return system_calls().ring_setup(entries, params);
    errno = EPERM;
    return -1;
}

inline Calls calls() {
    Calls calls = system_calls();
    calls.open = open_file;
    calls.pread = pread_file;
    calls.arrived = arrived;
    calls.ring_setup = ring_setup;
    return calls;
}

}  // namespace expertstream::faulty
