// The one engine of this process, and why there is none.
#pragma once

#include <string>

#include "engine.hpp"

namespace expertstream {

Engine * configured();
void refuse(const std::string & reason);  // kept for `es_refusal`, and told on standard error

}  // namespace expertstream
