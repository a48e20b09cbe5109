// Runs LLVMFuzzerTestOneInput without libFuzzer: `fuzz_index SECONDS CORPUS [SEED]` changes the corpus at random for
// that long, `fuzz_index FILE…` runs those inputs once. Compiled with CXXFLAGS=-fsanitize-coverage=trace-pc, inputs that
// reach new code are kept and changed further, and at the end stand in CORPUS if KEEP=1. A crash leaves its input in
// crash-input.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#if defined(__clang__)
#define UNSEEN __attribute__((no_sanitize("coverage")))
#else
#define UNSEEN __attribute__((no_sanitize_coverage))
#endif

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);

using Bytes = std::vector<uint8_t>;

namespace {

constexpr size_t kLongest = 64u << 10, kMostKept = 4096;

uint8_t seen[1 << 16];
bool is_new = false;

}  // namespace

extern "C" UNSEEN void __sanitizer_cov_trace_pc() {
    const auto at = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
    uint8_t & mark = seen[(at ^ at >> 16) & 0xffff];
    is_new = is_new || mark == 0;
    mark = 1;
}

namespace {

UNSEEN Bytes read_file(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

UNSEEN void write_file(const std::string & path, const Bytes & bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char *>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

const Bytes * running = nullptr;

UNSEEN void save_crash() {
    if (running != nullptr) write_file("crash-input", *running);
}

using Random = std::mt19937_64;

UNSEEN size_t below(Random & random, size_t end) { return end == 0 ? 0 : static_cast<size_t>(random() % end); }

// A number that is worth trying somewhere: near a power of two, small, or with all bits set.
UNSEEN uint64_t number(Random & random) {
    switch (random() % 4) {
        case 0: return random() % 17;
        case 1: return (uint64_t{1} << random() % 64) + random() % 3 - 1;
        case 2: return ~uint64_t{0} - random() % 64;
        default: return random();
    }
}

UNSEEN void change(Bytes & bytes, const Bytes & other, Random & random) {
    const size_t at = below(random, bytes.size()), left = bytes.size() - at;
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 8) {
        case 0:
            if (left > 0) bytes[at] ^= static_cast<uint8_t>(1u << random() % 8);
            break;
        case 1:
            if (left > 0) bytes[at] = static_cast<uint8_t>(random());
            break;
        case 2:
        case 3: {
            const uint64_t value = number(random);
            if (left > 0) std::memcpy(bytes.data() + at, &value, std::min<size_t>(left, size_t{1} << random() % 4));
            break;
        }
        case 4:
            bytes.erase(place, place + static_cast<std::ptrdiff_t>(below(random, std::min<size_t>(left, 64) + 1)));
            break;
        case 5: bytes.insert(place, 1 + below(random, 16), static_cast<uint8_t>(random())); break;
        case 6: bytes.resize(at); break;
        default: {
            const size_t from = below(random, other.size()), size = std::min(below(random, 200), other.size() - from);
            const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
            bytes.insert(place, begin, begin + static_cast<std::ptrdiff_t>(size));
        }
    }
}

UNSEEN bool run(const Bytes & bytes) {
    running = &bytes;
    is_new = false;
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    running = nullptr;
    return is_new;
}

UNSEEN std::vector<Bytes> load(const std::string & folder) {
    std::vector<std::string> paths;
    for (const auto & entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    std::vector<Bytes> corpus;
    for (const std::string & path : paths) corpus.push_back(read_file(path));
    return corpus;
}

UNSEEN int fuzz(unsigned seconds, const std::string & folder, uint64_t seed) {
    std::vector<Bytes> corpus = load(folder);
    if (corpus.empty()) corpus.push_back({'G', 'G', 'U', 'F', 3, 0, 0, 0});
    const size_t given = corpus.size();
    for (const Bytes & bytes : corpus) run(bytes);
    Random random(seed);
    uint64_t count = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (std::chrono::steady_clock::now() < end) {
        for (int i = 0; i < 100; ++i, ++count) {
            Bytes bytes = corpus[below(random, corpus.size())];
            for (uint64_t changes = 1 + random() % 6; changes > 0; --changes)
                change(bytes, corpus[below(random, corpus.size())], random);
            bytes.resize(std::min(bytes.size(), kLongest));
            if (run(bytes) && corpus.size() < kMostKept) corpus.push_back(std::move(bytes));
        }
    }
    const char * keep = std::getenv("KEEP");
    for (size_t i = given; keep != nullptr && i < corpus.size(); ++i)
        write_file(folder + "/found-" + std::to_string(i), corpus[i]);
    const auto reached = std::count(std::begin(seen), std::end(seen), 1);
    std::printf("%llu inputs in %u s, %zu of them kept, %zd places reached, seed %llu\n",
                static_cast<unsigned long long>(count), seconds, corpus.size() - given, static_cast<ssize_t>(reached),
                static_cast<unsigned long long>(seed));
    return 0;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

int main(int argc, char ** argv) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(save_crash);
#endif
    const unsigned seconds = argc > 2 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 0;
    if (seconds > 0) return fuzz(seconds, argv[2], argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
    for (int i = 1; i < argc; ++i) run(read_file(argv[i]));
    return 0;
}
