// The model's dense matrices, multiplied by our kernels where these are faster than the host's: inside the host's own threads, as
// one more kind of memory that its processor backend knows operations for. Nothing is copied or laid out anew.
#pragma once

#include <string>

#include "ggml.hpp"

namespace expertstream::v2 {

// Tells the processor backend of the memory, before a model is loaded. False and why if this host does not take it as expected; then
// dense matrices stay what they are without us.
bool offer_dense(const Host & host, std::string & why);

}  // namespace expertstream::v2
