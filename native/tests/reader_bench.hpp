// A reader on a drive that does what a test says, and experts to be read: what the tests of the reader share.
#pragma once

#include <array>
#include <cstring>
#include <memory>

#include "../src/reader.hpp"
#include "check.hpp"
#include "faulty_calls.hpp"
#include "test_file.hpp"

using namespace expertstream;
using faulty::drive;
using faulty::Read;

constexpr std::array<Io, 2> kBoth{Io::threads, Io::uring};  // the ring may be refused here: then threads twice

struct Slot {
    explicit Slot(size_t bytes) : data(static_cast<uint8_t *>(std::aligned_alloc(kPage, bytes))) {
        std::memset(data, 0xEE, bytes);
    }
    ~Slot() { std::free(data); }
    Slot(const Slot &) = delete;
    Slot & operator=(const Slot &) = delete;
    uint8_t * data;
};

// A load of one run of bytes, with the slot that it goes to.
struct Expert {
    Expert(uint64_t offset, uint64_t size) : slot((size / kPage + 2) * kPage), piece{0, offset, size, 0} {
        load.pieces = &piece;
        load.count = 1;
        load.slot = slot.data;
    }
    bool holds(const TestFile & file) const {
        return std::memcmp(slot.data + piece.offset % kPage, &file.bytes[piece.offset], piece.size) == 0;
    }
    Slot slot;
    Piece piece;
    Load load;
};

inline ReaderOptions options(Io io, unsigned depth = 2, uint64_t piece = 16 * kPage) {
    ReaderOptions result;
    result.io = io;
    result.depth = depth;
    result.piece = piece;
    result.stall_ms = 0;
    return result;
}

inline Index index_of(const TestFile & file) {
    Index index;
    index.files = {file.path};
    index.file_bytes = {file.bytes.size()};
    return index;
}

inline std::unique_ptr<Reader> opened(const TestFile & file, const ReaderOptions & options) {
    std::string error;
    auto reader = open_reader(index_of(file), options, faulty::calls(), error);
    CHECK_EQ(error, "");
    return reader;
}

inline uint32_t settle(Reader & reader, Load & load) {
    for (uint64_t seen = reader.settled(); load.state.load(std::memory_order_acquire) == Load::waiting;)
        seen = reader.wait(seen);
    return load.state.load();
}

inline uint32_t read(Reader & reader, Load & load) {
    reader.submit(load, true);
    return settle(reader, load);
}

// Lets go of reads that hang, even when a check fails: the reader waits for them at its end.
struct Held {
    Held() { drive().hold(); }
    ~Held() { drive().release(); }
};
