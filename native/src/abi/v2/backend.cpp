// The backend as the host sees it: a device that owns the expert tensors, whose memory is address space only, and that calculates
// the products in which they take part. One model per process; what the model is was told before by `es_configure`.
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "../../api.h"
#include "../../c_call.hpp"
#include "../../registry.hpp"
#include "../../text.hpp"
#include "dense.hpp"
#include "ggml.hpp"
#include "graph.hpp"
#include "maths.hpp"

namespace expertstream::v2 {
namespace {

constexpr const char * kName = "Expertstream";
constexpr size_t kAlignment = 128;

// Everything that the tables of functions below work on.
struct Plugin {
    Host host;
    Engine * engine = nullptr;
    std::map<std::string, Owned> tensors;  // by name; addresses stay
    std::atomic<int> contexts{0};          // backends that calculate: once there is one, the weights are loaded
    std::atomic<int> events{0};            // the loader has some while it loads, nobody else
    std::atomic<unsigned> threads{1};
    std::vector<Tensor *> nodes;
    std::vector<Step> steps;
};

Plugin & plugin() {
    static Plugin one;
    return one;
}

const Owned * owned(const Tensor * tensor) {
    const auto found = plugin().tensors.find(tensor->name);
    return found == plugin().tensors.end() ? nullptr : &found->second;
}

// --- memory -----------------------------------------------------------------------------------------------------------

const char * type_name(BufferType *) { return kName; }
const char * backend_name(Backend *) { return kName; }
const char * device_name(Device *) { return kName; }
const char * registry_name(Registry *) { return kName; }
const char * describe(Device *) { return "experts from the drive"; }

void free_buffer(Buffer * buffer) {
    if (buffer->context != nullptr) munmap(buffer->context, buffer->size);
}

void * base(Buffer * buffer) {
    // A buffer of no bytes must have an address all the same.
    return buffer->context != nullptr ? buffer->context : reinterpret_cast<void *>(kAlignment);
}

int init_tensor(Buffer *, Tensor * tensor) {
    if (tensor->view_src == nullptr) tensor->extra = const_cast<Owned *>(owned(tensor));
    return kSuccess;
}

void memset_tensor(Buffer *, Tensor * tensor, uint8_t value, size_t offset, size_t size) {
    if (tensor->extra == nullptr) std::memset(static_cast<char *>(tensor->data) + offset, value, size);
}

// Experts stay on the drive; everything else (activations of a graph) is memory like any other.
void set_tensor(Buffer *, Tensor * tensor, const void * data, size_t offset, size_t size) {
    if (tensor->extra == nullptr) std::memcpy(static_cast<char *>(tensor->data) + offset, data, size);
}

void get_tensor(Buffer *, const Tensor * tensor, void * data, size_t offset, size_t size) {
    if (tensor->extra != nullptr) {
        plugin().engine->stats().fail(std::string("the host asked for the bytes of ") + tensor->name +
                                      ", which only the drive has");
        std::memset(data, 0, size);
        return;
    }
    std::memcpy(data, static_cast<const char *>(tensor->data) + offset, size);
}

void clear(Buffer *, uint8_t) {}  // fresh pages are zero, and writing to them would take memory

// Address space without memory. Experts never touch it; activations take what they use of it.
Buffer * alloc_buffer(BufferType * type, size_t size) {
    void * memory = nullptr;
    if (size > 0) {
        memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return nullptr;
    }
    static const BufferTable table{free_buffer, base,    init_tensor, memset_tensor, set_tensor, get_tensor,
                                   nullptr,     nullptr, nullptr,     clear,         nullptr};
    return plugin().host.buffer_init(type, table, memory, size);
}

size_t alignment(BufferType *) { return kAlignment; }

// While weights are loaded: no, or the loader would read experts straight into the address space. Later: yes, or each activation
// would be copied on its way from the processor's buffers to ours and back.
bool is_host(BufferType *) { return plugin().contexts > 0; }

// --- loading ----------------------------------------------------------------------------------------------------------
// The loader has to read the holes where experts were. To a device that takes copies without being waited for it reads them in
// large pieces into a few buffers that it uses again; else it would take fresh memory for each tensor, which is ten times slower.

bool staging_is_host(BufferType *) { return true; }

BufferType * staging_type(Device * of) {
    static BufferType type{{type_name, alloc_buffer, alignment, nullptr, nullptr, staging_is_host}, of, nullptr};
    return &type;
}

void ignore_copy(Backend *, Tensor *, const void *, size_t, size_t) {}

void * new_event(Device * of) {
    struct Event {
        Device * device;
        void * context;
    };
    ++plugin().events;
    return new (std::nothrow) Event{of, nullptr};
}

void free_event(Device *, void * event) {
    --plugin().events;
    ::operator delete(event);
}

void await_event(Device *, void *) {}
void record_event(Backend *, void *) {}

// --- calculation ------------------------------------------------------------------------------------------------------

bool calculate_step(Plugin & p, const Step & step, std::string & error) {
    if (step.kind == Step::bias) {
        add_bias(*step.node);
    } else if (step.kind == Step::scale) {
        multiply(*step.node);
    } else if (step.kind == Step::glu) {
        calculate_glu(p.host, *step.node);
    } else {
        return p.engine->op().run(step.work, p.threads, error);
    }
    return true;
}

bool calculate_graph(Plugin & p, Graph * graph, std::string & error) {
    p.nodes.clear();
    for (int i = 0; i < p.host.graph_n_nodes(graph); ++i) p.nodes.push_back(p.host.graph_node(graph, i));
    bool done = plan(p.host, p.nodes, p.steps, error);
    for (size_t i = 0; done && i < p.steps.size(); ++i) done = calculate_step(p, p.steps[i], error);
    p.engine->publish();
    return done;
}

int graph_compute(Backend *, Graph * graph) {
    Plugin & p = plugin();
    char reason[512];
    const auto work = [&](std::string & error) { return calculate_graph(p, graph, error); };
    if (c_call(reason, sizeof reason, work) == 0) return kSuccess;
    std::fprintf(stderr, "expertstream: %s\n", reason);
    return kFailed;
}

struct Calculating : Backend {
    bool counts = false;  // as one of the contexts
};

void free_backend(Backend * backend) {
    auto * own = static_cast<Calculating *>(backend);
    if (own->counts) --plugin().contexts;
    delete own;
}

void set_threads(Backend *, int threads) { plugin().threads = threads > 0 ? static_cast<unsigned>(threads) : 1; }

// --- device -----------------------------------------------------------------------------------------------------------

Device * device();

Backend * init_backend(Device * of, const char *) {
    static Guid guid = {0x64, 0x72, 0x69, 0x76, 0x65, 0x74, 0x72, 0x61, 0x69, 0x6e, 0x2d, 0x6d, 0x6f, 0x65, 0x30, 0x31};
    auto * backend = new (std::nothrow) Calculating{};
    if (backend == nullptr) return nullptr;
    backend->counts = plugin().events == 0;  // else it is the loader's
    if (backend->counts) ++plugin().contexts;
    backend->guid = &guid;
    backend->device = of;
    backend->table.get_name = backend_name;
    backend->table.free = free_backend;
    backend->table.set_tensor_async = ignore_copy;
    backend->table.event_record = record_event;
    backend->table.graph_compute = graph_compute;
    return backend;
}

BufferType * buffer_type(Device * of) {
    static BufferType type{{type_name, alloc_buffer, alignment, nullptr, nullptr, is_host}, of, nullptr};
    return &type;
}

bool is_product(const Tensor * node) { return owned_product(plugin().host, node) != nullptr; }

// A tensor that is one of our products, with or without a bias, or a part of one.
bool is_ours(const Tensor * tensor) {
    const Tensor * node = tensor->view_src != nullptr ? tensor->view_src : tensor;
    return is_product(node) || (node->op == plugin().host.add_id && is_product(node->src[0]));
}

bool supports_op(Device *, const Tensor * node) {
    const Host & host = plugin().host;
    if (plugin().contexts == 0)  // the loader asks for the sake of a weight
        return node->op == host.mul_mat_id && owned(node->src[0]) != nullptr;
    if (node->op == host.mul_mat_id) return is_product(node);
    if (node->op == host.add_id) return is_product(node->src[0]);
    if (known_scale(host, node)) return node->src[0]->view_src == nullptr && is_ours(node->src[0]);
    return known_glu(host, node) && is_ours(node->src[0]) && is_ours(node->src[1]);
}

bool supports_buffer_type(Device * of, BufferType * type) {
    return type == buffer_type(of) || plugin().host.buffer_type_is_host(type);
}

void memory(Device *, size_t * free, size_t * total) { *free = *total = 0; }

int type(Device *) { return plugin().host.accelerator; }

void properties(Device * of, DeviceProperties * to) {
    to->name = device_name(of);
    to->description = describe(of);
    to->type = type(of);
    to->can.async = to->can.host_buffer = to->can.events = to->can.mmap = true;
}

size_t device_count(Registry *) { return 1; }
Device * device_at(Registry *, size_t) { return device(); }

void * procedure(Registry *, const char * name) {
    return std::strcmp(name, "ggml_backend_set_n_threads") == 0 ? reinterpret_cast<void *>(set_threads) : nullptr;
}

Registry * registry() {
    static Registry one{kApiVersion, {registry_name, device_count, device_at, procedure}, nullptr};
    return &one;
}

Device * device() {
    static Device one{{device_name, describe, memory, type, properties, init_backend, buffer_type, staging_type,
                       nullptr, supports_op, supports_buffer_type, nullptr, new_event, free_event, await_event},
                      registry(),
                      nullptr};
    return &one;
}

void name_tensors(Plugin & p) {
    for (uint32_t layer = 0; layer < p.engine->index.layers.size(); ++layer) {
        const auto & matrices = p.engine->index.layers[layer].matrices;
        for (size_t i = 0; i < matrices.size(); ++i) p.tensors[matrices[i].name] = {layer, static_cast<int>(i)};
    }
}

// Without it everything works, only slower; so a host that does not take it is no failure.
void take_dense(Plugin & p) {
    std::string why;
    const bool ours = p.engine->options.dense && offer_dense(p.host, why);
    if (!why.empty()) std::fprintf(stderr, "expertstream: dense matrices stay with the host: %s\n", why.c_str());
    Page & page = p.engine->stats().page();
    write_text(page.kernel, sizeof page.kernel, std::string(page.kernel) + (ours ? " dense:own" : " dense:host"));
}

Registry * open(std::string & error) {
    Plugin & p = plugin();
    p.engine = configured();
    if (p.engine == nullptr) {
        error = "no model was configured";
        return nullptr;
    }
    Maths maths;
    if (!p.host.resolve(error) || !make_maths(p.host, p.engine->index, p.engine->stats().page(), maths, error))
        return nullptr;
    p.threads = p.engine->options.threads;
    name_tensors(p);
    take_dense(p);
    p.engine->start(std::move(maths));
    return registry();
}

}  // namespace
}  // namespace expertstream::v2

// What ggml looks for in a backend that it loads from a file.
extern "C" ES_API void * ggml_backend_init(void) {
    using namespace expertstream;
    v2::Registry * registry = nullptr;
    char reason[512] = {};
    const auto open = [&](std::string & error) { return (registry = v2::open(error)) != nullptr; };
    if (c_call(reason, sizeof reason, open) != 0) refuse(reason);
    return registry;
}
