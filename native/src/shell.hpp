// Makes the shell of a model, and nothing of its experts. Private to the library.
#pragma once

#include <string>

#include "model.hpp"
#include "progress.hpp"

namespace expertstream {

// Writes the merged header and the dense extents of `model` into `to`, which gets the size of the whole GGUF.
// Extents of a container are compared with their CRC on the way.
bool write_dense(const model::Model & model, const disk::File & to, Progress & progress, std::string & error);

}  // namespace expertstream
