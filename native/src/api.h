/* The C interface of the library: what Python calls through ctypes. Texts are UTF-8. Functions that can fail return 0 for
 * success and else write a zero-terminated reason into `error` (`error_bytes` long). */
#ifndef EXPERTSTREAM_API_H
#define EXPERTSTREAM_API_H

#include <stddef.h>
#include <stdint.h>

#define ES_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

ES_API const char * es_version(void);

/* The model whose experts the backend is to own. Call before ggml_backend_load. `options`: lines "name=value":
 *   model=PATH (GGUF or .jns; required)   budget=BYTES (0: the governor decides)   least=BYTES   io=auto|threads|uring
 *   direct=auto|on|off   depth=N   piece=BYTES   threads=N   stall_ms=N
 *   stats=PATH   trace=PATH   share=PATH   prefetch=on|off   dense=on|off (off: the host multiplies dense matrices) */
ES_API int es_configure(const char * options, char * error, size_t error_bytes);

/* Why ggml_backend_load gave no backend; empty if it has not refused. */
ES_API const char * es_refusal(void);

/* A GGUF of `model`'s metadata and dense tensors with holes where experts were, for llama.cpp to load. */
ES_API int es_shell(const char * model, const char * shell, char * error, size_t error_bytes);

/* Container. `progress` may be NULL; a value other than 0 from it stops with an error. Resumable, verified, atomic. */
typedef int (*es_progress)(uint64_t done, uint64_t total, void * context);
ES_API int es_pack(const char * gguf, const char * jns, es_progress progress, void * context, char * error,
                   size_t error_bytes);
ES_API int es_unpack(const char * jns, const char * gguf, es_progress progress, void * context, char * error,
                     size_t error_bytes);
ES_API int es_verify(const char * jns, es_progress progress, void * context, char * error, size_t error_bytes);

/* What a model is made of. `json` gets {"experts": n, "layers": n, "used": n, "expert_bytes": n, "slot_bytes": n, "dense_bytes": n, ...}. */
ES_API int es_describe(const char * model, char * json, size_t json_bytes, char * error, size_t error_bytes);

/* Bytes per second of random reads of `piece` bytes from `path` at `depth` in flight, for about `ms` milliseconds. */
ES_API int es_probe_drive(const char * path, const char * io, int direct, unsigned depth, uint64_t piece, unsigned ms,
                          double * bytes_per_s, char * error, size_t error_bytes);
/* Bytes per second that `threads` threads read from memory. */
ES_API double es_probe_memory(unsigned threads, unsigned ms);

#ifdef __cplusplus
}
#endif
#endif
