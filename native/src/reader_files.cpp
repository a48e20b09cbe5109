// Opens the files of a model, past the page cache if the file system takes it, and compares them with what they were.
#include "reader_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <cerrno>
#include <system_error>

namespace expertstream {
namespace {

int system_open(const char * path, int flags) { return ::open(path, flags); }
int system_fstat(int fd, struct stat * out) { return ::fstat(fd, out); }
int system_stat(const char * path, struct stat * out) { return ::stat(path, out); }
int system_ring_setup(unsigned entries, void * params) {
#if defined(__NR_io_uring_setup)
    return static_cast<int>(syscall(__NR_io_uring_setup, entries, params));
#else
    (void) entries, (void) params;
    errno = ENOSYS;
    return -1;
#endif
}

ssize_t as_it_is(int, void *, size_t, off_t, ssize_t result) { return result; }

#if defined(__APPLE__)
struct timespec modified(const struct stat & of) { return of.st_mtimespec; }
#else
struct timespec modified(const struct stat & of) { return of.st_mtim; }
#endif

int open_direct(const char * path, const Calls & calls) {
#if defined(O_DIRECT)
    return calls.open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
#elif defined(F_NOCACHE)
    const int fd = calls.open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) fcntl(fd, F_NOCACHE, 1);
    return fd;
#else
    (void) path, (void) calls;
    return -1;
#endif
}

bool same_contents(const struct stat & a, const struct stat & b) {
    return a.st_size == b.st_size && modified(a).tv_sec == modified(b).tv_sec &&
           modified(a).tv_nsec == modified(b).tv_nsec;
}

bool open_file(File & file, bool direct, const Calls & calls, std::string & error) {
    file.plain_fd = calls.open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file.plain_fd < 0 || calls.fstat(file.plain_fd, &file.opened) != 0) {
        error = file.path + ": " + error_text(errno);
        return false;
    }
#if defined(POSIX_FADV_RANDOM)
    posix_fadvise(file.plain_fd, 0, 0, POSIX_FADV_RANDOM);
#endif
    if (direct) file.direct_fd = open_direct(file.path.c_str(), calls);
    file.direct = file.direct_fd >= 0;
    return true;
}

}  // namespace

const Calls & system_calls() {
    static const Calls calls{system_open, ::pread, system_fstat, system_stat, system_ring_setup, as_it_is};
    return calls;
}

File::~File() {
    if (direct_fd >= 0) ::close(direct_fd);
    if (plain_fd >= 0) ::close(plain_fd);
}

bool open_files(const Index & index, bool direct, const Calls & calls, std::vector<File> & files, std::string & error) {
    files = std::vector<File>(index.files.size());
    for (size_t i = 0; i < files.size(); ++i) {
        files[i].path = index.files[i];
        if (!open_file(files[i], direct, calls, error)) return false;
        const auto size = static_cast<uint64_t>(files[i].opened.st_size);
        if (i < index.file_bytes.size() && S_ISREG(files[i].opened.st_mode) && size != index.file_bytes[i]) {
            error = files[i].path + ": the file has changed while the model was being loaded";
            return false;
        }
    }
    return true;
}

std::string what_changed(const File & file, const Calls & calls) {
    struct stat now{};
    if (calls.fstat(file.plain_fd, &now) != 0) return file.path + ": " + error_text(errno);
    bool same = same_contents(now, file.opened);
    if (same && calls.stat(file.path.c_str(), &now) == 0) {
        same = now.st_ino == file.opened.st_ino && now.st_dev == file.opened.st_dev;
    }
    return same ? std::string() : file.path + ": the file has changed since the model was loaded";
}

void drop_from_cache(const File & file, uint64_t offset, uint64_t bytes) {
#if defined(POSIX_FADV_DONTNEED)
    posix_fadvise(file.plain_fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
#else
    (void) file, (void) offset, (void) bytes;
#endif
}

std::string error_text(int error_number) { return std::generic_category().message(error_number); }

}  // namespace expertstream
