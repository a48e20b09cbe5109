// The experts of a layer at work, beside the same sums written plainly: whatever the budget, and when the drive fails.
#include "../src/moe_op.hpp"

#include <cmath>
#include <random>

#include <unistd.h>

#include "../src/engine.hpp"
#include "check.hpp"
#include "test_file.hpp"

using namespace expertstream;

namespace {

constexpr uint64_t kIn = 64, kInner = 96;
constexpr uint32_t kExperts = 12, kLayers = 3;

float silu(float x) { return x / (1.f + std::exp(-x)); }

void swiglu(int count, float * out, const float * gate, const float * up) {
    for (int i = 0; i < count; ++i) out[i] = silu(gate[i]) * up[i];
}

void dot(int count, float * sum, size_t, const void * x, size_t, const void * y, size_t, int) {
    float total = 0;
    for (int i = 0; i < count; ++i) total += static_cast<const float *>(x)[i] * static_cast<const float *>(y)[i];
    *sum = total;
}

void copy(const float * from, void * to, int64_t count) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

size_t row_size(int32_t, int64_t elements) { return static_cast<size_t>(elements) * sizeof(float); }

// A file of floats, and an index that says that they are gate, up and down of the experts of some layers.
struct Model {
    static constexpr uint64_t kMatrix = kIn * kInner;
    TestFile file{(3 * kMatrix * kExperts * kLayers + 100) * sizeof(float)};
    std::vector<float> weights;
    Index index;

    Model() {
        std::mt19937 random(7);
        std::normal_distribution<float> normal(0.f, 0.2f);
        weights.resize(3 * kMatrix * kExperts * kLayers + 100);
        for (float & weight : weights) weight = normal(random);
        FILE * stream = std::fopen(file.path.c_str(), "wb");
        std::fwrite(weights.data(), sizeof(float), weights.size(), stream);
        std::fclose(stream);
        index.files = {file.path};
        index.file_bytes = {weights.size() * sizeof(float)};
        for (uint32_t number = 0; number < kLayers; ++number) add_layer(number);
    }

    // The matrices of a layer lie one after the other, each with all experts, at an offset that is no multiple of a page.
    uint64_t first(uint32_t layer, uint32_t matrix, uint32_t expert) const {
        return 25 + ((uint64_t{layer} * 3 + matrix) * kExperts + expert) * kMatrix;
    }

    void add_layer(uint32_t number) {
        const uint64_t bytes = kMatrix * sizeof(float);
        const uint64_t room = (bytes + 2 * kPage) / kPage * kPage;
        Layer layer;
        layer.number = number;
        layer.experts = kExperts;
        layer.slot_bytes = 3 * room;
        layer.matrices = {{"gate", kF32, kIn, kInner, bytes, kIn * 4},
                          {"up", kF32, kIn, kInner, bytes, kIn * 4},
                          {"down", kF32, kInner, kIn, bytes, kInner * 4}};
        Index::Places places;
        places.pieces_each = 3;
        for (uint32_t expert = 0; expert < kExperts; ++expert)
            for (uint32_t matrix = 0; matrix < 3; ++matrix) {
                const uint64_t offset = first(number, matrix, expert) * sizeof(float);
                places.pieces.push_back({0, offset, bytes, matrix * room});
                places.starts.push_back(matrix * room + offset % kPage);
            }
        index.layers.push_back(layer);
        index.places.push_back(places);
    }
};

// The parts that an engine is made of, and one calculation on them.
struct Bench {
    Model model;
    std::string error;
    std::unique_ptr<Stats> stats = Stats::open("", error);
    ReaderOptions options;
    std::unique_ptr<Reader> reader;
    Arena arena{model.index};
    std::unique_ptr<MoeOp> op;

    std::vector<float> in, out, bias;
    std::vector<int32_t> ids;
    Task task;

    explicit Bench(uint64_t budget) {
        options.io = Io::threads;
        reader = Reader::open(model.index, options, error);
        Product product;
        product.dot = dot;
        product.quantise = copy;
        product.row_size = row_size;
        Maths maths{std::vector<std::vector<Product>>(kLayers, {product, product, product}), swiglu};
        op = std::make_unique<MoeOp>(model.index, maths, arena, *reader, *stats, nullptr);
        arena.set_budget(budget);
    }

    void prepare(uint32_t layer, uint32_t slots, uint32_t tokens, uint32_t seed) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        in.resize(kIn * tokens);
        for (float & value : in) value = normal(random);
        out.assign(kIn * slots * tokens, NAN);
        ids.clear();
        for (uint32_t token = 0; token < tokens; ++token)
            for (uint32_t slot = 0; slot < slots; ++slot)
                ids.push_back(static_cast<int32_t>((random() % (kExperts / slots)) * slots + slot));
        task = Task{};
        task.layer = layer;
        task.gate = {0, 0, kInner, {}};
        task.up = {1, 0, kInner, {}};
        task.down = {2, 0, kIn, {}};
        task.glu = Glu::swiglu;
        task.in = {in.data(), 0, kIn * 4};
        task.experts = {ids.data(), 4, slots * 4};
        task.out = {out.data(), kIn * 4, kIn * slots * 4};
        task.slots = slots;
        task.tokens = tokens;
    }

    std::vector<float> product(uint32_t matrix, uint32_t expert, const std::vector<float> & x, uint64_t rows) const {
        std::vector<float> y(rows);
        for (uint64_t row = 0; row < rows; ++row)
            dot(static_cast<int>(x.size()), &y[row], 0,
                &model.weights[model.first(task.layer, matrix, expert) + row * x.size()], 0, x.data(), 0, 1);
        return y;
    }

    // The task as a textbook has it.
    std::vector<float> plainly() const {
        std::vector<float> all;
        for (uint32_t token = 0; token < task.tokens; ++token)
            for (uint32_t slot = 0; slot < task.slots; ++slot) {
                const auto expert = static_cast<uint32_t>(ids[token * task.slots + slot]);
                const std::vector<float> x(in.begin() + token * kIn, in.begin() + (token + 1) * kIn);
                const std::vector<float> gate = product(0, expert, x, kInner), up = product(1, expert, x, kInner);
                std::vector<float> inner(kInner);
                swiglu(kInner, inner.data(), gate.data(), up.data());
                const std::vector<float> y = product(2, expert, inner, kIn);
                all.insert(all.end(), y.begin(), y.end());
            }
        return all;
    }
};

uint64_t slot_bytes() { return Model().index.layers[0].slot_bytes; }

}  // namespace

TEST(a_token_gives_what_its_experts_give) {
    Bench bench(slot_bytes() * 8);
    bench.prepare(1, 4, 1, 1);
    CHECK(bench.op->run(bench.task, 1, bench.error));
    CHECK(bench.out == bench.plainly());
}

TEST(threads_change_nothing) {
    Bench bench(slot_bytes() * 8);
    bench.prepare(1, 4, 3, 1);
    CHECK(bench.op->run(bench.task, 3, bench.error));
    CHECK(bench.out == bench.plainly());
}

TEST(a_long_prompt_runs_with_room_for_two_experts) {
    Bench bench(slot_bytes() * 2);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
        bench.prepare(layer, 4, 300, 2 + layer);
        CHECK(bench.op->run(bench.task, 2, bench.error));
        CHECK(bench.out == bench.plainly());
        CHECK(bench.arena.resident() <= slot_bytes() * 2);
    }
}

TEST(each_expert_is_read_at_most_once_per_block) {
    Bench bench(slot_bytes() * 2);
    bench.prepare(0, 4, 300, 2);
    CHECK(bench.op->run(bench.task, 2, bench.error));
    CHECK_EQ(bench.stats->page().misses.load(), uint64_t{kExperts});
    CHECK_EQ(bench.reader->counters().failures, uint64_t{0});
    CHECK(bench.reader->counters().bytes <= kExperts * slot_bytes());
}

TEST(what_is_in_memory_is_not_read_again) {
    Bench bench(slot_bytes() * kExperts);
    bench.prepare(0, 4, 50, 3);
    CHECK(bench.op->run(bench.task, 2, bench.error));
    const uint64_t reads = bench.reader->counters().reads;
    CHECK(bench.op->run(bench.task, 2, bench.error));
    CHECK_EQ(bench.reader->counters().reads, reads);
    CHECK_EQ(bench.stats->page().hits.load(), bench.stats->page().misses.load());
}

TEST(a_single_matrix_is_a_task_too) {
    Bench bench(slot_bytes() * 4);
    bench.prepare(2, 2, 5, 4);
    bench.out.assign(kInner * 2 * 5, NAN);
    bench.task.gate = bench.task.down = Part{};
    bench.task.glu = Glu::none;
    bench.task.out = {bench.out.data(), kInner * 4, kInner * 2 * 4};
    CHECK(bench.op->run(bench.task, 2, bench.error));
    for (uint32_t token = 0; token < 5; ++token)
        for (uint32_t slot = 0; slot < 2; ++slot) {
            const std::vector<float> x(bench.in.begin() + token * kIn, bench.in.begin() + (token + 1) * kIn);
            const std::vector<float> y =
                bench.product(1, static_cast<uint32_t>(bench.ids[token * 2 + slot]), x, kInner);
            CHECK(std::equal(y.begin(), y.end(), bench.out.begin() + (token * 2 + slot) * kInner));
        }
}

TEST(biases_are_added_per_expert) {
    Bench bench(slot_bytes() * 4);
    bench.prepare(0, 2, 2, 5);
    CHECK(bench.op->run(bench.task, 1, bench.error));
    std::vector<float> expected = bench.out;
    bench.bias.resize(kExperts * kIn);
    for (uint32_t i = 0; i < bench.bias.size(); ++i) bench.bias[i] = static_cast<float>(i);
    for (uint32_t pair = 0; pair < 4; ++pair)
        for (uint32_t i = 0; i < kIn; ++i)
            expected[pair * kIn + i] += bench.bias[static_cast<uint32_t>(bench.ids[pair]) * kIn + i];
    bench.task.down.bias = {bench.bias.data(), kIn * 4};
    CHECK(bench.op->run(bench.task, 1, bench.error));
    CHECK(bench.out == expected);
}

TEST(an_answer_is_multiplied_by_what_the_router_gave_it) {
    Bench bench(slot_bytes() * 4);
    bench.prepare(0, 2, 2, 5);
    std::vector<float> expected = bench.plainly();
    const float weights[] = {0.5f, 2.f, -1.f, 0.f};
    for (uint32_t pair = 0; pair < 4; ++pair)
        for (uint32_t i = 0; i < kIn; ++i) expected[pair * kIn + i] *= weights[pair];
    bench.task.scale = {weights, 4, 8};
    CHECK(bench.op->run(bench.task, 1, bench.error));
    CHECK(bench.out == expected);
}

TEST(a_drive_that_fails_fails_the_task_and_nothing_else) {
    Bench bench(slot_bytes() * 4);
    bench.prepare(2, 4, 40, 6);
    CHECK_EQ(truncate(bench.model.file.path.c_str(), 4096), 0);
    CHECK(!bench.op->run(bench.task, 2, bench.error));
    CHECK(bench.error.find(bench.model.file.path) != std::string::npos);
    CHECK_EQ(bench.stats->page().failures.load(), uint64_t{1});
    CHECK_EQ(bench.arena.resident(), uint64_t{0});
}

TEST(an_id_that_is_no_expert_is_an_error) {
    Bench bench(slot_bytes() * 4);
    bench.prepare(0, 2, 1, 7);
    bench.ids[1] = kExperts;
    CHECK(!bench.op->run(bench.task, 1, bench.error));
    CHECK_EQ(bench.error, std::string("the router of layer 0 chose an expert that the layer does not have"));
}

TEST(a_budget_without_room_for_an_expert_is_an_error) {
    Bench bench(slot_bytes() - 1);
    bench.prepare(0, 2, 1, 8);
    CHECK(!bench.op->run(bench.task, 1, bench.error));
    CHECK(bench.error.find("no room for one more expert") != std::string::npos);
}

TEST(a_pass_that_nobody_waits_for_stops) {
    Bench bench(slot_bytes() * 4);
    bench.prepare(0, 2, 1, 9);
    CHECK(bench.op->run(bench.task, 1, bench.error));
    bench.prepare(1, 2, 1, 9);
    bench.stats->page().abort_below = bench.stats->page().passes.load();
    CHECK(!bench.op->run(bench.task, 1, bench.error));
    CHECK_EQ(bench.stats->page().failures.load(), uint64_t{0});  // nothing is broken
    bench.prepare(0, 2, 1, 9);
    CHECK(bench.op->run(bench.task, 1, bench.error));
}

TEST(options_that_are_not_known_are_refused_by_name) {
    Options options;
    std::string error;
    CHECK(!Options::parse("model=x\ncolour=red\n", options, error));
    CHECK_EQ(error, std::string("unknown option: colour=red"));
    CHECK(!Options::parse("model=x\ndepth=many\n", options, error));
    CHECK_EQ(error, std::string("an option has a value that it cannot have: depth=many"));
    Options nothing;
    CHECK(!Options::parse("budget=1\n", nothing, error));
    CHECK(Options::parse("model=a b\nbudget=5\nio=uring\ndirect=off\n", options, error));
    CHECK_EQ(options.model, std::string("a b"));
    CHECK_EQ(options.budget, uint64_t{5});
    CHECK(!options.reader.direct);
}
