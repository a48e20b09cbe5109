#include "wave.hpp"

#include <algorithm>
#include <cmath>

namespace expertstream {
namespace {

// Some rows of one matrix (or of gate and up) for some pairs of one group.
struct Item {
    const Group * group;
    uint64_t row, rows;
    uint32_t begin, end;
};

void multiply(const Product & product, uint64_t cols, const uint8_t * weights, uint64_t row_bytes, uint64_t rows,
              const uint8_t * const * x, float * const * out, uint32_t count) {
    if (product.fast != nullptr) {
        product.fast(cols, weights, row_bytes, static_cast<uint32_t>(rows), x, out, count);
        return;
    }
    for (uint64_t row = 0; row < rows; ++row)
        for (uint32_t i = 0; i < count; ++i)
            product.dot(static_cast<int>(cols), &out[i][row], 0, weights + row * row_bytes, 0, x[i], 0, 1);
}

void add(const Bias & bias, uint32_t expert, uint64_t row, uint64_t rows, float * out) {
    if (bias.data == nullptr) return;
    const float * values =
        reinterpret_cast<const float *>(reinterpret_cast<const char *>(bias.data) + expert * bias.per_expert) + row;
    for (uint64_t i = 0; i < rows; ++i) out[i] += values[i];
}

class Wave {
  public:
    Wave(const Frame & frame, std::vector<Group> & groups, Scratch & scratch)
        : frame_(frame), task_(frame.task), groups_(groups), scratch_(scratch) {
        for (Group & group : groups) {
            group.place = pairs_;
            pairs_ += group.size();
        }
        const uint64_t rows = task_.up.rows;
        list(rows, widths(rows), up_items_);
        if (has_down()) list(task_.down.rows, widths(task_.down.rows), down_items_);
    }

    void run(bool first) {
        prepare(first);
        run_together(frame_.threads, [&](Member & member) {
            if (first) {
                quantise_inputs(member);
                member.meet();
            }
            each(up_items_, up_taken_, [&](const Item & item) { gate_and_up(item, member.index()); });
            if (!has_down()) return;
            member.meet();
            quantise_inner(member);
            member.meet();
            each(down_items_, down_taken_, [&](const Item & item) { down(item); });
        });
    }

  private:
    bool has_down() const { return task_.down.matrix >= 0; }
    bool has_gate() const { return task_.gate.matrix >= 0; }
    const Matrix & matrix(const Part & part) const { return frame_.layer.matrices[static_cast<size_t>(part.matrix)]; }
    const Product & product(const Part & part) const { return frame_.products[static_cast<size_t>(part.matrix)]; }

    // Rows per item, so that every thread finds several items.
    uint64_t widths(uint64_t rows) const {
        const uint64_t fair = rows * groups_.size() / (8 * frame_.threads) / kLeastItemRows * kLeastItemRows;
        return std::clamp<uint64_t>(fair, kLeastItemRows, kMostItemRows);
    }

    void list(uint64_t rows, uint64_t width, std::vector<Item> & items) const {
        for (const Group & group : groups_)
            for (uint64_t row = 0; row < rows; row += width)
                for (uint32_t begin = group.begin; begin < group.end; begin += kMostActivations)
                    items.push_back({&group, row, std::min(width, rows - row), begin,
                                     std::min(begin + kMostActivations, group.end)});
    }

    void prepare(bool first) {
        const uint64_t rows_in = task_.in.per_slot == 0 ? task_.tokens : uint64_t{task_.tokens} * task_.slots;
        if (first) {
            scratch_.in_up.prepare(product(task_.up), matrix(task_.up).cols, rows_in);
            if (has_gate() && !same_inputs())
                scratch_.in_gate.prepare(product(task_.gate), matrix(task_.gate).cols, rows_in);
        }
        if (has_down()) {
            if (scratch_.inner.size() < pairs_ * task_.up.rows) scratch_.inner.resize(pairs_ * task_.up.rows);
            scratch_.inner_quantised.prepare(product(task_.down), task_.up.rows, pairs_);
        }
        if (scratch_.per_thread.size() < frame_.threads) scratch_.per_thread.resize(frame_.threads);
        for (auto & floats : scratch_.per_thread) floats.resize(2 * kMostActivations * kMostItemRows);
    }

    bool same_inputs() const {
        return task_.gate.matrix < 0 || product(task_.gate).quantise == product(task_.up).quantise;
    }

    uint64_t input_row(const Pair & pair) const {
        return task_.in.per_slot == 0 ? pair.token : uint64_t{pair.token} * task_.slots + pair.slot;
    }

    const float * input(uint64_t row) const {
        return task_.in.per_slot == 0 ? task_.in.at(0, row) : task_.in.at(row % task_.slots, row / task_.slots);
    }

    void quantise_inputs(Member & member) {
        const uint64_t rows = task_.in.per_slot == 0 ? task_.tokens : uint64_t{task_.tokens} * task_.slots;
        for (uint64_t row = member.index(); row < rows; row += member.count()) {
            scratch_.in_up.put(row, input(row));
            if (!same_inputs()) scratch_.in_gate.put(row, input(row));
        }
    }

    void quantise_inner(Member & member) {
        for (uint64_t pair = member.index(); pair < pairs_; pair += member.count())
            scratch_.inner_quantised.put(pair, inner(pair));
    }

    static uint64_t place(const Item & item, uint32_t i) {
        return item.group->place + (item.begin - item.group->begin) + i;
    }

    float * inner(uint64_t pair_of_wave) { return scratch_.inner.data() + pair_of_wave * task_.up.rows; }

    template <typename Work>
    static void each(const std::vector<Item> & items, Counter & taken, Work work) {
        for (uint32_t i = taken.take(); i < items.size(); i = taken.take()) work(items[i]);
    }

    // Rows of one part for the pairs of an item, plus the bias.
    void part(const Item & item, const Part & part, const Activations & activations, float * const * out) {
        const uint8_t * x[kMostActivations] = {};
        const uint32_t count = item.end - item.begin;
        for (uint32_t i = 0; i < count; ++i) x[i] = activations.at(input_row(frame_.pairs[item.begin + i]));
        rows_of(item, part, x, out, count);
    }

    void rows_of(const Item & item, const Part & part, const uint8_t * const * x, float * const * out, uint32_t count) {
        const Matrix & m = matrix(part);
        const uint8_t * weights =
            item.group->weights + item.group->starts[part.matrix] + (part.first_row + item.row) * m.row_bytes;
        multiply(product(part), m.cols, weights, m.row_bytes, item.rows, x, out, count);
        for (uint32_t i = 0; i < count; ++i)
            add(part.bias, item.group->expert, part.first_row + item.row, item.rows, out[i]);
    }

    void gate_and_up(const Item & item, unsigned thread) {
        float * up[kMostActivations] = {};
        const uint32_t count = item.end - item.begin;
        float * own = scratch_.per_thread[thread].data();
        for (uint32_t i = 0; i < count; ++i) up[i] = has_gate() ? own + i * kMostItemRows : target(item, i);
        part(item, task_.up, scratch_.in_up, up);
        if (!has_gate()) return;
        float * gate[kMostActivations] = {};
        for (uint32_t i = 0; i < count; ++i) gate[i] = own + (kMostActivations + i) * kMostItemRows;
        part(item, task_.gate, same_inputs() ? scratch_.in_up : scratch_.in_gate, gate);
        for (uint32_t i = 0; i < count; ++i) activate(item.rows, target(item, i), gate[i], up[i]);
    }

    // Where the values of an item's i-th pair go after the first step.
    float * target(const Item & item, uint32_t i) {
        if (has_down()) return inner(place(item, i)) + item.row;
        const Pair & pair = frame_.pairs[item.begin + i];
        return task_.out.at(pair.slot, pair.token) + item.row;
    }

    void activate(uint64_t count, float * out, const float * gate, const float * up) const {
        if (task_.glu == Glu::swiglu)
            frame_.swiglu(static_cast<int>(count), out, gate, up);
        else
            swiglu_oai(count, out, gate, up, task_.alpha, task_.limit);
    }

    void down(const Item & item) {
        const uint8_t * x[kMostActivations] = {};
        float * out[kMostActivations] = {};
        const uint32_t count = item.end - item.begin;
        for (uint32_t i = 0; i < count; ++i) {
            x[i] = scratch_.inner_quantised.at(place(item, i));
            out[i] = task_.out.at(frame_.pairs[item.begin + i].slot, frame_.pairs[item.begin + i].token) + item.row;
        }
        rows_of(item, task_.down, x, out, count);
        scale(item, out);
    }

    void scale(const Item & item, float * const * out) const {
        if (task_.scale.data == nullptr) return;
        for (uint32_t pair = item.begin; pair < item.end; ++pair) {
            const float by = *task_.scale.at(frame_.pairs[pair].slot, frame_.pairs[pair].token);
            for (uint64_t row = 0; row < item.rows; ++row) out[pair - item.begin][row] *= by;
        }
    }

    const Frame & frame_;
    const Task & task_;
    std::vector<Group> & groups_;
    Scratch & scratch_;
    uint32_t pairs_ = 0;
    std::vector<Item> up_items_, down_items_;
    Counter up_taken_, down_taken_;
};

}  // namespace

void swiglu_oai(uint64_t count, float * out, const float * gate, const float * up, float alpha, float limit) {
    for (uint64_t i = 0; i < count; ++i) {
        const float x = std::min(gate[i], limit);
        const float y = std::clamp(up[i], -limit, limit);
        const float swish = x / (1.f + expf(alpha * (-x)));
        out[i] = swish * (y + 1.f);
    }
}

void Activations::prepare(const Product & product, uint64_t cols, uint64_t rows) {
    quantise_ = product.quantise;
    cols_ = cols;
    row_bytes_ = product.row_bytes(cols);
    if (bytes_.size() < rows * row_bytes_) bytes_.resize(rows * row_bytes_);
}

void calculate(const Frame & frame, std::vector<Group> & groups, bool first, Scratch & scratch) {
    Wave(frame, groups, scratch).run(first);
}

}  // namespace expertstream
