// The page of counters and the trace, as another process sees them.
#include "../src/stats.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "../src/text.hpp"
#include "check.hpp"
#include "temporary.hpp"

using namespace expertstream;

namespace {

std::string bytes_of(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

uint64_t u64_at(const std::string & bytes, size_t offset) {
    uint64_t value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

}  // namespace

// drivetrain.engines.expertstream.page reads these very bytes.
TEST(the_layout_is_the_contract) {
    Folder folder;
    std::string error;
    const auto stats = Stats::open(folder / "page", error);
    CHECK_EQ(error, "");
    Page & page = stats->page();
    std::atomic<uint64_t> * fields[] = {&page.experts,    &page.expert_bytes, &page.budget,     &page.resident,
                                        &page.least,      &page.most,         &page.hits,       &page.misses,
                                        &page.reads,      &page.read_bytes,   &page.read_ns,    &page.wait_ns,
                                        &page.compute_ns, &page.tokens,       &page.passes,     &page.evictions,
                                        &page.failures,   &page.retries,      &page.crc_errors, &page.abort_below};
    uint64_t value = 1;
    for (auto * field : fields) {
        *field = value++;
    }
    page.layer_hits[0] = 100;
    page.layer_hits[kMaxLayers - 1] = 101;
    page.layer_misses[0] = 102;
    page.layer_misses[kMaxLayers - 1] = 103;
    std::strcpy(page.reader, "threads direct");
    std::strcpy(page.kernel, "avx2");
    const std::string bytes = bytes_of(folder / "page");
    CHECK_EQ(bytes.size(), 9024);
    CHECK_EQ(bytes.substr(0, 8), "DRTPXE01");
    CHECK_EQ(u64_at(bytes, 8), getpid());
    CHECK(u64_at(bytes, 16) > 1'000'000'000'000'000'000);  // nanoseconds since 1970
    for (size_t i = 0; i < std::size(fields); ++i) {
        CHECK_EQ(u64_at(bytes, 24 + 8 * i), i + 1);
    }
    CHECK_EQ(bytes.substr(704, 15), std::string("threads direct\0", 15));
    CHECK_EQ(bytes.substr(768, 5), std::string("avx2\0", 5));
    CHECK_EQ(u64_at(bytes, 832), 100);
    CHECK_EQ(u64_at(bytes, 4920), 101);
    CHECK_EQ(u64_at(bytes, 4928), 102);
    CHECK_EQ(u64_at(bytes, 9016), 103);
}

TEST(only_its_owner_may_read_it) {
    Folder folder;
    std::string error;
    CHECK(Stats::open(folder / "page", error) != nullptr);
    struct stat status{};
    CHECK_EQ(stat((folder / "page").c_str(), &status), 0);
    CHECK_EQ(status.st_mode & 0777, 0600);
}

TEST(a_page_of_an_earlier_process_begins_anew) {
    Folder folder;
    std::string error;
    {
        const auto earlier = Stats::open(folder / "page", error);
        earlier->page().hits = 7;
        earlier->page().abort_below = 9;
        earlier->fail("the drive is gone");
    }
    const auto stats = Stats::open(folder / "page", error);
    CHECK_EQ(stats->page().hits.load(), 0);
    CHECK_EQ(stats->page().abort_below.load(), 0);
    CHECK_EQ(stats->page().error, "");
}

TEST(the_other_side_writes_into_the_same_page) {
    Folder folder;
    std::string error;
    const auto stats = Stats::open(folder / "page", error);
    const int fd = open((folder / "page").c_str(), O_RDWR);
    void * map = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    CHECK(map != MAP_FAILED);
    static_cast<Page *>(map)->abort_below = 12;
    CHECK_EQ(stats->page().abort_below.load(), 12);
    stats->page().tokens = 3;
    CHECK_EQ(static_cast<Page *>(map)->tokens.load(), 3);
    munmap(map, sizeof(Page));
}

TEST(without_a_path_the_page_is_private) {
    std::string error;
    const auto stats = Stats::open("", error);
    CHECK(stats != nullptr);
    CHECK_EQ(stats->page().magic, kPageMagic);
}

TEST(what_cannot_be_a_page_is_an_error_that_names_it) {
    Folder folder;
    std::string error;
    CHECK(Stats::open(folder.path, error) == nullptr);
    CHECK_EQ(error, "cannot open the page of counters " + folder.path + ": Is a directory");
    CHECK(Stats::open(folder / "none/page", error) == nullptr);
    CHECK_EQ(error, "cannot open the page of counters " + folder / "none/page" + ": No such file or directory");
    CHECK_EQ(symlink("/etc/passwd", (folder / "link").c_str()), 0);
    CHECK(Stats::open(folder / "link", error) == nullptr);
    CHECK_EQ(mkfifo((folder / "page").c_str(), 0600), 0);
    CHECK(Stats::open(folder / "page", error) == nullptr);
    CHECK_EQ(error, "the page of counters " + folder / "page" + " is not a regular file");
}

TEST(a_failure_is_counted_and_told_and_cut_between_characters) {
    std::string error;
    const auto stats = Stats::open("", error);
    stats->fail("short");
    CHECK_EQ(stats->page().error, "short");
    CHECK_EQ(stats->page().error_seq.load(), 2);
    stats->fail(std::string(510, 'x') + "é and more");
    CHECK_EQ(stats->page().error, std::string(510, 'x'));
    stats->fail("short");
    CHECK_EQ(stats->page().error, "short");
    CHECK_EQ(stats->page().error[6], 0);
    CHECK_EQ(stats->page().failures.load(), 3);
}

TEST(failures_of_several_threads_leave_the_sequence_even) {
    std::string error;
    const auto stats = Stats::open("", error);
    std::vector<std::thread> threads;
    for (char letter : {'a', 'b', 'c'}) {
        threads.emplace_back([&stats, letter] {
            for (int i = 0; i < 500; ++i) {
                stats->fail(std::string(100, letter));
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    CHECK_EQ(stats->page().error_seq.load(), 3000);
    CHECK_EQ(stats->page().failures.load(), 1500);
    CHECK_EQ(stats->page().error, std::string(100, stats->page().error[0]));
}

TEST(a_text_is_cut_between_characters) {
    char exact[4], less[5];
    write_text(exact, sizeof exact, "a\u00f6");
    write_text(less, sizeof less, "a\u00f6\u20ac");
    CHECK_EQ(exact, "a\u00f6");
    CHECK_EQ(less, "a\u00f6");
}

TEST(a_trace_tells_what_was_asked_for) {
    Folder folder;
    std::string error;
    {
        const auto stats = Stats::open("", error);
        stats->trace(0, nullptr, 0);  // no trace yet: nothing happens
        CHECK(stats->trace_to(folder / "trace", 2, 300, error));
        const uint32_t first[] = {1, 299, 3}, second[] = {7};
        stats->trace(0, first, 3);
        stats->trace(1, second, 1);
    }
    const std::string expected(
        "DRTTRC01\x02\0\0\0\x2c\x01\0\0"
        "\0\0\x03\0\x01\0\x2b\x01\x03\0"
        "\x01\0\x01\0\x07\0",
        32);
    CHECK(bytes_of(folder / "trace") == expected);
}

TEST(a_long_record_becomes_several) {
    Folder folder;
    std::string error;
    {
        const auto stats = Stats::open("", error);
        CHECK(stats->trace_to(folder / "trace", 1, 2000, error));
        std::vector<uint32_t> experts(1500, 5);
        stats->trace(0, experts.data(), 1500);
    }
    const std::string bytes = bytes_of(folder / "trace");
    CHECK_EQ(bytes.size(), 16 + 2 * (2 + 1024) + 2 * (2 + 476));
    CHECK_EQ(bytes.substr(16, 4), std::string("\0\0\0\x04", 4));
    CHECK_EQ(bytes.substr(16 + 2 * 1026, 4), std::string("\0\0\xdc\x01", 4));
}

TEST(a_trace_that_cannot_be_written_is_an_error_not_a_crash) {
    std::string error;
    const auto stats = Stats::open("", error);
    CHECK(!stats->trace_to("/none/trace", 1, 2, error));
    CHECK_EQ(error, "cannot write the trace /none/trace: No such file or directory");
    CHECK(!stats->trace_to("/dev/full", 1, 2, error));
    CHECK_EQ(error, "cannot write the trace /dev/full: No space left on device");
    const uint32_t expert = 0;
    stats->trace(0, &expert, 1);
}
