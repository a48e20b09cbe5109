#include "maths.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "../../text.hpp"

namespace expertstream::v2 {
namespace {

constexpr uint64_t kCols = 512, kRows = 8, kCount = 5;  // of the products on which kernels are compared

void copy_floats(const float * from, void * to, int64_t count) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

bool host_product(const Host & host, uint32_t type, Product & product, std::string & error) {
    const TypeTraits * traits = host.type_traits(static_cast<int32_t>(type));
    if (traits == nullptr || traits->vec_dot == nullptr) {
        error = "this llama.cpp cannot multiply experts of ggml's type " + std::to_string(type);
        return false;
    }
    product.dot = traits->vec_dot;
    product.activation = static_cast<uint32_t>(traits->vec_dot_type);
    const TypeTraits * activation = host.type_traits(traits->vec_dot_type);
    product.quantise = product.activation == kF32 || activation == nullptr ? copy_floats : activation->from_float;
    product.row_size = host.row_size;
    return true;
}

// Rows of a type, made by the host from random numbers.
std::vector<uint8_t> random_rows(const Host & host, uint32_t type, uint64_t rows, std::mt19937 & random) {
    const TypeTraits * traits = host.type_traits(static_cast<int32_t>(type));
    const size_t row_bytes = host.row_size(static_cast<int32_t>(type), kCols);
    std::normal_distribution<float> normal;
    std::vector<uint8_t> bytes(rows * row_bytes);
    std::vector<float> values(kCols);
    for (uint64_t row = 0; row < rows; ++row) {
        for (float & value : values) value = normal(random);
        traits->from_float(values.data(), bytes.data() + row * row_bytes, static_cast<int64_t>(kCols));
    }
    return bytes;
}

// The kernel and the host give the same: to the bit where we promise that, else nearly.
bool agree(const Host & host, const Product & product, Multiply fast, uint32_t type) {
    std::mt19937 random(1);
    const size_t row_bytes = host.row_size(static_cast<int32_t>(type), kCols);
    const uint64_t x_bytes = product.row_bytes(kCols);
    const std::vector<uint8_t> weights = random_rows(host, type, kRows, random);
    const std::vector<uint8_t> x = random_rows(host, product.activation, kCount, random);
    float ours[kCount][kRows];
    const uint8_t * inputs[kCount];
    float * outputs[kCount];
    for (uint64_t i = 0; i < kCount; ++i) {
        inputs[i] = x.data() + i * x_bytes;
        outputs[i] = ours[i];
    }
    fast(kCols, weights.data(), row_bytes, kRows, inputs, outputs, kCount);
    const bool exactly = type == kQ8_0 || type == kMXFP4;
    for (uint64_t i = 0; i < kCount; ++i)
        for (uint64_t row = 0; row < kRows; ++row) {
            float theirs = 0;
            product.dot(static_cast<int>(kCols), &theirs, 0, weights.data() + row * row_bytes, 0, inputs[i], 0, 1);
            const float tolerance = exactly ? 0.f : 1e-4f * std::max(1.f, std::fabs(theirs));
            if (!(std::fabs(ours[i][row] - theirs) <= tolerance)) return false;
        }
    return true;
}

Multiply kernel_for(const Host & host, const Product & product, uint32_t type, const Cpu & cpu) {
    const Multiply fast = fast_kernel(type, cpu);
    const TypeTraits * traits = host.type_traits(static_cast<int32_t>(type));
    if (fast == nullptr || traits->from_float == nullptr) return nullptr;
    return agree(host, product, fast, type) ? fast : nullptr;
}

}  // namespace

bool product_of(const Host & host, uint32_t type, Product & product, std::string & error) {
    if (!host_product(host, type, product, error)) return false;
    product.fast = kernel_for(host, product, type, Cpu::detect());
    return true;
}

bool make_maths(const Host & host, const Index & index, Page & page, Maths & maths, std::string & error) {
    std::map<uint32_t, Product> known;
    std::string taken;
    maths.swiglu = host.swiglu;
    for (const Layer & layer : index.layers) {
        std::vector<Product> products;
        for (const Matrix & matrix : layer.matrices) {
            if (known.count(matrix.type) == 0) {
                Product product;
                if (!product_of(host, matrix.type, product, error)) return false;
                taken += (taken.empty() ? "" : " ") + std::to_string(matrix.type) +
                         (product.fast != nullptr ? ":own" : ":host");
                known[matrix.type] = product;
            }
            products.push_back(known[matrix.type]);
        }
        maths.products.push_back(std::move(products));
    }
    write_text(page.kernel, sizeof page.kernel, taken);
    return true;
}

}  // namespace expertstream::v2
