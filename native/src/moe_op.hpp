// The experts of one layer at work: tokens grouped by expert, those in memory first, the others as they arrive from the drive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "arena.hpp"
#include "index.hpp"
#include "kernels.hpp"
#include "lookahead.hpp"
#include "reader.hpp"
#include "stats.hpp"

namespace expertstream {

// How rows of a type are multiplied: by a kernel of ours, or by the host's product of one row and one column.
struct Product {
    Multiply fast = nullptr;
    void (*dot)(int, float *, size_t, const void *, size_t, const void *, size_t, int) = nullptr;
    void (*quantise)(const float *, void *, int64_t) = nullptr;  // of activations
    uint32_t activation = 0;                                     // ggml's type of the quantised activations
    size_t (*row_size)(int32_t, int64_t) = nullptr;  // the host's: bytes of a row of so many elements of a type
    uint64_t row_bytes(uint64_t elements) const {
        return row_size(static_cast<int32_t>(activation), static_cast<int64_t>(elements));
    }
};

enum class Glu { none, swiglu, swiglu_oai };

// Rows of floats addressed by token and by slot (which of the token's experts); strides in bytes.
template <typename T>
struct Rows {
    T * data = nullptr;
    size_t per_slot = 0, per_token = 0;
    T * at(uint64_t slot, uint64_t token) const {
        using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
        return reinterpret_cast<T *>(reinterpret_cast<Byte *>(data) + slot * per_slot + token * per_token);
    }
};

// A vector per expert, added to what the expert gives; strides in bytes. No data: nothing is added.
struct Bias {
    const float * data = nullptr;
    size_t per_expert = 0;
};

// One matrix of the layer, or half of one that holds two.
struct Part {
    int matrix = -1;  // position in Layer::matrices; -1: none
    uint64_t first_row = 0, rows = 0;
    Bias bias;
};

// out = down(glu(gate(in), up(in))), or out = up(in) where there is neither gate nor down.
struct Task {
    uint32_t layer = 0;  // position in the index
    Part gate, up, down;
    Glu glu = Glu::none;
    float alpha = 0, limit = 0;   // of swiglu_oai
    Rows<const float> in;         // per_slot 0: the same for all experts of a token
    Rows<const int32_t> experts;  // which expert the slot of a token is given to
    Rows<float> out;
    Rows<const float> scale;  // what each expert's answer is multiplied by; no data: it stays
    uint32_t slots = 0, tokens = 0;
};

// out = x * sigmoid(alpha * x) * (y + 1), x and y being gate and up kept within the limit: the GLU of gpt-oss.
void swiglu_oai(uint64_t count, float * out, const float * gate, const float * up, float alpha, float limit);

// The calculation itself, on values of the host.
struct Maths {
    std::vector<std::vector<Product>> products;  // [layer][matrix]
    void (*swiglu)(int, float *, const float *, const float *) = nullptr;
};

class MoeOp {
  public:
    // `lookahead`: may be nullptr, then nothing is fetched before it is asked for.
    MoeOp(const Index & index, Maths maths, Arena & arena, Reader & reader, Stats & stats, Lookahead * lookahead);
    ~MoeOp();
    // False and why if experts could not be read; the values in `out` are then of no meaning.
    bool run(const Task & task, unsigned threads, std::string & error);

    struct State;

  private:
    std::unique_ptr<State> state_;
};

}  // namespace expertstream
