// A guess at which experts the next layer will choose, while this one's answer is still on its way there. Owns copies of the
// routers. What the residual stream adds between two layers is small, so a layer's own input tells much of the next one's choice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "index.hpp"

namespace expertstream {

class Lookahead {
  public:
    // Reads the routers ("blk.3.ffn_gate_inp.weight", floats). Layers whose router is of another type are never guessed.
    // nullptr and why if the model cannot be read.
    static std::unique_ptr<Lookahead> read(const std::string & model, const Index & index, std::string & error);

    // The `count` most probable experts of a layer (by position) for an activation of the layer before. Empty: no guess.
    const std::vector<uint32_t> & guess(uint32_t layer, const float * activation, uint32_t count);

  private:
    struct Router {
        uint64_t cols = 0;
        std::vector<float> weights;  // a row per expert
    };
    std::vector<Router> routers_;
    std::vector<float> scores_;
    std::vector<uint32_t> best_;
};

}  // namespace expertstream
