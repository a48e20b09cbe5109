// What ggml's backend interface of version 2 looks like in memory, in our own words: the layout of its structures, the order of its
// tables of functions, and the functions of the host that we call. Facts of the ABI; nothing else in native/ knows them.
// Source of the facts: ggml 0.24.0 (the pinned wheel) and 0.25.3, which agree. `Host::resolve` checks what it can at load.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace expertstream::v2 {

constexpr int kApiVersion = 2;

struct BufferType;
struct Buffer;
struct Backend;
struct Device;
struct Registry;
struct Graph;    // opaque: read through the host's functions
struct Context;  // opaque

struct Tensor {
    int32_t type;
    Buffer * buffer;
    int64_t ne[4];  // elements per dimension
    size_t nb[4];   // stride in bytes per dimension
    int32_t op;
    int32_t op_params[16];
    int32_t flags;
    Tensor * src[10];
    Tensor * view_src;
    size_t view_offs;
    void * data;
    char name[64];
    void * extra;
    char padding[8];
};

struct BufferTypeTable {
    const char * (*get_name)(BufferType *);
    Buffer * (*alloc_buffer)(BufferType *, size_t);
    size_t (*get_alignment)(BufferType *);
    size_t (*get_max_size)(BufferType *);
    size_t (*get_alloc_size)(BufferType *, const Tensor *);
    bool (*is_host)(BufferType *);
};

struct BufferType {
    BufferTypeTable table;
    Device * device;
    void * context;
};

struct BufferTable {
    void (*free_buffer)(Buffer *);
    void * (*get_base)(Buffer *);
    int (*init_tensor)(Buffer *, Tensor *);
    void (*memset_tensor)(Buffer *, Tensor *, uint8_t, size_t, size_t);
    void (*set_tensor)(Buffer *, Tensor *, const void *, size_t, size_t);
    void (*get_tensor)(Buffer *, const Tensor *, void *, size_t, size_t);
    void (*set_tensor_2d)(Buffer *, Tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d)(Buffer *, const Tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*copy_tensor)(Buffer *, const Tensor *, Tensor *);
    void (*clear)(Buffer *, uint8_t);
    void (*reset)(Buffer *);
};

struct Buffer {
    BufferTable table;
    BufferType * type;
    void * context;
    size_t size;
    int usage;
};

struct BackendTable {
    const char * (*get_name)(Backend *);
    void (*free)(Backend *);
    void (*set_tensor_async)(Backend *, Tensor *, const void *, size_t, size_t);
    void (*get_tensor_async)(Backend *, const Tensor *, void *, size_t, size_t);
    void (*set_tensor_2d_async)(Backend *, Tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d_async)(Backend *, const Tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*copy_tensor_async)(Backend *, Backend *, const Tensor *, Tensor *);
    void (*synchronize)(Backend *);
    void * (*plan_create)(Backend *, const Graph *);
    void (*plan_free)(Backend *, void *);
    void (*plan_update)(Backend *, void *, const Graph *);
    int (*plan_compute)(Backend *, void *);
    int (*graph_compute)(Backend *, Graph *);
    void (*event_record)(Backend *, void *);
    void (*event_wait)(Backend *, void *);
    void (*graph_optimize)(Backend *, Graph *, void *);
};

using Guid = uint8_t[16];

struct Backend {
    Guid * guid;
    BackendTable table;
    Device * device;
    void * context;
};

struct DeviceProperties {
    const char * name;
    const char * description;
    size_t memory_free, memory_total;
    int type;
    const char * device_id;
    struct {
        bool async, host_buffer, buffer_from_host_ptr, events, mmap;
    } can;
};

struct DeviceTable {
    const char * (*get_name)(Device *);
    const char * (*get_description)(Device *);
    void (*get_memory)(Device *, size_t *, size_t *);
    int (*get_type)(Device *);
    void (*get_properties)(Device *, DeviceProperties *);
    Backend * (*init_backend)(Device *, const char *);
    BufferType * (*get_buffer_type)(Device *);
    BufferType * (*get_host_buffer_type)(Device *);
    Buffer * (*buffer_from_host_ptr)(Device *, void *, size_t, size_t);
    bool (*supports_op)(Device *, const Tensor *);
    bool (*supports_buffer_type)(Device *, BufferType *);
    bool (*offload_op)(Device *, const Tensor *);
    void * (*event_new)(Device *);
    void (*event_free)(Device *, void *);
    void (*event_synchronize)(Device *, void *);
};

struct Device {
    DeviceTable table;
    Registry * registry;
    void * context;
};

struct RegistryTable {
    const char * (*get_name)(Registry *);
    size_t (*get_device_count)(Registry *);
    Device * (*get_device)(Registry *, size_t);
    void * (*get_proc_address)(Registry *, const char *);
};

struct Registry {
    int api_version;
    RegistryTable table;
    void * context;
};

enum Status : int { kFailed = -1, kSuccess = 0 };

using FromFloat = void (*)(const float *, void *, int64_t);
using VecDot = void (*)(int, float *, size_t, const void *, size_t, const void *, size_t, int);

struct TypeTraits {
    FromFloat from_float;
    VecDot vec_dot;
    int32_t vec_dot_type;
    int64_t nrows;
};

// A function of the process that has loaded us, by the name that its linker knows. False and why if it has none.
template <typename F>
bool find(F & function, const char * name, std::string & error) {
    function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
    if (function == nullptr) error = std::string("the llama.cpp in this process has no function ") + name;
    return function != nullptr;
}

// The functions of the process that has loaded us, and the numbers that it gives to operations.
struct Host {
    Buffer * (*buffer_init)(BufferType *, BufferTable, void *, size_t) = nullptr;
    int (*graph_n_nodes)(Graph *) = nullptr;
    Tensor * (*graph_node)(Graph *, int) = nullptr;
    const TypeTraits * (*type_traits)(int32_t) = nullptr;
    size_t (*row_size)(int32_t, int64_t) = nullptr;
    bool (*buffer_type_is_host)(BufferType *) = nullptr;
    void (*swiglu)(int, float *, const float *, const float *) = nullptr;  // y = silu(x) * g

    int32_t mul_mat = 0, mul_mat_id = 0, add_id = 0, glu = 0,
            mul = 0;                             // operations, learned from tensors that the host built
    int32_t glu_swiglu = 0, glu_swiglu_oai = 0;  // kinds of GLU, likewise
    int accelerator = 0;                         // device type
    std::string version;

    // Finds everything in the global namespace, and compares the layout of a few tensors with what is declared above. False and
    // why, if this process is not one that we know.
    bool resolve(std::string & error);
};

}  // namespace expertstream::v2
