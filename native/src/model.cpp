// A model as one GGUF, made from a single file or from the parts of a split one; and the index of its experts.
#include "model.hpp"

#include <algorithm>
#include <cstring>
#include <map>

namespace expertstream {

namespace model {

namespace {

constexpr uint64_t kMostExperts = 1u << 16, kMostPieces = 1u << 22;  // of all layers; real models stay far below

bool ends_with(const std::string & text, const char * ending) {
    const size_t size = std::strlen(ending);
    return text.size() >= size && text.compare(text.size() - size, size, ending) == 0;
}

uint32_t order_of(const std::string & name) {
    if (ends_with(name, "ffn_gate_exps.weight") || ends_with(name, "ffn_gate_up_exps.weight")) return 0;
    if (ends_with(name, "ffn_up_exps.weight")) return 1;
    return ends_with(name, "ffn_down_exps.weight") ? 2 : 3;
}

// The number of experts that a block has: that of its last named matrix, which is `down` where there is one.
uint64_t experts_of(const std::vector<ExpertTensor> & block) {
    uint64_t experts = block.front().tensor->ne[2];
    for (const ExpertTensor & found : block) {
        if (found.order <= 2) experts = found.tensor->ne[2];
    }
    return experts;
}

bool read_parts(const std::string & path, Index & index, std::vector<gguf::Header> & parts, std::string & error) {
    index.files = {path};
    for (size_t i = 0; i < index.files.size(); ++i) {
        disk::File file;
        disk::Stamp stamp;
        gguf::Header header;
        if (!disk::open_to_read(index.files[i], file, error) || !disk::stamp(file, stamp, error)) return false;
        if (!gguf::read_header({&file, 0, stamp.bytes, stamp.bytes}, header, error)) return false;
        const uint64_t count = header.number("split.count", 1), number = header.number("split.no", 0);
        if (i == 0 && number != 0) return disk::fail(error, path, "is not the first part of its model; name the first");
        if (i == 0 && !gguf::split_names(path, count, index.files, error)) return false;
        if (number != i || (i > 0 && count != parts.size() + index.files.size() - i)) {
            return disk::fail(error, index.files[i],
                              "is not part " + std::to_string(i + 1) + " of the model it is named after");
        }
        index.file_bytes.push_back(stamp.bytes);
        parts.push_back(std::move(header));
    }
    return true;
}

bool check_parts(const std::vector<gguf::Header> & parts, const std::string & path, std::string & error) {
    std::map<std::string, size_t> seen;
    for (size_t part = 0; part < parts.size(); ++part) {
        for (const gguf::Tensor & tensor : parts[part].tensors) {
            if (!seen.emplace(tensor.name, part).second)
                return disk::fail(error, path, "has the tensor " + tensor.name + " in two parts");
        }
    }
    const uint64_t wanted = parts.front().number("split.tensors.count", seen.size());
    if (parts.size() == 1 || wanted == seen.size()) return true;
    return disk::fail(
        error, path,
        "has " + std::to_string(seen.size()) + " tensors in its parts instead of " + std::to_string(wanted));
}

// Every matrix by itself, each with room for a read of whole pages around it.
void lay_out(Layer & layer, Index::Places & places, const std::vector<ExpertTensor> & block) {
    places.pieces_each = static_cast<uint32_t>(block.size());
    std::vector<uint64_t> at;
    for (const Matrix & matrix : layer.matrices) {
        at.push_back(layer.slot_bytes);
        layer.slot_bytes += gguf::round_up(matrix.bytes + kPage - 1, kPage) + kPage;
    }
    for (uint32_t expert = 0; expert < layer.experts; ++expert) {
        for (size_t m = 0; m < block.size(); ++m) {
            const uint64_t bytes = layer.matrices[m].bytes, offset = block[m].tensor->offset + expert * bytes;
            places.pieces.push_back({block[m].file, offset, bytes, at[m]});
            places.starts.push_back(at[m] + offset % kPage);
        }
    }
}

bool add_layers(const std::vector<ExpertTensor> & tensors, Index & index, std::string & error) {
    uint64_t pieces = 0;
    for (const ExpertTensor & found : tensors) pieces += found.tensor->ne[2];
    if (pieces > kMostPieces) return disk::fail(error, index.files[0], "has impossibly many experts: damaged");
    for (size_t i = 0; i < tensors.size();) {
        std::vector<ExpertTensor> block;
        for (const uint32_t number = tensors[i].layer; i < tensors.size() && tensors[i].layer == number; ++i)
            block.push_back(tensors[i]);
        Layer layer;
        layer.number = block.front().layer;
        layer.experts = static_cast<uint32_t>(block.front().tensor->ne[2]);
        for (const ExpertTensor & found : block) layer.matrices.push_back(matrix_of(*found.tensor));
        Index::Places places;
        lay_out(layer, places, block);
        index.layers.push_back(std::move(layer));
        index.places.push_back(std::move(places));
    }
    return true;
}

template <class T> void put(std::vector<uint8_t> & to, const T & value) {
    const auto * bytes = reinterpret_cast<const uint8_t *>(&value);
    to.insert(to.end(), bytes, bytes + sizeof value);
}

// The keys of the first part but for those about the split; they come as they are, whatever they hold.
bool put_keys(std::vector<uint8_t> & to, const std::string & path, const gguf::Header & first, std::string & error) {
    disk::File file;
    if (!disk::open_to_read(path, file, error)) return false;
    for (const gguf::Key & key : first.keys) {
        if (key.name.rfind("split.", 0) == 0) continue;
        const size_t size = static_cast<size_t>(key.end - key.at), at = to.size();
        to.resize(at + size);
        if (!disk::read_at(file, key.at, to.data() + at, size, error)) return false;
    }
    return true;
}

void put_tensor(std::vector<uint8_t> & to, const gguf::Tensor & tensor, uint64_t offset) {
    put(to, static_cast<uint64_t>(tensor.name.size()));
    to.insert(to.end(), tensor.name.begin(), tensor.name.end());
    put(to, tensor.dims);
    for (uint32_t i = 0; i < tensor.dims; ++i) put(to, tensor.ne[i]);
    put(to, tensor.type);
    put(to, offset);
}

// One GGUF out of several: their tensors one after the other, under the keys of the first.
bool merge(const std::vector<gguf::Header> & parts, Model & model, std::string & error) {
    const gguf::Header & first = parts.front();
    model.header = first;
    model.header.tensors.clear();
    auto & keys = model.header.keys;
    const auto about_split = [](const gguf::Key & key) { return key.name.rfind("split.", 0) == 0; };
    keys.erase(std::remove_if(keys.begin(), keys.end(), about_split), keys.end());
    uint64_t tensors = 0;
    for (const gguf::Header & part : parts) tensors += part.tensors.size();
    model.merged = {'G', 'G', 'U', 'F'};
    put(model.merged, first.version);
    put(model.merged, tensors);
    put(model.merged, static_cast<uint64_t>(keys.size()));
    if (!put_keys(model.merged, model.index.files[0], first, error)) return false;
    uint64_t offset = 0;
    for (const gguf::Header & part : parts) {
        for (const gguf::Tensor & tensor : part.tensors) {
            put_tensor(model.merged, tensor, offset);
            model.header.tensors.push_back(tensor);
            model.header.tensors.back().offset = offset;
            offset = gguf::round_up(offset + tensor.bytes, first.alignment);
        }
    }
    model.merged.resize(gguf::round_up(model.merged.size(), first.alignment));
    model.header.data_at = model.merged.size();
    for (gguf::Tensor & tensor : model.header.tensors) tensor.offset += model.header.data_at;
    model.bytes = model.header.file_bytes = model.header.data_at + offset;
    return true;
}

void add_merged_extents(const std::vector<gguf::Header> & parts, const std::vector<ExpertTensor> & experts,
                        Model & model) {
    size_t next = 0;
    for (uint32_t part = 0; part < parts.size(); ++part) {
        for (const gguf::Tensor & tensor : parts[part].tensors) {
            const uint64_t at = model.header.tensors[next++].offset;
            const bool expert = std::any_of(experts.begin(), experts.end(),
                                            [&](const ExpertTensor & e) { return e.tensor == &tensor; });
            if (!expert && tensor.bytes > 0) model.dense.push_back({at, tensor.bytes, part, tensor.offset, 0});
        }
    }
}

void find_begins(Model & model) {
    std::map<std::string, uint64_t> places;
    for (const gguf::Tensor & tensor : model.header.tensors) places[tensor.name] = tensor.offset;
    for (const Layer & layer : model.index.layers) {
        std::vector<uint64_t> begin;
        for (const Matrix & matrix : layer.matrices) begin.push_back(places.at(matrix.name));
        model.begin.push_back(std::move(begin));
    }
}

}  // namespace

bool is_expert_tensor(const gguf::Tensor & tensor, uint32_t & layer, uint32_t & order) {
    if (tensor.name.rfind("blk.", 0) != 0 || !ends_with(tensor.name, "_exps.weight") || tensor.dims != 3) return false;
    const size_t dot = tensor.name.find('.', 4);
    if (dot == 4 || dot > 10 || tensor.name.find_first_not_of("0123456789", 4) != dot) return false;
    layer = static_cast<uint32_t>(std::stoul(tensor.name.substr(4, dot - 4)));
    order = order_of(tensor.name);
    return tensor.bytes > 0 && tensor.ne[2] <= kMostExperts;
}

std::vector<ExpertTensor> expert_tensors(const std::vector<gguf::Header> & parts) {
    std::map<uint32_t, std::vector<ExpertTensor>> blocks;
    for (uint32_t file = 0; file < parts.size(); ++file) {
        for (const gguf::Tensor & tensor : parts[file].tensors) {
            ExpertTensor found{0, 0, &tensor, file};
            if (is_expert_tensor(tensor, found.layer, found.order)) blocks[found.layer].push_back(found);
        }
    }
    std::vector<ExpertTensor> all;
    for (auto & [number, block] : blocks) {
        std::stable_sort(block.begin(), block.end(), [](const auto & a, const auto & b) { return a.order < b.order; });
        const uint64_t experts = experts_of(block);
        for (const ExpertTensor & found : block) {
            if (found.tensor->ne[2] == experts) all.push_back(found);
        }
    }
    return all;
}

Matrix matrix_of(const gguf::Tensor & tensor) {
    const uint64_t row = row_bytes(tensor.type, tensor.ne[0]);
    return {tensor.name, tensor.type, tensor.ne[0], tensor.ne[1], row * tensor.ne[1], row};
}

std::vector<Extent> around(const std::vector<ExpertTensor> & tensors, uint64_t bytes) {
    std::vector<const gguf::Tensor *> order;
    for (const ExpertTensor & found : tensors) order.push_back(found.tensor);
    std::sort(order.begin(), order.end(), [](const auto * a, const auto * b) { return a->offset < b->offset; });
    std::vector<Extent> extents;
    uint64_t at = 0;
    for (const gguf::Tensor * tensor : order) {
        if (tensor->offset > at) extents.push_back({at, tensor->offset - at, 0, at, 0});
        at = tensor->offset + tensor->bytes;
    }
    if (bytes > at) extents.push_back({at, bytes - at, 0, at, 0});
    return extents;
}

uint64_t Model::dense_bytes() const {
    uint64_t sum = merged.size();
    for (const Extent & extent : dense) sum += extent.size;
    return sum;
}

bool read_gguf(const std::string & path, Model & model, std::string & error) {
    model = Model();
    std::vector<gguf::Header> parts;
    if (!read_parts(path, model.index, parts, error) || !check_parts(parts, path, error)) return false;
    const std::vector<ExpertTensor> experts = expert_tensors(parts);
    if (!add_layers(experts, model.index, error)) return false;
    if (parts.size() == 1) {
        model.bytes = parts[0].file_bytes;
        model.dense = around(experts, model.bytes);
        model.header = std::move(parts[0]);
    } else {
        if (!merge(parts, model, error)) return false;
        add_merged_extents(parts, experts, model);
    }
    find_begins(model);
    return true;
}

bool versions_of(const std::vector<std::string> & files, std::string & text, std::string & error) {
    text.clear();
    for (const std::string & path : files) {
        disk::File file;
        disk::Stamp stamp;
        if (!disk::open_to_read(path, file, error) || !disk::stamp(file, stamp, error)) return false;
        text += stamp.text() + " " + path + "\n";
    }
    return true;
}

bool Bytes::open(const Model & model, std::string & error) {
    model_ = &model;
    files_ = std::vector<disk::File>(model.index.files.size());
    for (size_t i = 0; i < files_.size(); ++i) {
        if (!disk::open_to_read(model.index.files[i], files_[i], error)) return false;
    }
    return true;
}

bool Bytes::read(uint64_t at, uint8_t * data, uint64_t size, std::string & error) const {
    std::memset(data, 0, static_cast<size_t>(size));
    if (at < model_->merged.size()) {
        std::memcpy(data, model_->merged.data() + at, static_cast<size_t>(std::min(size, model_->merged.size() - at)));
    }
    const auto behind = [](uint64_t value, const Extent & extent) { return value < extent.at + extent.size; };
    auto extent = std::upper_bound(model_->dense.begin(), model_->dense.end(), at, behind);
    for (; extent != model_->dense.end() && extent->at < at + size; ++extent) {
        const uint64_t begin = std::max(at, extent->at), end = std::min(at + size, extent->at + extent->size);
        const uint64_t from = extent->from + (begin - extent->at);
        if (!disk::read_at(files_[extent->file], from, data + (begin - at), static_cast<size_t>(end - begin), error))
            return false;
    }
    return true;
}

void Bytes::forget() const {
    for (const disk::File & file : files_) disk::forget(file);
}

bool read(const std::string & path, Model & model, std::string & error) {
    disk::File file;
    char magic[4] = {};
    if (!disk::open_to_read(path, file, error) || !disk::read_at(file, 0, magic, sizeof magic, error)) return false;
    return std::memcmp(magic, "GGUF", sizeof magic) == 0 ? read_gguf(path, model, error) : read_jns(path, model, error);
}

}  // namespace model

uint64_t Index::expert_bytes() const {
    uint64_t bytes = 0;
    for (const Layer & layer : layers) {
        for (const Matrix & matrix : layer.matrices) bytes += layer.experts * matrix.bytes;
    }
    return bytes;
}

namespace {

using Read = bool (*)(const std::string &, model::Model &, std::string &);

bool index_by(Read read, const std::string & path, Index & index, std::string & error) {
    model::Model model;
    if (!read(path, model, error)) return false;
    index = std::move(model.index);
    const uint64_t used = model.header.number(model.header.text("general.architecture") + ".expert_used_count", 0);
    index.used = static_cast<uint32_t>(std::min<uint64_t>(used, UINT32_MAX));
    return true;
}

}  // namespace

bool index_gguf(const std::string & path, Index & index, std::string & error) {
    return index_by(model::read_gguf, path, index, error);
}

bool index_jns(const std::string & path, Index & index, std::string & error) {
    return index_by(model::read_jns, path, index, error);
}

bool index_model(const std::string & path, Index & index, std::string & error) {
    return index_by(model::read, path, index, error);
}

}  // namespace expertstream
