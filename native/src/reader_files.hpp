// The open files of a model, and whether they still are what they were. Private to the reader.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "index.hpp"

namespace expertstream {

// What the reader asks of the system, so that tests can stand in for a drive that fails.
struct Calls {
    int (*open)(const char * path, int flags);
    ssize_t (*pread)(int fd, void * to, size_t bytes, off_t offset);
    int (*fstat)(int fd, struct stat * out);
    int (*stat)(const char * path, struct stat * out);
    int (*ring_setup)(unsigned entries, void * params);  // io_uring_setup
    // What a read of the ring came to (bytes, or an error below zero), before the reader believes it.
    ssize_t (*arrived)(int fd, void * to, size_t bytes, off_t offset, ssize_t result);
};

const Calls & system_calls();

struct File {
    std::string path;
    int direct_fd = -1;  // past the page cache; -1 where that is refused
    int plain_fd = -1;
    std::atomic<bool> direct{false};
    struct stat opened{};

    File() = default;
    File(const File &) = delete;
    File & operator=(const File &) = delete;
    ~File();

    int fd() const { return direct.load(std::memory_order_relaxed) ? direct_fd : plain_fd; }
};

// Opens every file of the index. false and why on failure.
bool open_files(const Index & index, bool direct, const Calls & calls, std::vector<File> & files, std::string & error);

// Empty if the file is what it was when it was opened, else what is wrong. An open file that is merely unlinked is
// whole; one that was written to, or in whose place another lies, no longer is the model that was loaded.
std::string what_changed(const File & file, const Calls & calls);

// Buffered reads leave pages in the cache that nobody will ask for again.
void drop_from_cache(const File & file, uint64_t offset, uint64_t bytes);

std::string error_text(int error_number);

}  // namespace expertstream
