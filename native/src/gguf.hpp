// The header of a GGUF: its keys, its tensors and where they lie. Private to the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "disk.hpp"

namespace expertstream::gguf {

constexpr uint32_t kUint8 = 0, kInt8 = 1, kUint16 = 2, kInt16 = 3, kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7,
                   kString = 8, kArray = 9, kUint64 = 10, kInt64 = 11, kFloat64 = 12;

struct Key {
    std::string name;
    uint32_t type = 0;
    uint64_t at = 0, end = 0;  // its bytes in the header, name and value
    uint64_t number = 0;       // of whole numbers and bools; of a short list of them the largest
    std::string text;          // of a string that is not long
};

struct Tensor {
    std::string name;
    uint32_t type = 0, dims = 0;
    uint64_t ne[4] = {1, 1, 1, 1};
    uint64_t offset = 0;  // in the file
    uint64_t bytes = 0;
};

struct Header {
    uint64_t file_bytes = 0;
    uint32_t version = 0;
    uint64_t alignment = 32;
    uint64_t tensors_at = 0;  // where the table of tensors begins, and the keys end
    uint64_t data_at = 0;     // where the data of the tensors begins
    std::vector<Key> keys;
    std::vector<Tensor> tensors;

    const Key * key(const std::string & name) const;
    uint64_t number(const std::string & name, uint64_t otherwise) const;
    std::string text(const std::string & name) const;
};

// Where a GGUF lies: in a file from `base` on. Only the first `readable` of its `bytes` need to lie there in one piece.
struct Place {
    const disk::File * file = nullptr;
    uint64_t base = 0, readable = 0, bytes = 0;
};

// Reads and checks it: every count, size, offset and type against the file. Tensors lie inside the file and apart.
bool read_header(const Place & place, Header & header, std::string & error);

// The files of a split GGUF whose first part is `path`, in order; {path} if `count` is 1. Fails if the name is not
// "…-00001-of-N.gguf".
bool split_names(const std::string & path, uint64_t count, std::vector<std::string> & names, std::string & error);

std::string type_name(uint32_t type);  // "Q4_K", or "type 57"

uint64_t round_up(uint64_t value, uint64_t alignment);  // to a multiple of a power of two

}  // namespace expertstream::gguf
