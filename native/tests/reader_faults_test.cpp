// A drive that fails, hangs, lies or changes under the reader: it is tried again, or told apart and named.
#include "reader_bench.hpp"

namespace {

// Options of a reader that takes a drive for stalled after 20 ms.
ReaderOptions impatient(Io io, unsigned depth) {
    ReaderOptions result = options(io, depth);
    result.stall_ms = 20;
    return result;
}

// An expert of a file that is no longer the one that was opened.
void check_changed(Reader & reader, Expert & expert, const TestFile & file) {
    CHECK_EQ(read(reader, expert.load), Load::failed);
    CHECK_EQ(expert.load.error, file.path + ": the file has changed since the model was loaded");
}

}  // namespace

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

TEST(a_read_that_hangs_fails_its_load_but_keeps_the_slot) {
    for (const Io io : kBoth) {
        drive().reset();
        const TestFile file(8 * kPage);
        const auto reader = opened(file, impatient(io, 2));
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
        const auto reader = opened(file, impatient(io, 1));
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
        const auto reader = opened(file, impatient(io, 1));
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
        check_changed(*reader, there, file);
        check_changed(*reader, gone, file);
    }
}

TEST(a_file_that_was_written_to_has_changed) {
    drive().reset();
    const TestFile file(8 * kPage);
    const auto reader = opened(file, options(Io::threads));
    Expert expert(0, 100);
    CHECK_EQ(read(*reader, expert.load), Load::ready);
    file.touch();
    check_changed(*reader, expert, file);
}

TEST(a_file_in_whose_place_another_lies_has_changed) {
    drive().reset();
    const TestFile file(8 * kPage);
    const auto reader = opened(file, options(Io::threads));
    file.replace();
    Expert expert(0, 100);
    check_changed(*reader, expert, file);
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
