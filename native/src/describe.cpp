// What a model is made of, as JSON: for predictions, for `show`, and for whoever decides whether to stream it.
#include <algorithm>
#include <cstdio>
#include <set>

#include "api.h"
#include "c_call.hpp"
#include "model.hpp"

namespace expertstream {

namespace {

// How many bytes the UTF-8 character at `at` takes; 0 if there is none.
size_t character(const std::string & text, size_t at) {
    const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
    const unsigned first = byte(0);
    size_t size = 0;
    if (first < 0x80) size = 1;
    if (first >= 0xc2 && first < 0xe0) size = 2;
    if (first >= 0xe0 && first < 0xf0) size = 3;
    if (first >= 0xf0 && first < 0xf5) size = 4;
    for (size_t i = 1; i < size; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
    }
    if (first == 0xe0 && byte(1) < 0xa0) return 0;   // longer than needed
    if (first == 0xed && byte(1) >= 0xa0) return 0;  // half of a UTF-16 pair
    if (first == 0xf0 && byte(1) < 0x90) return 0;
    if (first == 0xf4 && byte(1) >= 0x90) return 0;  // beyond Unicode
    return size;
}

// Names come out of files: whatever they hold, the result is JSON in UTF-8.
std::string quoted(const std::string & text) {
    std::string out = "\"";
    for (size_t at = 0; at < text.size();) {
        const size_t size = character(text, at);
        const unsigned char first = static_cast<unsigned char>(text[at]);
        if (size == 0) {
            out += "\\ufffd";
        } else if (first < 0x20 || first == 0x7f) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", first);
            out += escape;
        } else {
            if (first == '"' || first == '\\') out += '\\';
            out += text.substr(at, size);
        }
        at += std::max<size_t>(size, 1);
    }
    return out + "\"";
}

std::string field(const char * name, const std::string & value) { return quoted(name) + ": " + value; }
std::string field(const char * name, uint64_t value) { return field(name, std::to_string(value)); }

template <class T, class Text> std::string list(const std::vector<T> & items, Text && text) {
    std::string out = "[";
    for (const T & item : items) out += (out.size() > 1 ? ", " : "") + text(item);
    return out + "]";
}

std::string object(const std::vector<std::string> & fields) {
    std::string out = list(fields, [](const std::string & one) { return one; });
    out.front() = '{';
    out.back() = '}';
    return out;
}

std::string matrix_text(const Matrix & matrix) {
    return object({field("name", quoted(matrix.name)), field("type", quoted(gguf::type_name(matrix.type))),
                   field("cols", matrix.cols), field("rows", matrix.rows), field("bytes", matrix.bytes)});
}

std::string layer_text(const Layer & layer) {
    uint64_t bytes = 0;
    for (const Matrix & matrix : layer.matrices) bytes += matrix.bytes;
    return object({field("number", layer.number), field("experts", layer.experts), field("bytes_each", bytes),
                   field("slot_bytes", layer.slot_bytes), field("matrices", list(layer.matrices, matrix_text))});
}

// Tensors of experts that stay with llama.cpp, for what they are named.
std::vector<std::string> left_out(const model::Model & model) {
    std::set<std::string> streamed;
    for (const Layer & layer : model.index.layers) {
        for (const Matrix & matrix : layer.matrices) streamed.insert(matrix.name);
    }
    const std::string ending = "exps.weight";
    std::vector<std::string> names;
    for (const gguf::Tensor & tensor : model.header.tensors) {
        const size_t size = tensor.name.size();
        const bool of_experts = size > ending.size() && tensor.dims == 3 &&
                                tensor.name.compare(size - ending.size(), ending.size(), ending) == 0;
        if (of_experts && streamed.count(tensor.name) == 0) names.push_back(tensor.name);
    }
    return names;
}

std::string files_text(const Index & index) {
    std::vector<std::string> files;
    for (size_t i = 0; i < index.files.size(); ++i) {
        files.push_back(object({field("path", quoted(index.files[i])), field("bytes", index.file_bytes[i])}));
    }
    return list(files, [](const std::string & one) { return one; });
}

std::string describe(const model::Model & model) {
    const Index & index = model.index;
    uint64_t experts = 0, slots = 0, slot_most = 0, all_slots = 0;
    for (const Layer & layer : index.layers) {
        experts = std::max<uint64_t>(experts, layer.experts);
        slots += layer.experts;
        slot_most = std::max(slot_most, layer.slot_bytes);
        all_slots += layer.experts * layer.slot_bytes;
    }
    const gguf::Header & header = model.header;
    const std::string architecture = header.text("general.architecture");
    const auto number = [&](const char * name) { return header.number(architecture + "." + name, 0); };
    return object({field("container", index.checked ? "true" : "false"),
                   field("architecture", quoted(architecture)),
                   field("name", quoted(header.text("general.name"))),
                   field("experts", experts),
                   field("used", number("expert_used_count")),
                   field("layers", index.layers.size()),
                   field("blocks", number("block_count")),
                   field("context_length", number("context_length")),
                   field("embedding_length", number("embedding_length")),
                   field("expert_bytes", index.expert_bytes()),
                   field("dense_bytes", model.dense_bytes()),
                   field("gguf_bytes", model.bytes),
                   field("experts_in_all", slots),
                   field("slot_bytes", slot_most),
                   field("slot_bytes_max", slot_most),
                   field("slot_bytes_in_all", all_slots),
                   field("tensors", header.tensors.size()),
                   field("left_out", list(left_out(model), quoted)),
                   field("files", files_text(index)),
                   field("per_layer", list(index.layers, layer_text))});
}

bool describe_into(const std::string & path, char * json, size_t json_bytes, std::string & error) {
    model::Model model;
    if (!model::read(path, model, error)) return false;
    const std::string text = describe(model);
    if (text.size() >= json_bytes)
        return disk::fail(error, path, "needs " + std::to_string(text.size() + 1) + " bytes for its description");
    std::copy(text.begin(), text.end(), json);
    json[text.size()] = '\0';
    return true;
}

}  // namespace
}  // namespace expertstream

extern "C" int es_describe(const char * model, char * json, size_t json_bytes, char * error, size_t error_bytes) {
    using namespace expertstream;
    return c_call(error, error_bytes, [&](std::string & text) { return describe_into(model, json, json_bytes, text); });
}
