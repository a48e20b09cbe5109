// The probes measure something, on any machine; how much is the machine's affair.
#include "../src/probe.hpp"

#include <cstdlib>

#include "../src/api.h"
#include "check.hpp"
#include "test_file.hpp"

using namespace expertstream;

namespace {

double probed(const std::string & path, const char * io, int direct, std::string & error) {
    double rate = 0;
    char reason[256] = "";
    if (es_probe_drive(path.c_str(), io, direct, 4, 64 * 1024, 5, &rate, reason, sizeof reason) != 0) error = reason;
    return rate;
}

}  // namespace

TEST(the_drive_is_measured_in_every_way) {
    const TestFile file(4 << 20);
    for (const char * io : {"threads", "uring", "auto"}) {
        for (const int direct : {0, 1}) {
            std::string error;
            CHECK(probed(file.path, io, direct, error) > 0);
            CHECK_EQ(error, "");
        }
    }
}

TEST(a_file_smaller_than_a_piece_is_measured_too) {
    const TestFile file(10000);
    std::string error;
    CHECK(probed(file.path, "threads", 1, error) > 0);
    CHECK_EQ(error, "");
}

TEST(a_missing_file_is_named) {
    std::string error;
    probed("/nowhere/model.gguf", "auto", 1, error);
    CHECK_EQ(error, "/nowhere/model.gguf: No such file or directory");
}

TEST(an_empty_file_is_refused) {
    const TestFile file(0);
    std::string error;
    probed(file.path, "auto", 1, error);
    CHECK_EQ(error, file.path + ": not a file with anything in it");
}

TEST(one_of_the_two_ways_is_faster) {
    const TestFile file(4 << 20);
    Index index;
    std::string error;
    CHECK(index_for_probe(file.path, index, error));
    CHECK(faster_io(index, {}) != Io::automatic);
}

TEST(buffered_reads_are_for_threads) {
    const TestFile file(4 << 20);
    Index index;
    std::string error;
    CHECK(index_for_probe(file.path, index, error));
    ReaderOptions options;
    options.direct = false;
    CHECK_EQ(faster_io(index, options), Io::threads);
}

TEST(memory_is_measured) {
    CHECK(es_probe_memory(1, 0) > 0);
    CHECK(es_probe_memory(2, 0) > 0);
}
