// Finds the host's functions, and makes sure that it is built as declared: tensors that it builds are read back field by field.
#include <cstring>

#include "ggml.hpp"

namespace expertstream::v2 {
namespace {

struct InitParams {
    size_t bytes;
    void * memory;
    bool no_alloc;
};

// Functions that only the check needs.
struct Builder {
    Context * (*init)(InitParams) = nullptr;
    void (*free)(Context *) = nullptr;
    Tensor * (*new_2d)(Context *, int32_t, int64_t, int64_t) = nullptr;
    Tensor * (*new_3d)(Context *, int32_t, int64_t, int64_t, int64_t) = nullptr;
    Tensor * (*set_name)(Tensor *, const char *) = nullptr;
    Tensor * (*mul_mat)(Context *, Tensor *, Tensor *) = nullptr;
    Tensor * (*mul_mat_id)(Context *, Tensor *, Tensor *, Tensor *) = nullptr;
    Tensor * (*add_id)(Context *, Tensor *, Tensor *, Tensor *) = nullptr;
    Tensor * (*mul)(Context *, Tensor *, Tensor *) = nullptr;
    Tensor * (*swiglu_split)(Context *, Tensor *, Tensor *) = nullptr;
    Tensor * (*swiglu_oai)(Context *, Tensor *, Tensor *, float, float) = nullptr;
    size_t (*overhead)() = nullptr;
    const char * (*version)() = nullptr;
};

constexpr int32_t kF32 = 0, kI32 = 26;
constexpr int64_t kCols = 64, kRows = 32, kExperts = 4, kUsed = 2, kTokens = 3;

bool find_all(Host & host, Builder & builder, std::string & error) {
    return find(host.buffer_init, "ggml_backend_buffer_init", error) &&
           find(host.graph_n_nodes, "ggml_graph_n_nodes", error) && find(host.graph_node, "ggml_graph_node", error) &&
           find(host.type_traits, "ggml_get_type_traits_cpu", error) && find(host.row_size, "ggml_row_size", error) &&
           find(host.buffer_type_is_host, "ggml_backend_buft_is_host", error) &&
           find(host.swiglu, "ggml_vec_swiglu_f32", error) && find(builder.init, "ggml_init", error) &&
           find(builder.free, "ggml_free", error) && find(builder.new_2d, "ggml_new_tensor_2d", error) &&
           find(builder.new_3d, "ggml_new_tensor_3d", error) && find(builder.set_name, "ggml_set_name", error) &&
           find(builder.mul_mat, "ggml_mul_mat", error) && find(builder.mul_mat_id, "ggml_mul_mat_id", error) &&
           find(builder.add_id, "ggml_add_id", error) && find(builder.mul, "ggml_mul", error) &&
           find(builder.swiglu_split, "ggml_swiglu_split", error) &&
           find(builder.swiglu_oai, "ggml_swiglu_oai", error) &&
           find(builder.overhead, "ggml_tensor_overhead", error) && find(builder.version, "ggml_version", error);
}

// A product of experts as every MoE layer has one: shape, strides, sources and name are where we think they are.
bool product_as_declared(const Tensor & product, const Tensor & weights, const Tensor & in, const Tensor & ids) {
    return product.type == kF32 && product.ne[0] == kRows && product.ne[1] == kUsed && product.ne[2] == kTokens &&
           product.ne[3] == 1 && product.nb[0] == sizeof(float) && product.nb[1] == kRows * sizeof(float) &&
           product.src[0] == &weights && product.src[1] == &in && product.src[2] == &ids && product.src[3] == nullptr &&
           product.view_src == nullptr && product.data == nullptr && product.buffer == nullptr &&
           std::strcmp(weights.name, "layout") == 0 && weights.ne[2] == kExperts && ids.type == kI32;
}

bool oai_as_declared(const Tensor & glu, int32_t op, float alpha, float limit) {
    float values[2];
    std::memcpy(values, &glu.op_params[2], sizeof values);
    return glu.op == op && values[0] == alpha && values[1] == limit;
}

bool learn(Host & host, const Builder & builder, Context * context) {
    Tensor * weights = builder.set_name(builder.new_3d(context, kF32, kCols, kRows, kExperts), "layout");
    Tensor * in = builder.new_3d(context, kF32, kCols, 1, kTokens);
    Tensor * ids = builder.new_2d(context, kI32, kUsed, kTokens);
    Tensor * bias = builder.new_2d(context, kF32, kRows, kExperts);
    Tensor * product = builder.mul_mat_id(context, weights, in, ids);
    Tensor * sum = builder.add_id(context, product, bias, ids);
    Tensor * glu = builder.swiglu_split(context, product, sum);
    Tensor * oai = builder.swiglu_oai(context, product, sum, 1.5f, 7.0f);
    Tensor * scaled = builder.mul(context, product, builder.new_3d(context, kF32, 1, kUsed, kTokens));
    host.mul_mat = builder.mul_mat(context, builder.new_2d(context, kF32, kCols, kRows), in)->op;
    host.mul_mat_id = product->op;
    host.mul = scaled->op;
    host.add_id = sum->op;
    host.glu = glu->op;
    host.glu_swiglu = glu->op_params[0];
    host.glu_swiglu_oai = oai->op_params[0];
    return product_as_declared(*product, *weights, *in, *ids) && sum->src[0] == product && sum->src[1] == bias &&
           sum->src[2] == ids && scaled->src[0] == product && glu->src[0] == product && glu->src[1] == sum &&
           oai_as_declared(*oai, glu->op, 1.5f, 7.0f) && host.glu_swiglu != host.glu_swiglu_oai;
}

}  // namespace

bool Host::resolve(std::string & error) {
    Builder builder;
    if (!find_all(*this, builder, error)) return false;
    version = builder.version();
    accelerator = 3;
    constexpr size_t kObject = 32;  // what ggml keeps before each tensor
    if (builder.overhead() != sizeof(Tensor) + kObject) {
        error = "a tensor of ggml " + version + " is not laid out as that of ggml 0.24";
        return false;
    }
    Context * context = builder.init({16 * builder.overhead(), nullptr, true});
    if (context == nullptr) {
        error = "ggml_init failed";
        return false;
    }
    const bool known = learn(*this, builder, context);
    builder.free(context);
    if (!known) error = "tensors of ggml " + version + " do not read as those of ggml 0.24";
    return known;
}

}  // namespace expertstream::v2
