#include "graph.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace expertstream::v2 {
namespace {

const Tensor * root(const Tensor * tensor) { return tensor->view_src != nullptr ? tensor->view_src : tensor; }

bool holds(const std::vector<Tensor *> & nodes, const Tensor * tensor) {
    return std::find(nodes.begin(), nodes.end(), tensor) != nodes.end();
}

float parameter(const Tensor & node, int index) {
    float value = 0;
    std::memcpy(&value, &node.op_params[index], sizeof value);
    return value;
}

// The element that is `i` steps along dimension `first` and `j` along the one after it.
template <typename T> T * at(const Tensor & tensor, int first, int64_t i, int64_t j) {
    const auto offset = i * static_cast<int64_t>(tensor.nb[first]) + j * static_cast<int64_t>(tensor.nb[first + 1]);
    return reinterpret_cast<T *>(static_cast<char *>(tensor.data) + offset);
}

template <typename Work> void each_row(const Tensor & node, Work work) {
    for (int64_t token = 0; token < node.ne[2]; ++token)
        for (int64_t slot = 0; slot < node.ne[1]; ++slot) work(slot, token);
}

// Where a tensor comes from: rows of a product of experts, with or without a bias.
struct Origin {
    const Tensor * product = nullptr;
    const Tensor * sum = nullptr;  // the node that adds the bias
    const Owned * owned = nullptr;
    uint64_t first_row = 0;
};

bool origin(const Host & host, const Tensor * tensor, Origin & found) {
    const Tensor * node = root(tensor);
    found.first_row = tensor->view_src != nullptr ? tensor->view_offs / sizeof(float) : 0;
    if (node->op == host.add_id) {
        found.sum = node;
        node = root(node->src[0]);
    }
    found.product = node;
    found.owned = owned_product(host, node);
    return found.owned != nullptr;
}

Part part_of(const Origin & from, uint64_t rows) {
    Part part;
    part.matrix = from.owned->matrix;
    part.first_row = from.first_row;
    part.rows = rows;
    if (from.sum != nullptr) {
        part.bias.data = static_cast<const float *>(from.sum->src[1]->data);
        part.bias.per_expert = from.sum->src[1]->nb[1];
    }
    return part;
}

void set_shape(Task & task, const Tensor & product, const Tensor & out) {
    const Tensor & in = *product.src[1];
    const Tensor & ids = *product.src[2];
    task.in = {static_cast<const float *>(in.data), in.ne[1] == 1 ? 0 : in.nb[1], in.nb[2]};
    task.experts = {static_cast<const int32_t *>(ids.data), ids.nb[0], ids.nb[1]};
    task.out = {static_cast<float *>(out.data), out.nb[1], out.nb[2]};
    task.slots = static_cast<uint32_t>(ids.ne[0]);
    task.tokens = static_cast<uint32_t>(ids.ne[1]);
}

Task single(const Tensor & product, const Owned & owned) {
    Task task;
    task.layer = owned.layer;
    task.up.matrix = owned.matrix;
    task.up.rows = static_cast<uint64_t>(product.ne[0]);
    set_shape(task, product, product);
    return task;
}

// The nodes of a whole feed-forward network of experts around one GLU.
struct Network {
    Origin gate, up;
    const Tensor * glu = nullptr;
    const Tensor * down = nullptr;
    const Tensor * sum = nullptr;     // adds the bias of down
    const Tensor * scaled = nullptr;  // multiplies by the weight that the router gave
    const Owned * owned = nullptr;    // of down
    const Tensor * answer() const { return sum != nullptr ? sum : down; }
    const Tensor * last() const { return scaled != nullptr ? scaled : answer(); }
    std::vector<const Tensor *> inner() const {
        std::vector<const Tensor *> nodes{gate.product, gate.sum, up.product, up.sum, glu};
        if (last() != down) nodes.push_back(down);
        if (last() != answer()) nodes.push_back(sum);
        return nodes;
    }
};

bool find_down(const Host & host, const std::vector<Tensor *> & nodes, Network & network) {
    for (const Tensor * node : nodes) {
        const Owned * owned = owned_product(host, node);
        if (owned != nullptr && root(node->src[1]) == network.glu) {
            network.down = node;
            network.owned = owned;
        } else if (node->op == host.add_id && network.down != nullptr && root(node->src[0]) == network.down) {
            network.sum = node;
        } else if (network.down != nullptr && known_scale(host, node) && node->src[0] == network.answer()) {
            network.scaled = node;
        }
    }
    return network.down != nullptr;
}

// What is left out must not be read by anything that is not left out with it.
bool closed(const std::vector<Tensor *> & nodes, const Network & network) {
    const std::vector<const Tensor *> inner = network.inner();
    const auto is_inner = [&](const Tensor * tensor) {
        return std::find(inner.begin(), inner.end(), tensor) != inner.end();
    };
    return std::all_of(nodes.begin(), nodes.end(), [&](const Tensor * node) {
        if (node == network.last() || is_inner(node) || node->view_src != nullptr) return true;
        return std::none_of(std::begin(node->src), std::end(node->src),
                            [&](const Tensor * source) { return source != nullptr && is_inner(root(source)); });
    });
}

bool find_network(const Host & host, const std::vector<Tensor *> & nodes, const Tensor * glu, Network & network) {
    network.glu = glu;
    if (!known_glu(host, glu) || !origin(host, glu->src[0], network.gate) || !origin(host, glu->src[1], network.up))
        return false;
    const bool here = holds(nodes, network.gate.product) && holds(nodes, network.up.product);
    return here && find_down(host, nodes, network) && network.gate.owned->layer == network.up.owned->layer &&
           network.gate.owned->layer == network.owned->layer &&
           network.gate.product->src[1] == network.up.product->src[1] &&
           network.gate.product->src[2] == network.up.product->src[2] &&
           network.gate.product->src[2] == network.down->src[2] && closed(nodes, network);
}

Task task_of(const Host & host, const Network & network) {
    Task task;
    const auto inner = static_cast<uint64_t>(network.glu->ne[0]);
    task.layer = network.owned->layer;
    task.gate = part_of(network.gate, inner);
    task.up = part_of(network.up, inner);
    task.down = part_of({network.down, network.sum, network.owned, 0}, static_cast<uint64_t>(network.down->ne[0]));
    task.glu = network.glu->op_params[0] == host.glu_swiglu ? Glu::swiglu : Glu::swiglu_oai;
    task.alpha = parameter(*network.glu, 2);
    task.limit = parameter(*network.glu, 3);
    set_shape(task, *network.up.product, *network.last());
    if (network.scaled != nullptr) {
        const Tensor & by = *network.scaled->src[1];
        task.scale = {static_cast<const float *>(by.data), by.nb[1], by.nb[2]};
    }
    return task;
}

}  // namespace

const Owned * owned_product(const Host & host, const Tensor * node) {
    return node->op == host.mul_mat_id && node->src[0] != nullptr ? static_cast<const Owned *>(node->src[0]->extra)
                                                                  : nullptr;
}

bool known_glu(const Host & host, const Tensor * node) {
    return node->op == host.glu && node->src[1] != nullptr &&
           (node->op_params[0] == host.glu_swiglu || node->op_params[0] == host.glu_swiglu_oai);
}

bool known_scale(const Host & host, const Tensor * node) {
    return node->op == host.mul && node->src[1]->type == kF32 && node->src[1]->ne[0] == 1 &&
           node->src[1]->ne[1] == node->ne[1] && node->src[1]->ne[2] == node->ne[2];
}

bool plan(const Host & host, const std::vector<Tensor *> & nodes, std::vector<Step> & steps, std::string & error) {
    std::vector<const Tensor *> done;
    std::vector<std::pair<const Tensor *, Task>> networks;
    for (const Tensor * node : nodes) {
        Network network;
        if (node->op != host.glu || !find_network(host, nodes, node, network)) continue;
        networks.emplace_back(network.last(), task_of(host, network));
        for (const Tensor * inner : network.inner()) done.push_back(inner);
    }
    steps.clear();
    for (Tensor * node : nodes) {
        const auto network =
            std::find_if(networks.begin(), networks.end(), [&](const auto & one) { return one.first == node; });
        const bool skipped =
            node->view_src != nullptr && node->op != host.add_id && node->op != host.glu && node->op != host.mul;
        if (network != networks.end())
            steps.push_back({Step::task, network->second, nullptr});
        else if (skipped || std::find(done.begin(), done.end(), node) != done.end())
            continue;
        else if (const Owned * owned = owned_product(host, node))
            steps.push_back({Step::task, single(*node, *owned), nullptr});
        else if (node->op == host.add_id)
            steps.push_back({Step::bias, {}, node});
        else if (known_scale(host, node))
            steps.push_back({Step::scale, {}, node});
        else if (known_glu(host, node))
            steps.push_back({Step::glu, {}, node});
        else {
            error = std::string("cannot calculate the node ") + node->name;
            return false;
        }
    }
    return true;
}

void add_bias(const Tensor & node) {
    const Tensor &in = *node.src[0], &bias = *node.src[1], &ids = *node.src[2];
    each_row(node, [&](int64_t slot, int64_t token) {
        const int32_t expert = *at<int32_t>(ids, 0, slot, token);
        const float *values = at<float>(bias, 1, expert, 0), *from = at<float>(in, 1, slot, token);
        float * to = at<float>(node, 1, slot, token);
        for (int64_t i = 0; i < node.ne[0]; ++i) to[i] = from[i] + values[i];
    });
}

void multiply(const Tensor & node) {
    each_row(node, [&](int64_t slot, int64_t token) {
        const float *from = at<float>(*node.src[0], 1, slot, token), by = *at<float>(*node.src[1], 1, slot, token);
        float * to = at<float>(node, 1, slot, token);
        for (int64_t i = 0; i < node.ne[0]; ++i) to[i] = from[i] * by;
    });
}

void calculate_glu(const Host & host, const Tensor & node) {
    each_row(node, [&](int64_t slot, int64_t token) {
        const auto count = static_cast<uint64_t>(node.ne[0]);
        const float *gate = at<float>(*node.src[0], 1, slot, token), *up = at<float>(*node.src[1], 1, slot, token);
        float * to = at<float>(node, 1, slot, token);
        if (node.op_params[0] == host.glu_swiglu)
            host.swiglu(static_cast<int>(count), to, gate, up);
        else
            swiglu_oai(count, to, gate, up, parameter(node, 2), parameter(node, 3));
    });
}

}  // namespace expertstream::v2
