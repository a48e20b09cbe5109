// What becomes of the graphs that a host gives: which nodes become one task, and which stay by themselves.
#include "../src/abi/v2/graph.cpp"

#include <deque>

#include "check.hpp"

using namespace expertstream;
using namespace expertstream::v2;

namespace {

constexpr int64_t kIn = 64, kInner = 32, kSlots = 2, kTokens = 3;

// Nodes as the host builds them for one layer, by hand.
struct Nodes {
    Host host;
    std::deque<Tensor> tensors;
    std::deque<Owned> owned;
    std::vector<Tensor *> graph;
    std::vector<Step> steps;
    std::string error;
    Tensor *in = leaf(kIn, 1, kTokens), *ids = leaf(kSlots, kTokens, 1);

    Nodes() {
        host.mul_mat_id = 1;
        host.add_id = 2;
        host.glu = 3;
        host.mul = 4;
        host.glu_swiglu = 10;
        host.glu_swiglu_oai = 11;
        ids->nb[0] = 4;
        ids->nb[1] = kSlots * 4;
    }

    Tensor * leaf(int64_t n0, int64_t n1, int64_t n2) {
        Tensor & tensor = tensors.emplace_back();
        tensor = Tensor{};
        const int64_t ne[4] = {n0, n1, n2, 1};
        std::copy(std::begin(ne), std::end(ne), tensor.ne);
        tensor.nb[0] = sizeof(float);
        for (int i = 1; i < 4; ++i) tensor.nb[i] = tensor.nb[i - 1] * static_cast<size_t>(ne[i - 1]);
        tensor.data = &tensor;  // no test reads it
        return &tensor;
    }

    Tensor * node(int op, int64_t rows, std::initializer_list<Tensor *> sources) {
        Tensor * tensor = leaf(rows, kSlots, kTokens);
        tensor->op = op;
        std::copy(sources.begin(), sources.end(), tensor->src);
        graph.push_back(tensor);
        return tensor;
    }

    Tensor * product(int matrix, int64_t rows, Tensor * of) {
        Tensor * weights = leaf(of->ne[0], rows, 8);
        weights->extra = &owned.emplace_back(Owned{5, matrix});
        return node(host.mul_mat_id, rows, {weights, of, ids});
    }

    Tensor * glu(Tensor * gate, Tensor * up, int kind) {
        Tensor * tensor = node(host.glu, kInner, {gate, up});
        tensor->op_params[0] = kind;
        return tensor;
    }

    Tensor * view(Tensor * of, int64_t rows, int64_t first) {
        Tensor * tensor = node(99, rows, {of});
        tensor->view_src = of;
        tensor->view_offs = static_cast<size_t>(first) * sizeof(float);
        return tensor;
    }

    bool plan() { return v2::plan(host, graph, steps, error); }
};

}  // namespace

TEST(gate_up_glu_and_down_become_one_task) {
    Nodes n;
    Tensor * up = n.product(1, kInner, n.in);
    Tensor * gate = n.product(0, kInner, n.in);
    Tensor * down = n.product(2, kIn, n.glu(gate, up, n.host.glu_swiglu));
    CHECK(n.plan());
    CHECK_EQ(n.steps.size(), size_t{1});
    const Task & task = n.steps[0].work;
    CHECK_EQ(task.layer, 5u);
    CHECK_EQ(task.gate.matrix, 0);
    CHECK_EQ(task.up.matrix, 1);
    CHECK_EQ(task.down.matrix, 2);
    CHECK_EQ(task.up.rows, uint64_t{kInner});
    CHECK(task.glu == Glu::swiglu);
    CHECK(task.out.data == down->data);
    CHECK_EQ(task.slots, 2u);
    CHECK_EQ(task.tokens, 3u);
    CHECK_EQ(task.in.per_slot, size_t{0});
    CHECK_EQ(task.in.per_token, size_t{kIn * 4});
}

TEST(biases_become_part_of_the_task) {
    Nodes n;
    Tensor * bias = n.leaf(kInner, 8, 1);
    Tensor * up = n.node(n.host.add_id, kInner, {n.product(1, kInner, n.in), bias, n.ids});
    Tensor * gate = n.node(n.host.add_id, kInner, {n.product(0, kInner, n.in), bias, n.ids});
    Tensor * down = n.product(2, kIn, n.glu(gate, up, n.host.glu_swiglu_oai));
    Tensor * sum = n.node(n.host.add_id, kIn, {down, n.leaf(kIn, 8, 1), n.ids});
    CHECK(n.plan());
    CHECK_EQ(n.steps.size(), size_t{1});
    const Task & task = n.steps[0].work;
    CHECK(task.glu == Glu::swiglu_oai);
    CHECK(task.up.bias.data == bias->data);
    CHECK_EQ(task.up.bias.per_expert, size_t{kInner * 4});
    CHECK(task.down.bias.data != nullptr);
    CHECK(task.out.data == sum->data);
}

TEST(what_the_router_weighs_becomes_part_of_the_task) {
    Nodes n;
    Tensor * up = n.product(1, kInner, n.in);
    Tensor * gate = n.product(0, kInner, n.in);
    Tensor * down = n.product(2, kIn, n.glu(gate, up, n.host.glu_swiglu));
    Tensor * weights = n.leaf(1, kSlots, kTokens);
    Tensor * scaled = n.node(n.host.mul, kIn, {down, weights});
    CHECK(n.plan());
    CHECK_EQ(n.steps.size(), size_t{1});
    CHECK(n.steps[0].work.scale.data == weights->data);
    CHECK_EQ(n.steps[0].work.scale.per_slot, size_t{4});
    CHECK_EQ(n.steps[0].work.scale.per_token, size_t{kSlots * 4});
    CHECK(n.steps[0].work.out.data == scaled->data);
}

TEST(halves_of_one_matrix_are_gate_and_up) {
    Nodes n;
    Tensor * both = n.product(0, 2 * kInner, n.in);
    Tensor *gate = n.view(both, kInner, 0), *up = n.view(both, kInner, kInner);
    n.product(1, kIn, n.glu(gate, up, n.host.glu_swiglu));
    CHECK(n.plan());
    CHECK_EQ(n.steps.size(), size_t{1});
    CHECK_EQ(n.steps[0].work.gate.matrix, 0);
    CHECK_EQ(n.steps[0].work.gate.first_row, uint64_t{0});
    CHECK_EQ(n.steps[0].work.up.matrix, 0);
    CHECK_EQ(n.steps[0].work.up.first_row, uint64_t{kInner});
    CHECK_EQ(n.steps[0].work.down.matrix, 1);
}

TEST(nodes_that_came_alone_are_calculated_alone) {
    Nodes n;
    Tensor * up = n.product(1, kInner, n.in);
    CHECK(n.plan());
    CHECK_EQ(n.steps.size(), size_t{1});
    CHECK_EQ(n.steps[0].work.up.matrix, 1);
    CHECK_EQ(n.steps[0].work.down.matrix, -1);
    CHECK(n.steps[0].work.out.data == up->data);
}

TEST(what_somebody_else_reads_is_not_left_out) {
    Nodes n;
    Tensor * up = n.product(1, kInner, n.in);
    Tensor * gate = n.product(0, kInner, n.in);
    Tensor * glu = n.glu(gate, up, n.host.glu_swiglu);
    n.product(2, kIn, glu);
    n.node(n.host.add_id, kInner, {up, n.leaf(kInner, 8, 1), n.ids});
    CHECK(n.plan());
    CHECK_EQ(n.steps.size(), size_t{5});
    CHECK(n.steps[2].kind == Step::glu);
    CHECK(n.steps[4].kind == Step::bias);
}

TEST(experts_that_are_chosen_by_other_ids_are_not_mixed) {
    Nodes n;
    Tensor * up = n.product(1, kInner, n.in);
    Tensor * gate = n.product(0, kInner, n.in);
    gate->src[2] = n.leaf(kSlots, kTokens, 1);
    n.product(2, kIn, n.glu(gate, up, n.host.glu_swiglu));
    CHECK(n.plan());
    CHECK_EQ(n.steps.size(), size_t{4});
}

TEST(a_row_per_expert_as_input_keeps_its_strides) {
    Nodes n;
    Tensor * rows = n.leaf(kIn, kSlots, kTokens);
    n.product(2, kInner, rows);
    CHECK(n.plan());
    CHECK_EQ(n.steps[0].work.in.per_slot, size_t{kIn * 4});
    CHECK_EQ(n.steps[0].work.in.per_token, size_t{kIn * kSlots * 4});
}

TEST(a_node_that_nobody_promised_is_an_error_that_names_it) {
    Nodes n;
    std::strcpy(n.node(42, kIn, {n.in})->name, "stranger");
    CHECK(!n.plan());
    CHECK_EQ(n.error, std::string("cannot calculate the node stranger"));
}

TEST(a_glu_by_itself_is_what_the_formula_says) {
    Nodes n;
    float gate[kInner], up[kInner], out[kInner];
    for (int i = 0; i < kInner; ++i) {
        gate[i] = static_cast<float>(i) - 16.f;
        up[i] = 9.f - static_cast<float>(i);
    }
    swiglu_oai(kInner, out, gate, up, 1.702f, 7.f);
    for (int i = 0; i < kInner; ++i) {
        const float x = std::min(gate[i], 7.f), y = std::clamp(up[i], -7.f, 7.f);
        CHECK_EQ(out[i], x / (1.f + expf(1.702f * -x)) * (y + 1.f));
    }
}
