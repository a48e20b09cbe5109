// Writes a page of counters and a trace as the engine would, for tests/native/test_page.py to read: page_writer PAGE
// TRACE. Then waits for a byte on its standard input, and prints the `abort_below` that it finds.
#include <cstdio>
#include <cstring>
#include <iterator>

#include "../src/stats.hpp"

using namespace expertstream;

int main(int count, char ** words) {
    std::string error;
    const auto stats = count == 3 ? Stats::open(words[1], error) : nullptr;
    if (!stats || !stats->trace_to(words[2], 3, 300, error)) {
        std::fprintf(stderr, "%s\n", error.c_str());
        return 1;
    }
    Page & page = stats->page();
    std::atomic<uint64_t> * const fields[] = {&page.experts,    &page.expert_bytes, &page.budget,    &page.resident,
                                              &page.least,      &page.most,         &page.hits,      &page.misses,
                                              &page.reads,      &page.read_bytes,   &page.read_ns,   &page.wait_ns,
                                              &page.compute_ns, &page.tokens,       &page.passes,    &page.evictions,
                                              &page.failures,   &page.retries,      &page.crc_errors};
    for (uint64_t i = 0; i < std::size(fields); ++i) {
        *fields[i] = 101 + i;
    }
    page.layer_hits[0] = 7;
    page.layer_hits[2] = 8;
    page.layer_misses[1] = 9;
    std::strcpy(page.reader, "uring direct");
    std::strcpy(page.kernel, "avx2");
    stats->fail("reading model.gguf at byte 4096: input/output error \xc3\xa9");
    const uint32_t first[] = {1, 299}, second[] = {5};
    stats->trace(0, first, 2);
    stats->trace(2, second, 1);
    std::puts("ready");
    std::fflush(stdout);
    std::getchar();
    std::printf("%llu\n", static_cast<unsigned long long>(page.abort_below.load()));
    return 0;
}
