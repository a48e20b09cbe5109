// How each expert matrix is multiplied: by a kernel of ours that was seen to agree with the host's, or by the host's own.
#pragma once

#include <string>

#include "../../moe_op.hpp"
#include "ggml.hpp"

namespace expertstream::v2 {

// How a type is multiplied. False and why if the host cannot.
bool product_of(const Host & host, uint32_t type, Product & product, std::string & error);

// False and why if the host cannot multiply a type that the model has. Notes on the page which kernels were taken.
bool make_maths(const Host & host, const Index & index, Page & page, Maths & maths, std::string & error);

}  // namespace expertstream::v2
