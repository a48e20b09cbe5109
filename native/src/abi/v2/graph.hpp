// From a graph of the host to the tasks of the layer: gate, up, GLU and down of the experts become one, if they came together.
#pragma once

#include <string>
#include <vector>

#include "../../moe_op.hpp"
#include "ggml.hpp"

namespace expertstream::v2 {

// What `Tensor::extra` of an expert tensor points to.
struct Owned {
    uint32_t layer = 0;
    int matrix = 0;
};

// A node that is calculated by itself, or a task that stands for several.
struct Step {
    enum Kind { task, bias, glu, scale } kind = task;
    Task work;                // of a task
    Tensor * node = nullptr;  // of the others
};

// False and why if a node is none that we said we support.
bool plan(const Host & host, const std::vector<Tensor *> & nodes, std::vector<Step> & steps, std::string & error);

// The expert tensor of a product of experts that is ours; nullptr otherwise.
const Owned * owned_product(const Host & host, const Tensor * node);

// A GLU of two tensors, of a kind that we calculate.
bool known_glu(const Host & host, const Tensor * node);

// A product of two tensors, the second of which has one number for each row of the first.
bool known_scale(const Host & host, const Tensor * node);

// Steps that are no tasks: small, on the calling thread.
void add_bias(const Tensor & node);
void multiply(const Tensor & node);
void calculate_glu(const Host & host, const Tensor & node);

}  // namespace expertstream::v2
