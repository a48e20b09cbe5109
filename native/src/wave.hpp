// The calculation of some experts that are in memory: quantise, gate and up, GLU, quantise, down. Knows nothing of drives.
#pragma once

#include <cstdint>
#include <vector>

#include "moe_op.hpp"
#include "team.hpp"

namespace expertstream {

struct Pair {  // one token, given to one expert as its `slot`-th
    uint32_t token, slot;
};

// The pairs [begin, end) that go to one expert, and where its matrices are.
struct Group {
    uint32_t expert = 0, begin = 0, end = 0;
    uint32_t place = 0;                 // of its first pair among those of the wave
    const uint8_t * weights = nullptr;  // the expert's slot
    const uint64_t * starts = nullptr;  // where each matrix begins in it
    Slot * slot = nullptr;
    uint32_t size() const { return end - begin; }
};

// Activations as a product wants them: copies, for the host may use the memory of what it gave us again for what we give.
class Activations {
  public:
    // Room for `rows` rows of `cols` elements.
    void prepare(const Product & product, uint64_t cols, uint64_t rows);
    void put(uint64_t row, const float * values) {
        quantise_(values, bytes_.data() + row * row_bytes_, static_cast<int64_t>(cols_));
    }
    const uint8_t * at(uint64_t row) const { return bytes_.data() + row * row_bytes_; }

  private:
    void (*quantise_)(const float *, void *, int64_t) = nullptr;
    uint64_t cols_ = 0, row_bytes_ = 0;
    std::vector<uint8_t> bytes_;
};

// Memory that is used again from one layer to the next.
struct Scratch {
    Activations in_up, in_gate, inner_quantised;
    std::vector<float> inner;  // what the GLU gives, [pair of the wave][row]
    std::vector<std::vector<float>> per_thread;
};

// What is the same for all waves of a task.
struct Frame {
    const Task & task;
    const Layer & layer;
    const std::vector<Product> & products;
    void (*swiglu)(int, float *, const float *, const float *);
    const std::vector<Pair> & pairs;  // ordered by expert
    unsigned threads;
};

// Calculates `groups` on all threads. `first`: the activations of the task have not been quantised yet.
void calculate(const Frame & frame, std::vector<Group> & groups, bool first, Scratch & scratch);

}  // namespace expertstream
