// Speed of the kernels, one line per type, activations at once and threads: gigabytes of weights per second and
// thousand millions of multiply-adds per second, best of several short runs. With the path of a library that exports
// ggml (the extension of the wheel; its Python must be preloaded), the host's product of a row and a column stands
// beside, and how many results differ.
//
//     kernels [--host LIBRARY] [--cols N] [--rows N] [--bytes N] [--count N] [--threads N] [--repeat N]
//             [--kernel plain|avx2|avx-vnni|avx512-vnni] [TYPE ...]
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../src/kernels.hpp"
#include "../src/kernels/variants.hpp"

using namespace expertstream;

namespace {

struct Format {
    const char * name;
    uint32_t type;
    uint64_t elements, bytes;
};

constexpr Format kFormats[] = {
    {"Q4_0", kQ4_0, 32, 18},   {"Q8_0", kQ8_0, 32, 34},   {"IQ4_NL", kIQ4_NL, 32, 18}, {"MXFP4", kMXFP4, 32, 17},
    {"Q4_K", kQ4_K, 256, 144}, {"Q5_K", kQ5_K, 256, 176}, {"Q6_K", kQ6_K, 256, 210},   {"IQ4_XS", kIQ4_XS, 256, 136},
};

using VecDot = void (*)(int n, float * sum, size_t, const void * w, size_t, const void * x, size_t, int);

struct Traits {  // of ggml, as its public header has it
    void (*from_float)(const float *, void *, int64_t);
    VecDot vec_dot;
    int vec_dot_type;
    int64_t rows;
};

struct Options {
    std::string host, kernel;
    uint64_t cols = 2048;
    uint32_t rows = 256;  // of one call
    int repeat = 20;
    uint64_t bytes = 128u << 20, slice = 8u << 20;  // of weights in all; read at a time with one activation
    std::vector<uint32_t> counts = {1, 2, 4, 16, 64, 128, 512};
    std::vector<unsigned> threads = {1, 2};
    std::vector<std::string> types;
};

// Random blocks, with scales that stay finite.
std::vector<uint8_t> weights(const Format & format, uint64_t size, std::mt19937 & random) {
    std::vector<uint8_t> all(size);
    for (size_t i = 0; i + 4 <= size; i += 4) {
        const auto bits = static_cast<uint32_t>(random());
        std::memcpy(&all[i], &bits, 4);
    }
    for (size_t block = 0; block < size; block += format.bytes) {
        if (format.type == kMXFP4) all[block] = static_cast<uint8_t>(112 + all[block] % 16);
        const size_t at = format.type == kQ6_K ? 208 : 0,
                     end = format.type == kQ4_K || format.type == kQ5_K ? 4 : at + 2;
        for (size_t i = at; format.type != kMXFP4 && i < end; i += 2)
            all[block + i + 1] = all[block + i + 1] % 16 + 0x18;
    }
    return all;
}

std::vector<uint8_t> activations(const Format & format, uint64_t cols, std::mt19937 & random) {
    const size_t bytes = format.elements == 256 ? 292 : 34, head = format.elements == 256 ? 4 : 2;
    std::vector<uint8_t> all(cols / format.elements * bytes);
    for (size_t block = 0; block < all.size(); block += bytes) {
        for (size_t i = head; i < head + format.elements; ++i)
            all[block + i] = static_cast<uint8_t>(static_cast<int>(random() % 255) - 127);
        const float d = static_cast<float>(random() % 1000) * 1e-4f;
        const uint16_t half = static_cast<uint16_t>(0x2000 + random() % 4096);
        if (head == 4)
            std::memcpy(&all[block], &d, 4);
        else
            std::memcpy(&all[block], &half, 2);
        for (size_t group = 0; head == 4 && group < 16; ++group) {
            int16_t sum = 0;
            for (size_t i = 0; i < 16; ++i)
                sum = static_cast<int16_t>(sum + static_cast<int8_t>(all[block + 4 + 16 * group + i]));
            std::memcpy(&all[block + 260 + 2 * group], &sum, 2);
        }
    }
    return all;
}

// A thread's own matrix, larger than the caches if `big`, and activations.
struct Work {
    Work(const Format & format, const Options & options, uint32_t count, uint64_t size, uint32_t seed)
        : cols(options.cols), row_bytes(options.cols / format.elements * format.bytes), rows(options.rows) {
        std::mt19937 random(seed);
        calls = std::max<uint64_t>(1, size / (row_bytes * rows));
        w = weights(format, calls * rows * row_bytes, random);
        for (uint32_t a = 0; a < count; ++a) bytes.push_back(activations(format, cols, random));
        results.assign(count, std::vector<float>(rows));
        for (uint32_t a = 0; a < count; ++a) {
            x.push_back(bytes[a].data());
            out.push_back(results[a].data());
        }
    }
    uint64_t cols, row_bytes, calls = 0, next = 0;
    uint32_t rows;
    std::vector<uint8_t> w;
    std::vector<std::vector<uint8_t>> bytes;
    std::vector<std::vector<float>> results;
    std::vector<const uint8_t *> x;
    std::vector<float *> out;
};

void run(Multiply kernel, Work & work, const uint8_t * w) {
    kernel(work.cols, w, work.row_bytes, work.rows, work.x.data(), work.out.data(),
           static_cast<uint32_t>(work.x.size()));
}

void run(VecDot dot, Work & work, const uint8_t * w) {
    for (uint32_t r = 0; r < work.rows; ++r)
        for (size_t a = 0; a < work.x.size(); ++a)
            dot(static_cast<int>(work.cols), work.out[a] + r, 0, w + r * work.row_bytes, 0, work.x[a], 0, 1);
}

// A slice of the matrix: short, so that the best of several is one in which nothing else had the processor.
template <class Function>
void run_slice(Function function, Work & work, uint64_t calls) {
    for (uint64_t i = 0; i < calls; ++i, work.next = (work.next + 1) % work.calls)
        run(function, work, work.w.data() + work.next * work.rows * work.row_bytes);
}

// Seconds of the fastest of `repeat` slices of `calls` calls, on all threads.
template <class Function>
double seconds(Function function, std::vector<Work> & works, uint64_t calls, int repeat) {
    double best = 1e30;
    for (int i = 0; i < repeat; ++i) {
        std::atomic<size_t> ready{0};
        const auto begin_together = [&] {
            for (++ready; ready < works.size();) std::this_thread::yield();
        };
        std::vector<std::thread> others;
        for (size_t t = 1; t < works.size(); ++t)
            others.emplace_back([&, t] {
                begin_together();
                run_slice(function, works[t], calls);
            });
        begin_together();
        const auto begin = std::chrono::steady_clock::now();
        run_slice(function, works[0], calls);
        for (std::thread & other : others) other.join();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return best;
}

uint64_t differing(const std::vector<std::vector<float>> & a, const std::vector<std::vector<float>> & b) {
    uint64_t n = 0;
    for (size_t i = 0; i < a.size(); ++i)
        for (size_t k = 0; k < a[i].size(); ++k) n += std::memcmp(&a[i][k], &b[i][k], sizeof(float)) != 0;
    return n;
}

void measure(const Format & format, Multiply kernel, VecDot host, const Options & options, uint32_t count,
             unsigned threads) {
    std::vector<Work> works;
    for (unsigned t = 0; t < threads; ++t) works.emplace_back(format, options, count, options.bytes / threads, t + 1);
    const Work & first = works[0];
    const uint64_t call_bytes = first.rows * first.row_bytes;
    const uint64_t calls = std::clamp<uint64_t>(options.slice / call_bytes / count, 1, first.calls);
    const double bytes = static_cast<double>(call_bytes * calls * threads);
    const double products = bytes / static_cast<double>(format.bytes) * static_cast<double>(format.elements) * count;
    const double ours = seconds(kernel, works, calls, options.repeat);
    std::printf("%-7s %3u at once %u threads  %6.2f GB/s %7.2f GMAC/s", format.name, count, threads, bytes / ours / 1e9,
                products / ours / 1e9);
    if (host) {
        const double theirs = seconds(host, works, calls, options.repeat);
        std::printf("   host %6.2f GB/s %7.2f GMAC/s", bytes / theirs / 1e9, products / theirs / 1e9);
        run(host, works[0], first.w.data());
        const auto expected = first.results;
        run(kernel, works[0], first.w.data());
        std::printf(", %llu of %zu differ", static_cast<unsigned long long>(differing(expected, first.results)),
                    first.rows * first.x.size());
    }
    std::printf("\n");
    std::fflush(stdout);
}

Multiply kernel_of(uint32_t type, const std::string & name) {
#ifdef __x86_64__
    if (name == "avx2") return kernel_avx2(type);
    if (name == "avx-vnni") return kernel_avx_vnni(type);
    if (name == "avx512-vnni") return kernel_avx512_vnni(type);
#endif
    return name == "plain" ? reference_kernel(type) : fast_kernel(type, Cpu::detect());
}

Options parse(int argc, char ** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name.rfind("--", 0) != 0 || i + 1 == argc)
            options.types.push_back(name);
        else if (name == "--host")
            options.host = argv[++i];
        else if (name == "--kernel")
            options.kernel = argv[++i];
        else if (name == "--cols")
            options.cols = std::strtoull(argv[++i], nullptr, 10);
        else if (name == "--rows")
            options.rows = static_cast<uint32_t>(std::strtoul(argv[++i], nullptr, 10));
        else if (name == "--bytes")
            options.bytes = std::strtoull(argv[++i], nullptr, 10);
        else if (name == "--count")
            options.counts = {static_cast<uint32_t>(std::strtoul(argv[++i], nullptr, 10))};
        else if (name == "--threads")
            options.threads = {static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10))};
        else if (name == "--repeat")
            options.repeat = std::atoi(argv[++i]);
    }
    return options;
}

// ggml's table of what the processor does per type; nullptr if the library cannot be loaded.
const Traits * (*traits_of(const std::string & path))(int) {
    void * library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL);
    if (!library) {
        if (!path.empty()) std::fprintf(stderr, "no host: %s\n", dlerror());
        return nullptr;
    }
    if (void * init = dlsym(library, "ggml_cpu_init")) reinterpret_cast<void (*)()>(init)();
    return reinterpret_cast<const Traits * (*)(int)>(dlsym(library, "ggml_get_type_traits_cpu"));
}

}  // namespace

int main(int argc, char ** argv) {
    const Options options = parse(argc, argv);
    const auto traits = traits_of(options.host);
    for (const Format & format : kFormats) {
        if (!options.types.empty() && std::count(options.types.begin(), options.types.end(), format.name) == 0)
            continue;
        const Multiply kernel = kernel_of(format.type, options.kernel);
        if (!kernel) {
            std::printf("%-7s no kernel for this processor\n", format.name);
            continue;
        }
        const VecDot host = traits ? traits(static_cast<int>(format.type))->vec_dot : nullptr;
        for (const unsigned threads : options.threads)
            for (const uint32_t count : options.counts) measure(format, kernel, host, options, count, threads);
    }
    return 0;
}
