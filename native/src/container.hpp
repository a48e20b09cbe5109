// The `.jns` container as bytes: docs/reference/jns.md in C++. Private to the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.hpp"
#include "progress.hpp"

namespace expertstream::jns {

constexpr char kMagic[8] = {'D', 'R', 'V', 'T', 'R', 'A', 'I', 'N'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMatrixAlignment = 64;  // of a matrix inside a slot

struct Head {  // at byte 0
    char magic[8];
    uint32_t version, flags;
    uint64_t total_bytes, gguf_bytes;
    uint64_t tables_at, tables_bytes;
    uint32_t extents, layers, matrices, experts;  // entries of the four tables
    uint32_t tables_crc, reserved[12];
    uint32_t head_crc;  // of all bytes before it
};
static_assert(sizeof(Head) == 120);

struct ExtentEntry {
    uint64_t gguf_at, size, at;
    uint32_t crc, reserved;
};
static_assert(sizeof(ExtentEntry) == 32);

struct LayerEntry {
    uint32_t number, experts, matrices, reserved;
    uint64_t slot_bytes, slots_at;
};
static_assert(sizeof(LayerEntry) == 32);

struct MatrixEntry {
    uint32_t tensor, reserved;  // which of the GGUF's tensors, from 0
    uint64_t start, bytes;      // in a slot
};
static_assert(sizeof(MatrixEntry) == 24);

// All that is said of the contents.
struct Tables {
    Head head{};
    std::vector<ExtentEntry> extents;
    std::vector<LayerEntry> layers;
    std::vector<MatrixEntry> matrices;  // those of the first layer, of the second, ...
    std::vector<uint32_t> crcs;         // one per slot, likewise

    uint64_t bytes() const;  // of the four tables
};

// Where everything of `model` goes. CRCs are still 0.
Tables lay_out(const model::Model & model);

// Writes head and tables, with their checksums.
bool write_tables(const disk::File & to, Tables & tables, std::string & error);

// Reads every byte of a container and compares it with the checksums. `error` names the first damaged place.
bool verify(const model::Model & container, Progress & progress, std::string & error);

std::string slot_name(const Index & index, uint32_t layer, uint32_t expert);  // "layer 3, expert 17"

}  // namespace expertstream::jns
