// What the reader promises: the right bytes in the right place, in the right order, or a clear reason.
#include "../src/reader.hpp"

#include <array>
#include <cstring>
#include <memory>

#include "check.hpp"
#include "faulty_calls.hpp"
#include "test_file.hpp"

using namespace expertstream;
using faulty::drive;
using faulty::Read;

namespace {

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

ReaderOptions options(Io io, unsigned depth = 2, uint64_t piece = 16 * kPage) {
    ReaderOptions result;
    result.io = io;
    result.depth = depth;
    result.piece = piece;
    result.stall_ms = 0;
    return result;
}

Index index_of(const TestFile & file) {
    Index index;
    index.files = {file.path};
    index.file_bytes = {file.bytes.size()};
    return index;
}

std::unique_ptr<Reader> opened(const TestFile & file, const ReaderOptions & options) {
    std::string error;
    auto reader = open_reader(index_of(file), options, faulty::calls(), error);
    CHECK_EQ(error, "");
    return reader;
}

uint32_t settle(Reader & reader, Load & load) {
    for (uint64_t seen = reader.settled(); load.state.load() == Load::waiting;) seen = reader.wait(seen);
    return load.state.load();
}

uint32_t read(Reader & reader, Load & load) {
    uint64_t seen = reader.settled();
    reader.submit(load, true);
    while (load.state.load(std::memory_order_acquire) == Load::waiting) seen = reader.wait(seen);
    return load.state.load();
}

// Lets go of reads that hang, even when a check fails: the reader waits for them at its end.
struct Held {
    Held() { drive().hold(); }
    ~Held() { drive().release(); }
};

}  // namespace

TEST(an_unaligned_run_lands_at_its_place_in_the_page) {
    drive().reset();
    const TestFile file(1 << 20);
    for (const Io io : kBoth) {
        const auto reader = opened(file, options(io));
        for (const auto & [offset, size] : {std::pair{0, 1}, {4096, 4096}, {4095, 2}, {12345, 300000}, {1, 999999}}) {
            Expert expert(static_cast<uint64_t>(offset), static_cast<uint64_t>(size));
            CHECK_EQ(read(*reader, expert.load), Load::ready);
            CHECK(expert.holds(file));
            CHECK_EQ(expert.load.left.load(), 0u);
        }
    }
}

TEST(the_end_of_a_file_may_come_inside_a_page) {
    drive().reset();
    const TestFile file(5 * kPage + 77);
    for (const Io io : kBoth) {
        const auto reader = opened(file, options(io));
        Expert expert(kPage + 5, 4 * kPage + 72);
        CHECK_EQ(read(*reader, expert.load), Load::ready);
        CHECK(expert.holds(file));
    }
}

TEST(several_pieces_go_to_one_slot) {
    drive().reset();
    const TestFile file(64 * kPage);
    for (const Io io : kBoth) {
        const auto reader = opened(file, options(io, 3, 2 * kPage));
        const Slot slot(32 * kPage);
        const std::array<Piece, 3> pieces{
            {{0, 100, 5 * kPage, 0}, {0, 40 * kPage, 3 * kPage, 8 * kPage}, {0, 9, 9, 16 * kPage}}};
        Load load;
        load.pieces = pieces.data();
        load.count = 3;
        load.slot = slot.data;
        CHECK_EQ(read(*reader, load), Load::ready);
        for (const Piece & piece : pieces) {
            CHECK(std::memcmp(slot.data + piece.at + piece.offset % kPage, &file.bytes[piece.offset], piece.size) == 0);
        }
    }
}

TEST(a_long_run_is_read_in_parts_of_whole_pages) {
    drive().reset();
    const TestFile file(64 * kPage);
    for (const Io io : kBoth) {
        const auto reader = opened(file, options(io, 1, 4 * kPage));
        Expert expert(10, 12 * kPage - 10);
        CHECK_EQ(read(*reader, expert.load), Load::ready);
        CHECK(drive().asked == (std::vector<uint64_t>{0, 4 * kPage, 8 * kPage}));
        CHECK_EQ(reader->counters().reads, 3u);
        CHECK_EQ(reader->counters().bytes, 12 * kPage);
        CHECK_EQ(reader->counters().retries, 0u);
        CHECK(reader->counters().busy_ns > 0);
        drive().reset();
    }
}

TEST(urgent_loads_go_before_the_others) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(64 * kPage);
        const auto reader = opened(file, options(io, 1));
        Expert first(0, 10), second(kPage, 10), urgent(2 * kPage, 10);
        {
            const Held held;
            reader->submit(first.load, false);
            drive().wait_for_reads(1);
            reader->submit(second.load, false);
            reader->submit(urgent.load, true);
        }
        CHECK_EQ(settle(*reader, second.load), Load::ready);
        CHECK(drive().asked == (std::vector<uint64_t>{0, 2 * kPage, kPage}));
    }
}

TEST(many_loads_at_once_all_come) {
    drive().reset();
    const TestFile file(3 << 20);
    for (const Io io : kBoth) {
        const auto reader = opened(file, options(io, 7, 3 * kPage));
        std::vector<std::unique_ptr<Expert>> experts;
        for (uint64_t i = 0; i < 300; ++i) {
            experts.push_back(std::make_unique<Expert>(i * 9001, 1 + i * 1237 % 100000));
            reader->submit(experts.back()->load, i % 3 == 0);
        }
        for (uint64_t seen = 0; seen < 300;) seen = reader->wait(seen);
        for (const auto & expert : experts) {
            CHECK_EQ(expert->load.state.load(), Load::ready);
            CHECK(expert->holds(file));
        }
        CHECK_EQ(reader->settled(), 300u);
    }
}

TEST(a_load_without_bytes_is_ready_at_once) {
    drive().reset();
    const TestFile file(kPage);
    for (const Io io : kBoth) {
        const auto reader = opened(file, options(io));
        Load load;
        reader->submit(load, true);
        CHECK_EQ(load.state.load(), Load::ready);
        CHECK_EQ(reader->wait(0), 1u);
    }
}

TEST(an_interrupted_or_once_failed_read_is_tried_again) {
    for (const Io io : kBoth) {
        for (const int number : {EINTR, EAGAIN, EIO}) {
            drive().reset();
            const TestFile file(8 * kPage);
            const auto reader = opened(file, options(io, 1));
            int left = 2;
            drive().fail_with([&](const Read & read) { return left-- > 0 ? -number : read.result; });
            Expert expert(3, 2 * kPage);
            CHECK_EQ(read(*reader, expert.load), Load::ready);
            CHECK(expert.holds(file));
            CHECK_EQ(reader->counters().retries, number == EINTR ? 0u : 2u);
        }
    }
}

TEST(a_read_that_always_fails_says_where) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(32 * kPage);
        const auto reader = opened(file, options(io, 2, 4 * kPage));
        drive().fail_with([](const Read & read) { return read.offset == 8 * kPage ? -EIO : read.result; });
        Expert bad(100, 16 * kPage - 100), good(20 * kPage, kPage);
        CHECK_EQ(read(*reader, bad.load), Load::failed);
        CHECK_EQ(bad.load.error, file.path + ": read error at byte 32768: Input/output error");
        CHECK_EQ(bad.load.left.load(), 0u);
        CHECK_EQ(reader->counters().failures, 1u);
        CHECK_EQ(read(*reader, good.load), Load::ready);
        drive().fail_with(nullptr);
        CHECK_EQ(read(*reader, bad.load), Load::ready);  // the same load again
        CHECK(bad.holds(file));
        CHECK_EQ(bad.load.error, "");
    }
}

TEST(a_failed_load_is_not_read_further) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(32 * kPage);
        const auto reader = opened(file, options(io, 1, kPage));
        drive().fail_with([](const Read &) { return -ENXIO; });
        Expert expert(0, 16 * kPage);
        CHECK_EQ(read(*reader, expert.load), Load::failed);
        CHECK_EQ(drive().asked.size(), 1u);
        CHECK_EQ(expert.load.error, file.path + ": read error at byte 0: No such device or address");
    }
}

TEST(short_reads_are_continued) {
    for (const Io io : kBoth) {
        for (const ssize_t most : {4096, 5000, 12288}) {
            drive().reset();
            const TestFile file(32 * kPage + 11);
            const auto reader = opened(file, options(io));
            drive().fail_with([=](const Read & read) { return std::min(read.result, most); });
            Expert expert(7, 32 * kPage);
            CHECK_EQ(read(*reader, expert.load), Load::ready);
            CHECK(expert.holds(file));
        }
    }
}

TEST(a_drive_that_never_gives_a_page_is_given_up) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(8 * kPage);
        const auto reader = opened(file, options(io));
        drive().fail_with([](const Read & read) { return std::min<ssize_t>(read.result, 512); });
        Expert expert(0, 2 * kPage);
        CHECK_EQ(read(*reader, expert.load), Load::failed);
        CHECK_EQ(expert.load.error, file.path + ": read error at byte 0: the drive gives less than a page");
    }
}

TEST(without_direct_opens_it_reads_buffered) {
    for (const Io io : kBoth) {
        drive().reset();
        drive().refuses_direct_open = true;
        const TestFile file(8 * kPage);
        const auto reader = opened(file, options(io));
        CHECK(std::strstr(reader->name(), " buffered") != nullptr);
        Expert expert(99, 5 * kPage);
        CHECK_EQ(read(*reader, expert.load), Load::ready);
        CHECK(expert.holds(file));
    }
}

TEST(a_file_that_opens_direct_but_does_not_read_so_is_read_buffered) {
    for (const Io io : kBoth) {
        drive().reset();
        drive().fail_with([](const Read & read) { return faulty::is_direct(read.fd) ? -EINVAL : read.result; });
        const TestFile file(8 * kPage);
        const auto reader = opened(file, options(io, 2, 2 * kPage));
        Expert expert(99, 6 * kPage);
        CHECK_EQ(read(*reader, expert.load), Load::ready);
        CHECK(expert.holds(file));
        CHECK(std::strstr(reader->name(), " buffered") != nullptr);
    }
}

TEST(a_ring_that_is_refused_becomes_threads) {
    drive().reset();
    drive().refuses_ring = true;
    const TestFile file(8 * kPage);
    const auto reader = opened(file, options(Io::uring));
    CHECK_EQ(std::string(reader->name()).substr(0, 8), "threads ");
    Expert expert(99, 6 * kPage);
    CHECK_EQ(read(*reader, expert.load), Load::ready);
}

TEST(a_read_that_hangs_fails_its_load_but_keeps_the_slot) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(8 * kPage);
        ReaderOptions impatient = options(io, 2);
        impatient.stall_ms = 20;
        const auto reader = opened(file, impatient);
        Expert expert(kPage + 1, 10);
        uint64_t seen = 0;
        {
            const Held held;
            reader->submit(expert.load, true);
            seen = reader->wait(0);
            CHECK_EQ(expert.load.state.load(std::memory_order_acquire), Load::failed);
            CHECK_EQ(expert.load.error, file.path + ": read at byte 4096: the drive has not answered for 0.02 s");
            CHECK_EQ(expert.load.left.load(), 1u);
        }
        CHECK_EQ(reader->wait(seen), 2u);  // counted again: the slot is free now
        CHECK_EQ(expert.load.left.load(std::memory_order_acquire), 0u);
        CHECK_EQ(expert.load.state.load(), Load::failed);
        CHECK_EQ(reader->counters().failures, 1u);
    }
}

TEST(loads_that_nobody_is_left_to_read_fail_too) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(8 * kPage);
        ReaderOptions impatient = options(io, 1);
        impatient.stall_ms = 20;
        const auto reader = opened(file, impatient);
        Expert hangs(kPage, 10), waits(0, 10);
        {
            const Held held;
            reader->submit(hangs.load, true);
            drive().wait_for_reads(1);
            reader->submit(waits.load, true);
            CHECK_EQ(settle(*reader, waits.load), Load::failed);
            CHECK_EQ(waits.load.error, file.path + ": read at byte 4096: the drive has not answered for 0.02 s");
            CHECK_EQ(waits.load.left.load(), 0u);
            CHECK_EQ(hangs.load.left.load(), 1u);
        }
    }
}

TEST(a_drive_that_answers_again_is_read_again) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(8 * kPage);
        ReaderOptions impatient = options(io, 1);
        impatient.stall_ms = 20;
        const auto reader = opened(file, impatient);
        Expert expert(5, 3 * kPage);
        uint64_t seen = 0;
        {
            const Held held;
            reader->submit(expert.load, true);
            seen = reader->wait(0);
        }
        while (expert.load.left.load(std::memory_order_acquire) != 0) seen = reader->wait(seen);
        for (int attempt = 0; read(*reader, expert.load) != Load::ready; ++attempt) {  // a busy machine may take 20 ms
            CHECK(attempt < 50);
            while (expert.load.left.load(std::memory_order_acquire) != 0) {}
        }
        CHECK(expert.holds(file));
    }
}

TEST(a_flipped_bit_does_not_match_the_checksum) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(32 * kPage);
        const auto reader = opened(file, options(io, 2, 4 * kPage));
        Expert expert(2 * kPage, 9 * kPage + 5);
        expert.load.checked = true;
        expert.load.crc = crc32c(0, &file.bytes[expert.piece.offset], expert.piece.size);
        CHECK_EQ(read(*reader, expert.load), Load::ready);
        drive().fail_with([](const Read & read) {
            if (read.offset == 2 * kPage) read.to[1000] ^= 16;
            return read.result;
        });
        CHECK_EQ(read(*reader, expert.load), Load::failed);
        CHECK_EQ(expert.load.error, file.path + ": slot at byte 8192 does not match its checksum");
        CHECK_EQ(reader->counters().mismatches, 1u);
        CHECK_EQ(reader->counters().failures, 1u);
    }
}

TEST(the_checksum_is_of_the_piece_alone) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(32 * kPage);
        const auto reader = opened(file, options(io));
        Expert expert(2 * kPage, kPage + 5);
        expert.load.checked = true;
        expert.load.crc = crc32c(0, &file.bytes[expert.piece.offset], expert.piece.size);
        drive().fail_with([](const Read & read) {
            read.to[kPage + 5] ^= 16;  // the first byte after it
            return read.result;
        });
        CHECK_EQ(read(*reader, expert.load), Load::ready);
    }
}

TEST(a_file_that_was_cut_short_has_changed) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(32 * kPage);
        const auto reader = opened(file, options(io));
        CHECK_EQ(truncate(file.path.c_str(), 10 * kPage), 0);
        Expert there(0, 100), gone(20 * kPage, 100);
        for (Expert * expert : {&there, &gone}) {
            CHECK_EQ(read(*reader, expert->load), Load::failed);
            CHECK_EQ(expert->load.error, file.path + ": the file has changed since the model was loaded");
        }
    }
}

TEST(a_file_that_was_written_to_has_changed) {
    drive().reset();
    const TestFile file(8 * kPage);
    const auto reader = opened(file, options(Io::threads));
    Expert expert(0, 100);
    CHECK_EQ(read(*reader, expert.load), Load::ready);
    file.touch();
    CHECK_EQ(read(*reader, expert.load), Load::failed);
    CHECK_EQ(expert.load.error, file.path + ": the file has changed since the model was loaded");
}

TEST(a_file_in_whose_place_another_lies_has_changed) {
    drive().reset();
    const TestFile file(8 * kPage);
    const auto reader = opened(file, options(Io::threads));
    file.replace();
    Expert expert(0, 100);
    CHECK_EQ(read(*reader, expert.load), Load::failed);
    CHECK_EQ(expert.load.error, file.path + ": the file has changed since the model was loaded");
}

TEST(a_file_that_was_only_deleted_is_still_whole) {
    drive().reset();
    const TestFile file(8 * kPage);
    const auto reader = opened(file, options(Io::threads));
    CHECK_EQ(unlink(file.path.c_str()), 0);
    Expert expert(0, 100);
    CHECK_EQ(read(*reader, expert.load), Load::ready);
    CHECK(expert.holds(file));
}

TEST(an_expert_beyond_the_end_of_its_file_is_not_there) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(2 * kPage + 10);
        const auto reader = opened(file, options(io));
        Expert expert(0, 3 * kPage);
        CHECK_EQ(read(*reader, expert.load), Load::failed);
        CHECK_EQ(expert.load.error, file.path + ": the file ends at byte 8202, inside an expert");
    }
}

TEST(a_piece_of_an_unknown_file_is_refused) {
    drive().reset();
    const TestFile file(kPage);
    const auto reader = opened(file, options(Io::threads));
    Expert expert(0, 1);
    expert.piece.file = 1;
    CHECK_EQ(read(*reader, expert.load), Load::failed);
    CHECK_EQ(expert.load.error, "a piece of the expert is in a file that the model does not have");
}

TEST(a_missing_file_is_named) {
    drive().reset();
    Index index;
    index.files = {"/nowhere/model.gguf"};
    std::string error;
    CHECK(Reader::open(index, options(Io::threads), error) == nullptr);
    CHECK_EQ(error, "/nowhere/model.gguf: No such file or directory");
}

TEST(a_file_of_another_size_than_indexed_is_refused) {
    drive().reset();
    const TestFile file(2 * kPage);
    Index index = index_of(file);
    index.file_bytes[0] += 1;
    std::string error;
    CHECK(Reader::open(index, options(Io::threads), error) == nullptr);
    CHECK_EQ(error, file.path + ": the file has changed while the model was being loaded");
}

TEST(what_still_waits_when_the_reader_ends_has_failed) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(8 * kPage);
        Expert first(0, 10), waits(kPage, 10);
        {
            auto reader = opened(file, options(io, 1));
            drive().hold();
            reader->submit(first.load, true);
            drive().wait_for_reads(1);
            reader->submit(waits.load, true);
            std::thread end([&] { reader.reset(); });
            while (waits.load.state.load(std::memory_order_acquire) == Load::waiting) std::this_thread::yield();
            drive().release();
            end.join();
        }
        CHECK_EQ(first.load.state.load(), Load::ready);
        CHECK_EQ(waits.load.state.load(), Load::failed);
        CHECK_EQ(waits.load.error, "the reader is closed");
    }
}

TEST(automatic_picks_a_way_and_reads) {
    drive().reset();
    const TestFile file(1 << 20);
    std::string error;
    const auto reader = Reader::open(index_of(file), options(Io::automatic, 4), error);
    CHECK_EQ(error, "");
    Expert expert(1234, 567890);
    CHECK_EQ(read(*reader, expert.load), Load::ready);
    CHECK(expert.holds(file));
}
