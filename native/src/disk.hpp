// Files as the index and the container use them: whole reads and writes at an offset, and errors that name the file.
// Private to the library; the experts themselves are read by the Reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF and .jns are read here as little-endian machines lay them out"
#endif

namespace expertstream::disk {

class File {
  public:
    File() = default;
    File(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
    File(File && other) noexcept;
    File & operator=(File && other) noexcept;
    ~File() { close(); }

    int fd() const { return fd_; }
    const std::string & name() const { return name_; }
    void close();

  private:
    int fd_ = -1;
    std::string name_;
};

// What tells one version of a file from another.
struct Stamp {
    uint64_t device = 0, inode = 0, bytes = 0, modified_ns = 0;
    bool operator==(const Stamp & other) const;
    std::string text() const;
};

bool open_to_read(const std::string & path, File & file, std::string & error);
// Opens or makes `path` for one process at a time. With `wait`, waits for another that has it; else that is an error.
bool open_to_write(const std::string & path, bool wait, File & file, std::string & error);

bool stamp(const File & file, Stamp & stamp, std::string & error);
bool read_at(const File & file, uint64_t offset, void * data, size_t size, std::string & error);
bool write_at(const File & file, uint64_t offset, const void * data, size_t size, std::string & error);
bool resize(const File & file, uint64_t bytes, std::string & error);
bool reserve(const File & file, uint64_t bytes, std::string & error);  // makes it that long, and room for all of it
bool sync(const File & file, std::string & error);                     // data and size are on the drive when it returns
void forget(const File & file);  // drops it from the page cache, as far as it is written back

// Copies bytes from one file to another; inside the kernel, or by sharing blocks, where the file system can.
bool copy(const File & from, uint64_t from_at, const File & to, uint64_t to_at, uint64_t size, std::string & error);

// `from` becomes `to`, whole or not at all, also after a power cut.
bool replace(const std::string & from, const std::string & to, std::string & error);
bool sync_directory_of(const std::string & path, std::string & error);

bool write_whole(const std::string & path, const std::string & text, std::string & error);  // atomic
std::string read_whole(const std::string & path);  // empty if there is none; at most 64 MiB

bool exists(const std::string & path);
bool same_file(const std::string & one, const std::string & other);  // whatever they are called

bool fail(std::string & error, const std::string & file, const std::string & what);  // "file: what"; returns false
bool fail_system(std::string & error, const std::string & file, const std::string & what);  // and why, from errno

}  // namespace expertstream::disk
