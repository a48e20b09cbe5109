// A file for a test, with contents that tell every byte from its neighbours; gone at the end.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "temporary.hpp"

struct TestFile {
    std::string path = temporary_template();
    std::vector<uint8_t> bytes;

    explicit TestFile(size_t size) : bytes(size) {
        uint64_t state = size;
        for (uint8_t & byte : bytes) byte = static_cast<uint8_t>((state = state * 6364136223846793005 + 1) >> 56);
        const int fd = mkstemp(path.data());
        if (fd < 0) throw std::runtime_error("no temporary file");
        write_to(fd);
    }
    ~TestFile() { unlink(path.c_str()); }
    TestFile(const TestFile &) = delete;
    TestFile & operator=(const TestFile &) = delete;

    // The same bytes in a new file under the same name.
    void replace() const {
        const std::string other = path + "-new";
        write_to(open(other.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600));
        if (rename(other.c_str(), path.c_str()) != 0) throw std::runtime_error("cannot rename");
    }

    // As if somebody had written to it at another time.
    void touch() const {
        const timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
        if (utimensat(AT_FDCWD, path.c_str(), times, 0) != 0) throw std::runtime_error("cannot set the time");
    }

  private:
    void write_to(int fd) const {
        size_t done = 0;
        while (done < bytes.size()) {
            const ssize_t wrote = write(fd, bytes.data() + done, bytes.size() - done);
            if (wrote <= 0) throw std::runtime_error("cannot write a temporary file");
            done += static_cast<size_t>(wrote);
        }
        close(fd);
    }
};
