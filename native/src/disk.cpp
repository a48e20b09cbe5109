// Files as the index and the container use them: see disk.hpp.
#include "disk.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace expertstream::disk {

namespace {

constexpr size_t kCopyChunk = 4u << 20;
constexpr size_t kMostWhole = 64u << 20;

std::string directory_of(const std::string & path) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

// Bytes the kernel copied by itself; fewer than `size` where it cannot, which the caller then does by hand.
uint64_t copy_in_kernel(const File & from, uint64_t from_at, const File & to, uint64_t to_at, uint64_t size) {
    uint64_t done = 0;
#ifdef __linux__
    while (done < size) {
        loff_t in = static_cast<loff_t>(from_at + done), out = static_cast<loff_t>(to_at + done);
        const size_t want = static_cast<size_t>(std::min<uint64_t>(size - done, 1u << 30));
        const ssize_t n = copy_file_range(from.fd(), &in, to.fd(), &out, want, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += static_cast<uint64_t>(n);
    }
#else
    (void) from, (void) from_at, (void) to, (void) to_at, (void) size;
#endif
    return done;
}

// Free for files beside `path`; all ones if that cannot be told.
uint64_t free_bytes(const std::string & path) {
    struct statvfs system;
    if (statvfs(directory_of(path).c_str(), &system) != 0) return ~uint64_t{0};
    return static_cast<uint64_t>(system.f_bavail) * static_cast<uint64_t>(system.f_frsize);
}

std::string gigabytes(uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f GB", static_cast<double>(bytes) / 1e9);
    return text;
}

// Whether `file` is still what `path` names: another process may have renamed it while we waited for the lock.
bool still_named(const File & file, const std::string & path) {
    struct stat mine, named;
    if (fstat(file.fd(), &mine) != 0 || ::stat(path.c_str(), &named) != 0) return false;
    return mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

}  // namespace

File::File(File && other) noexcept : fd_(other.fd_), name_(std::move(other.name_)) { other.fd_ = -1; }

File & File::operator=(File && other) noexcept {
    if (this != &other) {
        close();
        fd_ = other.fd_;
        name_ = std::move(other.name_);
        other.fd_ = -1;
    }
    return *this;
}

void File::close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

bool Stamp::operator==(const Stamp & other) const {
    return device == other.device && inode == other.inode && bytes == other.bytes && modified_ns == other.modified_ns;
}

std::string Stamp::text() const {
    return std::to_string(device) + ":" + std::to_string(inode) + ":" + std::to_string(bytes) + ":" +
           std::to_string(modified_ns);
}

bool fail(std::string & error, const std::string & file, const std::string & what) {
    error = file + ": " + what;
    return false;
}

bool fail_system(std::string & error, const std::string & file, const std::string & what) {
    return fail(error, file, what + ": " + std::strerror(errno));
}

bool open_to_read(const std::string & path, File & file, std::string & error) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail_system(error, path, "cannot be opened");
    file = File(fd, path);
    struct stat status;
    if (fstat(fd, &status) != 0) return fail_system(error, path, "cannot be examined");
    if (!S_ISREG(status.st_mode)) return fail(error, path, "is no regular file");
    return true;
}

bool open_to_write(const std::string & path, bool wait, File & file, std::string & error) {
    for (;;) {
        const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) return fail_system(error, path, "cannot be written");
        file = File(fd, path);
        if (flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB)) != 0) {
            if (errno == EINTR) continue;
            if (errno == EWOULDBLOCK) return fail(error, path, "is being written by another process");
            return fail_system(error, path, "cannot be locked");
        }
        if (still_named(file, path)) return true;
    }
}

bool stamp(const File & file, Stamp & stamp, std::string & error) {
    struct stat status;
    if (fstat(file.fd(), &status) != 0) return fail_system(error, file.name(), "cannot be examined");
    stamp.device = static_cast<uint64_t>(status.st_dev);
    stamp.inode = static_cast<uint64_t>(status.st_ino);
    stamp.bytes = static_cast<uint64_t>(status.st_size);
#ifdef __APPLE__
    const timespec & time = status.st_mtimespec;
#else
    const timespec & time = status.st_mtim;
#endif
    stamp.modified_ns = static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
    return true;
}

bool read_at(const File & file, uint64_t offset, void * data, size_t size, std::string & error) {
    auto * at = static_cast<uint8_t *>(data);
    for (size_t done = 0; done < size;) {
        const ssize_t n = pread(file.fd(), at + done, size - done, static_cast<off_t>(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_system(error, file.name(), "cannot be read at byte " + std::to_string(offset + done));
        if (n == 0) return fail(error, file.name(), "ends at byte " + std::to_string(offset + done) + ", too early");
        done += static_cast<size_t>(n);
    }
    return true;
}

bool write_at(const File & file, uint64_t offset, const void * data, size_t size, std::string & error) {
    const auto * at = static_cast<const uint8_t *>(data);
    for (size_t done = 0; done < size;) {
        const ssize_t n = pwrite(file.fd(), at + done, size - done, static_cast<off_t>(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return fail_system(error, file.name(), "cannot be written at byte " + std::to_string(offset + done));
        done += static_cast<size_t>(n);
    }
    return true;
}

bool resize(const File & file, uint64_t bytes, std::string & error) {
    if (ftruncate(file.fd(), static_cast<off_t>(bytes)) == 0) return true;
    return fail_system(error, file.name(), "cannot be made " + std::to_string(bytes) + " bytes long");
}

bool reserve(const File & file, uint64_t bytes, std::string & error) {
    struct stat status;
    if (fstat(file.fd(), &status) != 0) return fail_system(error, file.name(), "cannot be examined");
    const uint64_t has = static_cast<uint64_t>(status.st_blocks) * 512, free = free_bytes(file.name());
    const uint64_t needs = bytes > has ? bytes - has : 0;
    if (needs > free) {
        return fail(error, file.name(),
                    "needs " + gigabytes(needs) + " of free space, but only " + gigabytes(free) + " are free there");
    }
    if (!resize(file, bytes, error)) return false;
#ifdef __linux__
    // Not every file system can; then only a full disk is an error, when it comes to that.
    if (fallocate(file.fd(), 0, 0, static_cast<off_t>(bytes)) == 0 || errno != ENOSPC) return true;
    return fail_system(error, file.name(), "needs " + gigabytes(needs) + " of free space");
#else
    return true;
#endif
}

bool sync(const File & file, std::string & error) {
    if (fsync(file.fd()) == 0) return true;
    return fail_system(error, file.name(), "could not be brought to the drive");
}

void forget(const File & file) {
#ifdef __linux__
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
#else
    (void) file;
#endif
}

bool copy(const File & from, uint64_t from_at, const File & to, uint64_t to_at, uint64_t size, std::string & error) {
    uint64_t done = copy_in_kernel(from, from_at, to, to_at, size);
    std::vector<uint8_t> buffer(static_cast<size_t>(std::min<uint64_t>(size - done, kCopyChunk)));
    while (done < size) {
        const size_t n = static_cast<size_t>(std::min<uint64_t>(size - done, buffer.size()));
        if (!read_at(from, from_at + done, buffer.data(), n, error)) return false;
        if (!write_at(to, to_at + done, buffer.data(), n, error)) return false;
        done += n;
    }
    return true;
}

bool sync_directory_of(const std::string & path, std::string & error) {
    const std::string directory = directory_of(path);
    const File handle(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), directory);
    if (handle.fd() < 0) return fail_system(error, directory, "cannot be opened");
    // Some file systems know no fsync of a directory; nothing more can be done there.
    if (fsync(handle.fd()) != 0 && errno != EINVAL)
        return fail_system(error, directory, "could not be brought to the drive");
    return true;
}

bool replace(const std::string & from, const std::string & to, std::string & error) {
    if (std::rename(from.c_str(), to.c_str()) != 0) return fail_system(error, to, "cannot be put in place");
    return sync_directory_of(to, error);
}

bool write_whole(const std::string & path, const std::string & text, std::string & error) {
    const std::string part = path + ".new";
    File file;
    if (!open_to_write(part, true, file, error)) return false;
    return resize(file, 0, error) && write_at(file, 0, text.data(), text.size(), error) && sync(file, error) &&
           replace(part, path, error);
}

std::string read_whole(const std::string & path) {
    File file;
    Stamp size;
    std::string error;
    if (!open_to_read(path, file, error) || !stamp(file, size, error) || size.bytes > kMostWhole) return {};
    std::string text(static_cast<size_t>(size.bytes), '\0');
    return read_at(file, 0, text.data(), text.size(), error) ? text : std::string();
}

bool exists(const std::string & path) { return access(path.c_str(), F_OK) == 0; }

bool same_file(const std::string & one, const std::string & other) {
    struct stat a, b;
    if (::stat(one.c_str(), &a) != 0 || ::stat(other.c_str(), &b) != 0) return false;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace expertstream::disk
