#include "lookahead.hpp"

#include <algorithm>
#include <numeric>

#include "kernels.hpp"
#include "model.hpp"

namespace expertstream {
namespace {

constexpr size_t kLanes = 8;  // sums side by side: the compiler makes one vector of them

float product(const float * a, const float * b, uint64_t count) {
    float lanes[kLanes] = {};
    uint64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
    for (; i < count; ++i) lanes[0] += a[i] * b[i];
    return std::accumulate(std::begin(lanes), std::end(lanes), 0.f);
}

const gguf::Tensor * router_of(const model::Model & model, const Layer & layer) {
    const std::string name = "blk." + std::to_string(layer.number) + ".ffn_gate_inp.weight";
    for (const gguf::Tensor & tensor : model.header.tensors)
        if (tensor.name == name && tensor.type == kF32 && tensor.dims == 2 && tensor.ne[1] == layer.experts)
            return &tensor;
    return nullptr;
}

}  // namespace

std::unique_ptr<Lookahead> Lookahead::read(const std::string & path, const Index & index, std::string & error) {
    model::Model model;
    model::Bytes bytes;
    if (!model::read(path, model, error) || !bytes.open(model, error)) return nullptr;
    auto lookahead = std::make_unique<Lookahead>();
    for (const Layer & layer : index.layers) {
        Router router;
        if (const gguf::Tensor * tensor = router_of(model, layer)) {
            router.cols = tensor->ne[0];
            router.weights.resize(router.cols * layer.experts);
            auto * data = reinterpret_cast<uint8_t *>(router.weights.data());
            if (!bytes.read(tensor->offset, data, router.weights.size() * sizeof(float), error)) return nullptr;
        }
        lookahead->routers_.push_back(std::move(router));
    }
    return lookahead;
}

const std::vector<uint32_t> & Lookahead::guess(uint32_t layer, const float * activation, uint32_t count) {
    const Router & router = routers_[layer];
    const auto experts = static_cast<uint32_t>(router.cols == 0 ? 0 : router.weights.size() / router.cols);
    scores_.resize(experts);
    best_.resize(experts);
    for (uint32_t expert = 0; expert < experts; ++expert) {
        scores_[expert] = product(&router.weights[expert * router.cols], activation, router.cols);
        best_[expert] = expert;
    }
    const auto end = best_.begin() + std::min(count, experts);
    std::partial_sort(best_.begin(), end, best_.end(), [&](uint32_t a, uint32_t b) { return scores_[a] > scores_[b]; });
    best_.erase(end, best_.end());
    return best_;
}

}  // namespace expertstream
