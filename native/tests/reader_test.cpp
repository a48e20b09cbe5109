// What the reader promises: the right bytes in the right place, in the right order, or a clear reason.
#include "reader_bench.hpp"

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
