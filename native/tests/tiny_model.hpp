// Tiny GGUFs for tests, byte by byte.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "temporary.hpp"

inline std::string read_file(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(path + " cannot be read");
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string & path, const std::string & bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw std::runtime_error(path + " cannot be written");
}

template <class T> std::string raw(T value) {
    return std::string(reinterpret_cast<const char *>(&value), sizeof value);
}

inline std::string counted(const std::string & text) { return raw<uint64_t>(text.size()) + text; }

struct TinyTensor {
    std::string name;
    uint32_t type;
    std::vector<uint64_t> ne;
    uint64_t bytes;
    uint64_t offset = ~uint64_t{0};  // where it would not lie by itself
};

// A GGUF as it is written: change a member, and only that is wrong about it.
struct TinyGguf {
    uint32_t version = 3;
    uint64_t alignment = 32;
    std::vector<std::string> keys;
    std::vector<TinyTensor> tensors;
    uint64_t seed = 1;

    static std::string text_key(const std::string & name, const std::string & value) {
        return counted(name) + raw<uint32_t>(8) + counted(value);
    }
    static std::string number_key(const std::string & name, uint32_t value) {
        return counted(name) + raw<uint32_t>(4) + raw(value);
    }
    static std::string short_key(const std::string & name, uint16_t value) {
        return counted(name) + raw<uint32_t>(2) + raw(value);
    }

    std::string header() const {
        std::string out = "GGUF" + raw(version) + raw<uint64_t>(tensors.size()) + raw<uint64_t>(keys.size());
        for (const std::string & key : keys) out += key;
        uint64_t offset = 0;
        for (const TinyTensor & tensor : tensors) {
            out += counted(tensor.name) + raw(static_cast<uint32_t>(tensor.ne.size()));
            for (uint64_t n : tensor.ne) out += raw(n);
            out += raw(tensor.type) + raw(tensor.offset == ~uint64_t{0} ? offset : tensor.offset);
            offset = up(offset + tensor.bytes);
        }
        return out;
    }

    std::string bytes() const {
        std::string out = header();
        out.resize(up(out.size()));
        uint64_t state = seed;
        for (const TinyTensor & tensor : tensors) {
            for (uint64_t i = 0; i < tensor.bytes; ++i) {
                out += static_cast<char>((state = state * 6364136223846793005 + 1442695040888963407) >> 56 | 1);
            }
            out.resize(up(out.size()));
        }
        return out;
    }

    uint64_t up(uint64_t value) const { return (value + alignment - 1) / alignment * alignment; }
};

constexpr uint64_t kTinyExperts = 5, kTinyCols = 64, kTinyRows = 48;

inline TinyTensor q8_0(const std::string & name, std::vector<uint64_t> ne) {
    uint64_t bytes = ne[0] / 32 * 34;
    for (size_t i = 1; i < ne.size(); ++i) bytes *= ne[i];
    return {name, 8, std::move(ne), bytes};
}

inline TinyTensor f32(const std::string & name, uint64_t n) { return {name, 0, {n}, n * 4}; }

// Block 0 is dense; 1 and 2 have experts, whose matrices are in the order down, gate, up in the file.
inline TinyGguf tiny_moe() {
    TinyGguf model;
    model.keys = {TinyGguf::text_key("general.architecture", "tiny"),
                  TinyGguf::text_key("general.name", "Tiny \"MoE\""), TinyGguf::number_key("tiny.expert_used_count", 2),
                  TinyGguf::number_key("tiny.context_length", 512),
                  counted("tokenizer.ggml.tokens") + raw<uint32_t>(9) + raw<uint32_t>(8) + raw<uint64_t>(2) +
                      counted("a") + counted("bc")};
    model.tensors = {f32("token_embd.weight", 700), f32("blk.0.ffn_down.weight", 33)};
    for (const std::string & block : {std::string("blk.1."), std::string("blk.2.")}) {
        model.tensors.push_back(f32(block + "attn_norm.weight", 17));
        model.tensors.push_back(q8_0(block + "ffn_down_exps.weight", {kTinyCols, kTinyRows, kTinyExperts}));
        model.tensors.push_back(q8_0(block + "ffn_gate_exps.weight", {kTinyCols, kTinyRows + 1, kTinyExperts}));
        model.tensors.push_back(f32(block + "ffn_gate_inp.weight", 9));
        model.tensors.push_back(q8_0(block + "ffn_up_exps.weight", {kTinyCols, kTinyRows + 2, kTinyExperts}));
    }
    model.tensors.push_back(f32("output_norm.weight", 5));
    return model;
}

// The same in `count` parts, as llama.cpp splits: the keys in the first, tensors in order in all. Returns the first.
inline std::string write_split(const Folder & folder, const TinyGguf & whole, size_t count) {
    const auto name = [&](size_t part) {
        char ending[64];
        std::snprintf(ending, sizeof ending, "tiny-%05zu-of-%05zu.gguf", part + 1, count);
        return folder / ending;
    };
    const size_t each = (whole.tensors.size() + count - 1) / count;
    for (size_t part = 0; part < count; ++part) {
        TinyGguf piece;
        if (part == 0) piece.keys = whole.keys;
        piece.seed = whole.seed + part;
        piece.keys.push_back(TinyGguf::short_key("split.no", static_cast<uint16_t>(part)));
        piece.keys.push_back(TinyGguf::short_key("split.count", static_cast<uint16_t>(count)));
        piece.keys.push_back(counted("split.tensors.count") + raw<uint32_t>(5) +
                             raw(static_cast<int32_t>(whole.tensors.size())));
        for (size_t i = part * each; i < std::min(whole.tensors.size(), (part + 1) * each); ++i)
            piece.tensors.push_back(whole.tensors[i]);
        write_file(name(part), piece.bytes());
    }
    return name(0);
}
