#include "dense.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "maths.hpp"

namespace expertstream::v2 {
namespace {

constexpr const char * kName = "Expertstream dense";
constexpr int64_t kMostCols = 32768;    // longer rows leave the kernels no room for their scratch
constexpr int64_t kItemsPerThread = 4;  // so that one that was held up does not hold up the others

// --- what the host's processor backend calls, in its own order of virtual functions (Itanium's C++ ABI) ---------------

struct Params {
    int index, count;  // of threads
    size_t work_bytes;
    void * work;
    void * threads;
    bool reference;
};

class Calculation {
  public:
    virtual ~Calculation() = default;
    virtual bool work_size(int threads, const Tensor * node, size_t & bytes) = 0;
    virtual bool compute(Params * params, Tensor * node) = 0;
};

class ExtraMemory {
  public:
    virtual ~ExtraMemory() = default;
    virtual bool supports_op(Device * device, const Tensor * node) = 0;
    virtual Calculation * calculation(const Tensor * node) = 0;
};

// The functions of the host that only this needs.
struct Processor {
    std::vector<BufferType *> & (*extra_types)() = nullptr;
    BufferType * (*plain_type)() = nullptr;
    Buffer * (*alloc_buffer)(BufferType *, size_t) = nullptr;
    void (*barrier)(void *) = nullptr;
    void (*chunk_set)(void *, int) = nullptr;
    int (*chunk_add)(void *, int) = nullptr;
    bool (*work_size)(int, const Tensor *, size_t *) = nullptr;
    bool (*compute)(Params *, Tensor *) = nullptr;

    bool resolve(std::string & why) {
        return find(extra_types, "_Z39ggml_backend_cpu_get_extra_buffer_typesv", why) &&
               find(plain_type, "ggml_backend_cpu_buffer_type", why) &&
               find(alloc_buffer, "ggml_backend_buft_alloc_buffer", why) && find(barrier, "ggml_barrier", why) &&
               find(chunk_set, "ggml_threadpool_chunk_set", why) && find(chunk_add, "ggml_threadpool_chunk_add", why) &&
               find(work_size, "ggml_cpu_extra_work_size", why) && find(compute, "ggml_cpu_extra_compute_forward", why);
    }
};

// --- one product ------------------------------------------------------------------------------------------------------

// node = src[0] times every row of src[1].
class DenseProduct {
  public:
    DenseProduct(const Product & product, Tensor & node, const Params & params, const Processor & processor)
        : product_(product), weights_(*node.src[0]), in_(*node.src[1]), node_(node), params_(params),
          processor_(processor), cols_(weights_.ne[0]), rows_(weights_.ne[1]),
          count_(in_.ne[1] * in_.ne[2] * in_.ne[3]), x_bytes_(product.row_bytes(static_cast<uint64_t>(cols_))) {}

    static size_t work_bytes(const Product & product, const Tensor & node) {
        const Tensor & in = *node.src[1];
        return static_cast<size_t>(in.ne[1] * in.ne[2] * in.ne[3]) * product.row_bytes(static_cast<uint64_t>(in.ne[0]));
    }

    void run() {
        quantise();
        if (params_.count > 1) {
            if (params_.index == 0) processor_.chunk_set(params_.threads, params_.count);
            processor_.barrier(params_.threads);
        }
        const int64_t width = rows_per_item(), across = (rows_ + width - 1) / width;
        const int64_t items = across * ((count_ + kMostActivations - 1) / kMostActivations);
        for (int64_t item = params_.index; item < items; item = next(item))
            multiply(item % across * width, width, item / across * kMostActivations);
    }

  private:
    int64_t next(int64_t item) const { return params_.count > 1 ? processor_.chunk_add(params_.threads, 1) : item + 1; }

    int64_t rows_per_item() const {
        const int64_t fair = rows_ / (kItemsPerThread * params_.count) / kLeastItemRows * kLeastItemRows;
        return std::clamp<int64_t>(fair, kLeastItemRows, kMostItemRows);
    }

    // Each thread a share of all blocks, as there may be but one row.
    void quantise() {
        const int64_t block = cols_ % 256 == 0 ? 256 : 32, blocks = cols_ / block, all = count_ * blocks;
        const size_t bytes = product_.row_bytes(static_cast<uint64_t>(block));
        const int64_t end = all * (params_.index + 1) / params_.count;
        for (int64_t at = all * params_.index / params_.count; at < end;) {
            const int64_t row = at / blocks, first = at % blocks, here = std::min(blocks - first, end - at);
            product_.quantise(reinterpret_cast<const float *>(row_of(in_, row)) + first * block,
                              x(row) + static_cast<size_t>(first) * bytes, here * block);
            at += here;
        }
    }

    void multiply(int64_t row, int64_t width, int64_t begin) const {
        const int64_t count = std::min<int64_t>(kMostActivations, count_ - begin);
        const uint8_t * in[kMostActivations] = {};
        float * out[kMostActivations] = {};
        for (int64_t i = 0; i < count; ++i) {
            in[i] = x(begin + i);
            out[i] = reinterpret_cast<float *>(row_of(node_, begin + i)) + row;
        }
        product_.fast(static_cast<uint64_t>(cols_),
                      static_cast<const uint8_t *>(weights_.data) + static_cast<size_t>(row) * weights_.nb[1],
                      weights_.nb[1], static_cast<uint32_t>(std::min(width, rows_ - row)), in, out,
                      static_cast<uint32_t>(count));
    }

    uint8_t * x(int64_t row) const {
        return static_cast<uint8_t *>(params_.work) + static_cast<size_t>(row) * x_bytes_;
    }

    static char * row_of(const Tensor & tensor, int64_t row) {
        const int64_t plane = row / tensor.ne[1];
        return static_cast<char *>(tensor.data) + static_cast<size_t>(row % tensor.ne[1]) * tensor.nb[1] +
               static_cast<size_t>(plane % tensor.ne[2]) * tensor.nb[2] +
               static_cast<size_t>(plane / tensor.ne[2]) * tensor.nb[3];
    }

    const Product & product_;
    const Tensor & weights_;
    const Tensor & in_;
    Tensor & node_;
    const Params & params_;
    const Processor & processor_;
    const int64_t cols_, rows_, count_;
    const size_t x_bytes_;
};

// --- the memory -------------------------------------------------------------------------------------------------------
// The host's plain one in all but its name.

class DenseMemory : public ExtraMemory, public Calculation {
  public:
    Host host;
    Processor processor;
    std::map<int32_t, Product> products;
    BufferType type{};

    bool supports_op(Device *, const Tensor * node) override {
        if (node->op != host.mul_mat) return false;
        const Tensor &weights = *node->src[0], &in = *node->src[1];
        return mine(weights) && products.count(weights.type) != 0 && weights.ne[2] == 1 && weights.ne[3] == 1 &&
               weights.ne[0] <= kMostCols && in.type == static_cast<int32_t>(kF32) && in.nb[0] == sizeof(float);
    }

    Calculation * calculation(const Tensor * node) override {
        return supports_op(nullptr, node) ? this : nullptr;  // else the host's own way, to which this is plain memory
    }

    bool work_size(int, const Tensor * node, size_t & bytes) override {
        bytes = DenseProduct::work_bytes(products.at(node->src[0]->type), *node);
        return true;
    }

    bool compute(Params * params, Tensor * node) override {
        DenseProduct(products.at(node->src[0]->type), *node, *params, processor).run();
        return true;
    }

  private:
    bool mine(const Tensor & tensor) const { return tensor.buffer != nullptr && tensor.buffer->type == &type; }
};

DenseMemory & memory() {
    static DenseMemory one;
    return one;
}

const char * type_name(BufferType *) { return kName; }

Buffer * alloc_buffer(BufferType * type, size_t size) {
    const Processor & host = memory().processor;
    Buffer * buffer = host.alloc_buffer(host.plain_type(), size);
    if (buffer != nullptr) buffer->type = type;
    return buffer;
}

// Types that the host has faster kernels for which add up in another order, so that the last bits are nobody's promise. Not IQ4_NL: the
// host has a third way for it, which is further from ours than its two others are from each other.
constexpr uint32_t kTypes[] = {kQ4_0, kQ4_K, kQ5_K, kQ6_K, kIQ4_XS};

// A product as a layer has one goes to us by the host's own way, and gives what our kernel gives.
class Trial {
  public:
    Trial(DenseMemory & own, int32_t type) : own_(own), product_(own.products.at(type)) {
        buffer_.type = &own.type;
        const size_t row = own.host.row_size(type, kCols);
        bytes_.resize(kRows * row);
        std::mt19937 random(1);
        for (uint8_t & byte : bytes_) byte = static_cast<uint8_t>(random() % 16);  // small scales: no infinities
        for (float & value : values_) value = static_cast<float>(random() % 100) / 100.f;
        weights_ = tensor(type, kCols, kRows, row, bytes_.data());
        weights_.buffer = &buffer_;
        in_ = tensor(static_cast<int32_t>(kF32), kCols, kCount, kCols * sizeof(float), values_);
        node_ = tensor(static_cast<int32_t>(kF32), kRows, kCount, kRows * sizeof(float), results_);
        node_.op = own.host.mul_mat;
        node_.src[0] = &weights_;
        node_.src[1] = &in_;
    }

    bool passes() {
        size_t size = 0;
        if (!own_.processor.work_size(1, &node_, &size) || size != DenseProduct::work_bytes(product_, node_))
            return false;
        std::vector<uint8_t> work(size);
        Params params{0, 1, size, work.data(), nullptr, false};
        if (!own_.processor.compute(&params, &node_)) return false;
        float expected[kCount][kRows];
        for (int64_t i = 0; i < kCount; ++i) {
            product_.quantise(values_ + i * kCols, work.data(), kCols);
            const uint8_t * x = work.data();
            float * out = expected[i];
            product_.fast(kCols, bytes_.data(), weights_.nb[1], kRows, &x, &out, 1);
        }
        return std::memcmp(expected, results_, sizeof results_) == 0;
    }

  private:
    static constexpr int64_t kCols = 512, kRows = 64, kCount = 3;

    static Tensor tensor(int32_t type, int64_t cols, int64_t rows, size_t row_bytes, void * data) {
        Tensor made{};
        made.type = type;
        made.ne[0] = cols;
        made.ne[1] = rows;
        made.ne[2] = made.ne[3] = 1;
        made.nb[0] = sizeof(float);
        made.nb[1] = row_bytes;
        made.nb[2] = made.nb[3] = row_bytes * static_cast<size_t>(rows);
        made.data = data;
        return made;
    }

    DenseMemory & own_;
    const Product & product_;
    Buffer buffer_{};
    std::vector<uint8_t> bytes_;
    float values_[kCols * kCount], results_[kCount * kRows] = {};
    Tensor weights_, in_, node_;
};

}  // namespace

bool offer_dense(const Host & host, std::string & why) {
    DenseMemory & own = memory();
    own.host = host;
    if (!own.processor.resolve(why)) return false;
    for (const uint32_t type : kTypes) {
        Product product;
        if (product_of(host, type, product, why) && product.fast != nullptr)
            own.products[static_cast<int32_t>(type)] = product;
    }
    why = own.products.empty() ? "this processor has no kernels of ours" : "";
    if (!why.empty()) return false;
    std::vector<BufferType *> & types = own.processor.extra_types();
    own.type = *own.processor.plain_type();
    own.type.table.get_name = type_name;
    own.type.table.alloc_buffer = alloc_buffer;
    own.type.context = static_cast<ExtraMemory *>(&own);
    own.type.device = types.empty() ? nullptr : types.front()->device;
    types.insert(types.begin(), &own.type);  // before the host's own
    if (Trial(own, own.products.begin()->first).passes()) return true;
    types.erase(types.begin());
    why = "a product of ours does not come back from it as it should";
    return false;
}

}  // namespace expertstream::v2
