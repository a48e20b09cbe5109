// Makes reads of chosen files fail, in a program that knows nothing of it: for tests of the whole server.
//
// Build:   c++ -std=c++17 -O2 -fPIC -shared -pthread native/tests/faulty_io.cpp -o faulty_io.so -ldl
// Run:     LD_PRELOAD=./faulty_io.so ES_FAULT_PATH=big.gguf ES_FAULT_CONTROL=/tmp/control  the-program
//
// ES_FAULT_PATH is part of the paths concerned; several are separated by ":". The file ES_FAULT_CONTROL is read again
// at every read and holds one word (no file, or an empty one, means "none"):
//
//     none    all is well                       short   half of what was asked for comes (whole pages)
//     eio     Input/output error                cut     nothing comes, as at the end of the file
//     flip    one bit in the middle is wrong    stall   no answer until the word is another
//
// "eio 3" (a number after any word) spoils only the next 3 reads, counted anew when the text changes. Covers pread and
// preadv, hence the reader with io=threads; reads through a ring do not pass the C library.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>

namespace {

constexpr size_t kPage = 4096;

using Pread = ssize_t (*)(int, void *, size_t, off_t);
using Preadv = ssize_t (*)(int, const iovec *, int, off_t);

template <class Function>
Function next_of(const char * name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

std::string environment(const char * name) {
    const char * value = std::getenv(name);
    return value == nullptr ? "" : value;
}

bool concerned(int fd) {
    std::string wanted = environment("ES_FAULT_PATH");
    char link[64], path[4096];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (wanted.empty() || length <= 0) return false;
    path[length] = '\0';
    for (char * part = std::strtok(wanted.data(), ":"); part != nullptr; part = std::strtok(nullptr, ":")) {
        if (std::strstr(path, part) != nullptr) return true;
    }
    return false;
}

std::string control_text() {
    static const auto real = next_of<Pread>("pread");
    const int fd = open(environment("ES_FAULT_CONTROL").c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return "";
    char text[64];
    const ssize_t length = real(fd, text, sizeof text, 0);
    close(fd);
    return length > 0 ? std::string(text, static_cast<size_t>(length)) : "";
}

// What is to happen to this read.
std::string fault() {
    static std::mutex mutex;
    static std::string last;
    static long left = 0;
    const std::string text = control_text();
    char word[16] = "none";
    long times = -1;
    std::sscanf(text.c_str(), "%15s %ld", word, &times);
    if (times < 0) return word;
    const std::lock_guard<std::mutex> lock(mutex);
    if (text != last) left = times;
    last = text;
    return left-- > 0 ? word : "none";
}

void wait_while_stalled() {
    const timespec pause{0, 10 * 1000 * 1000};
    while (control_text().rfind("stall", 0) == 0) nanosleep(&pause, nullptr);
}

// `read(bytes)` reads at most that many to `to`.
template <class Read>
ssize_t spoiled(int fd, void * to, size_t bytes, Read read) {
    if (!concerned(fd)) return read(bytes);
    const std::string what = fault();
    if (what == "cut") return 0;
    if (what == "eio") {
        errno = EIO;
        return -1;
    }
    if (what == "stall") wait_while_stalled();
    if (what == "short") bytes = std::min(bytes, std::max(bytes / 2 / kPage * kPage, kPage));
    const ssize_t result = read(bytes);
    if (what == "flip" && result > 0) static_cast<unsigned char *>(to)[result / 2] ^= 1;
    return result;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) ssize_t pread(int fd, void * to, size_t bytes, off_t offset) {
    static const auto real = next_of<Pread>("pread");
    return spoiled(fd, to, bytes, [&](size_t most) { return real(fd, to, most, offset); });
}

__attribute__((visibility("default"))) ssize_t pread64(int fd, void * to, size_t bytes, off64_t offset) {
    return pread(fd, to, bytes, static_cast<off_t>(offset));
}

// Of several buffers only the first is read when the read is spoiled: a short read, which callers must expect.
__attribute__((visibility("default"))) ssize_t preadv(int fd, const iovec * to, int count, off_t offset) {
    static const auto real = next_of<Preadv>("preadv");
    if (count <= 0 || !concerned(fd)) return real(fd, to, count, offset);
    return pread(fd, to[0].iov_base, to[0].iov_len, offset);
}

__attribute__((visibility("default"))) ssize_t preadv64(int fd, const iovec * to, int count, off64_t offset) {
    return preadv(fd, to, count, static_cast<off_t>(offset));
}

}  // extern "C"
