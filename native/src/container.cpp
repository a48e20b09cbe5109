// The `.jns` container: where things lie in one, reading its tables without trusting them, and checking all of it.
#include "container.hpp"

#include <algorithm>
#include <cstring>

#include "reader.hpp"

namespace expertstream {

namespace jns {

namespace {

constexpr uint64_t kMostExtents = 1u << 18, kMostLayers = 1u << 16, kMostMatrices = 1u << 18, kMostSlots = 1u << 22;
constexpr size_t kChunk = 4u << 20;

template <class T> uint64_t bytes_of(const std::vector<T> & table) { return table.size() * sizeof(T); }

template <class T> void append(std::vector<uint8_t> & to, const std::vector<T> & table) {
    const auto * bytes = reinterpret_cast<const uint8_t *>(table.data());
    to.insert(to.end(), bytes, bytes + bytes_of(table));
}

template <class T> const uint8_t * take(const uint8_t * from, uint64_t count, std::vector<T> & table) {
    table.resize(static_cast<size_t>(count));
    if (count > 0) std::memcpy(table.data(), from, static_cast<size_t>(bytes_of(table)));
    return from + bytes_of(table);
}

// `at` moved up until it lies in its page as `like` does in its own, so that file systems can share the blocks.
uint64_t align_like(uint64_t at, uint64_t like) { return gguf::round_up(at, kPage) + like % kPage; }

bool check_magic(const Head & head, const std::string & file, std::string & error) {
    if (std::memcmp(head.magic, kMagic, sizeof kMagic) == 0) return true;
    if (std::memcmp(head.magic, "JANASLLM", 8) == 0) {
        return disk::fail(error, file,
                          "is a container of Janas (JANASLLM), which cannot be read here; pack the GGUF anew");
    }
    if (std::memcmp(head.magic, "GGUF", 4) == 0) return disk::fail(error, file, "is a GGUF, not a container");
    return disk::fail(error, file, "is neither a GGUF nor a container of this program");
}

bool check_head(const Head & head, uint64_t file_bytes, const std::string & file, std::string & error) {
    if (!check_magic(head, file, error)) return false;
    if (head.version != kVersion) {
        return disk::fail(error, file,
                          "is a container of version " + std::to_string(head.version) +
                              "; this program reads version " + std::to_string(kVersion));
    }
    if (crc32c(0, &head, offsetof(Head, head_crc)) != head.head_crc)
        return disk::fail(error, file, "has a damaged header");
    if (head.flags != 0)
        return disk::fail(error, file, "uses features of a later program (flags " + std::to_string(head.flags) + ")");
    if (head.total_bytes == file_bytes) return true;
    return disk::fail(error, file,
                      "is " + std::to_string(file_bytes) + " bytes long instead of " +
                          std::to_string(head.total_bytes) + ": damaged, or not copied whole");
}

bool read_tables(const disk::File & file, Tables & tables, std::string & error) {
    const Head & head = tables.head;
    const uint64_t bytes = head.extents * sizeof(ExtentEntry) + head.layers * sizeof(LayerEntry) +
                           head.matrices * sizeof(MatrixEntry) + head.experts * sizeof(uint32_t);
    const bool possible = head.extents <= kMostExtents && head.layers <= kMostLayers &&
                          head.matrices <= kMostMatrices && head.experts <= kMostSlots && bytes == head.tables_bytes &&
                          head.tables_at >= sizeof(Head) && head.tables_at <= head.total_bytes &&
                          bytes <= head.total_bytes - head.tables_at;
    if (!possible) return disk::fail(error, file.name(), "has tables of impossible size");
    std::vector<uint8_t> raw(static_cast<size_t>(bytes));
    if (!disk::read_at(file, head.tables_at, raw.data(), raw.size(), error)) return false;
    if (crc32c(0, raw.data(), raw.size()) != head.tables_crc)
        return disk::fail(error, file.name(), "has damaged tables");
    const uint8_t * at = take(raw.data(), head.extents, tables.extents);
    at = take(at, head.layers, tables.layers);
    at = take(at, head.matrices, tables.matrices);
    take(at, head.experts, tables.crcs);
    return true;
}

// The bytes of the file after the tables, given out from front to back, each once and none behind the end.
class Claims {
  public:
    explicit Claims(const Head & head) : next_(head.tables_at + head.tables_bytes), end_(head.total_bytes) {}

    bool claim(uint64_t at, uint64_t count, uint64_t each) {
        uint64_t size = 0;
        if (__builtin_mul_overflow(count, each, &size) || at < next_ || at > end_ || size > end_ - at) return false;
        next_ = at + size;
        return true;
    }

  private:
    uint64_t next_, end_;
};

// What a damaged or hostile container can be refused for, once its checksums hold: everything that is used is compared.
class Builder {
  public:
    Builder(const Tables & tables, const disk::File & file, model::Model & model)
        : tables_(tables), file_(file), model_(model), claims_(tables.head) {}

    bool build(std::string & error) {
        model_.index.files = {file_.name()};
        model_.index.file_bytes = {tables_.head.total_bytes};
        model_.index.checked = true;
        model_.bytes = tables_.head.gguf_bytes;
        if (!add_extents()) return disk::fail(error, file_.name(), "has dense parts where none can be");
        const model::Extent & first = model_.dense.front();
        if (!gguf::read_header({&file_, first.from, first.size, model_.bytes}, model_.header, error)) return false;
        for (const LayerEntry & entry : tables_.layers) {
            if (!add_layer(entry))
                return disk::fail(error, file_.name(),
                                  "has a block " + std::to_string(entry.number) + " that cannot be");
        }
        if (next_matrix_ != tables_.matrices.size() || next_slot_ != tables_.crcs.size() || !is_whole()) {
            return disk::fail(error, file_.name(), "has tables that contradict its GGUF header");
        }
        return true;
    }

  private:
    bool add_extents() {
        for (const ExtentEntry & entry : tables_.extents) {
            if (!claims_.claim(entry.at, 1, entry.size)) return false;
            model_.dense.push_back({entry.gguf_at, entry.size, 0, entry.at, entry.crc});
        }
        return !model_.dense.empty() && model_.dense.front().at == 0;
    }

    bool add_layer(const LayerEntry & entry) {
        Layer layer;
        Index::Places places;
        std::vector<uint64_t> begin, starts;
        layer.number = entry.number;
        layer.experts = entry.experts;
        layer.slot_bytes = entry.slot_bytes;
        const bool ascending = model_.index.layers.empty() || model_.index.layers.back().number < entry.number;
        if (!ascending || entry.experts == 0 || entry.matrices == 0 || entry.slot_bytes % kPage != 0 ||
            entry.slots_at % kPage != 0 || entry.experts > tables_.crcs.size() - next_slot_ ||
            entry.matrices > tables_.matrices.size() - next_matrix_ ||
            !claims_.claim(entry.slots_at, entry.experts, entry.slot_bytes)) {
            return false;
        }
        uint64_t end = 0;
        for (uint32_t m = 0; m < entry.matrices; ++m) {
            const MatrixEntry & matrix = tables_.matrices[next_matrix_++];
            if (!add_matrix(entry, matrix, layer, end)) return false;
            begin.push_back(model_.header.tensors[matrix.tensor].offset);
            starts.push_back(matrix.start);
        }
        places.pieces_each = 1;
        for (uint32_t expert = 0; expert < entry.experts; ++expert) {
            places.pieces.push_back({0, entry.slots_at + expert * entry.slot_bytes, entry.slot_bytes, 0});
            places.crcs.push_back(tables_.crcs[next_slot_++]);
            places.starts.insert(places.starts.end(), starts.begin(), starts.end());
        }
        model_.index.layers.push_back(std::move(layer));
        model_.index.places.push_back(std::move(places));
        model_.begin.push_back(std::move(begin));
        return true;
    }

    bool add_matrix(const LayerEntry & entry, const MatrixEntry & matrix, Layer & layer, uint64_t & end) {
        if (matrix.tensor >= model_.header.tensors.size()) return false;
        const gguf::Tensor & tensor = model_.header.tensors[matrix.tensor];
        uint32_t number = 0, order = 0;
        if (!model::is_expert_tensor(tensor, number, order) || number != entry.number ||
            tensor.ne[2] != entry.experts || matrix.bytes != tensor.bytes / tensor.ne[2] ||
            matrix.start % kMatrixAlignment != 0 || matrix.start < end || matrix.start > entry.slot_bytes ||
            matrix.bytes > entry.slot_bytes - matrix.start) {
            return false;
        }
        end = matrix.start + matrix.bytes;
        for (const Matrix & other : layer.matrices) {
            if (other.name == tensor.name) return false;
        }
        streamed_.push_back({number, order, &tensor, 0});
        layer.matrices.push_back(model::matrix_of(tensor));
        return true;
    }

    // Dense parts and streamed tensors together are the whole GGUF, each byte once.
    bool is_whole() const {
        const std::vector<model::Extent> wanted = model::around(streamed_, model_.bytes);
        const auto same = [](const model::Extent & a, const model::Extent & b) {
            return a.at == b.at && a.size == b.size;
        };
        return std::equal(wanted.begin(), wanted.end(), model_.dense.begin(), model_.dense.end(), same);
    }

    const Tables & tables_;
    const disk::File & file_;
    model::Model & model_;
    Claims claims_;
    std::vector<model::ExpertTensor> streamed_;
    size_t next_matrix_ = 0, next_slot_ = 0;
};

bool verify_range(const disk::File & file, uint64_t at, uint64_t size, uint32_t wanted, const std::string & what,
                  std::vector<uint8_t> & buffer, Progress & progress, std::string & error) {
    uint32_t crc = 0;
    for (uint64_t done = 0; done < size;) {
        const size_t n = static_cast<size_t>(std::min<uint64_t>(size - done, buffer.size()));
        if (!disk::read_at(file, at + done, buffer.data(), n, error) || !progress.add(n, error)) return false;
        crc = crc32c(crc, buffer.data(), n);
        done += n;
    }
    if (crc == wanted) return true;
    return disk::fail(
        error, file.name(),
        what + " is damaged: wrong checksum of the bytes " + std::to_string(at) + " to " + std::to_string(at + size));
}

}  // namespace

uint64_t Tables::bytes() const { return bytes_of(extents) + bytes_of(layers) + bytes_of(matrices) + bytes_of(crcs); }

Tables lay_out(const model::Model & model) {
    Tables tables;
    std::vector<model::ExpertTensor> streamed;
    for (const Layer & layer : model.index.layers) {
        uint64_t end = 0;
        for (const Matrix & matrix : layer.matrices) {
            const auto & tensors = model.header.tensors;
            const auto tensor =
                std::find_if(tensors.begin(), tensors.end(), [&](const auto & t) { return t.name == matrix.name; });
            streamed.push_back({layer.number, 0, &*tensor, 0});
            const uint64_t start = gguf::round_up(end, kMatrixAlignment);
            tables.matrices.push_back({static_cast<uint32_t>(tensor - tensors.begin()), 0, start, matrix.bytes});
            end = start + matrix.bytes;
        }
        tables.layers.push_back({layer.number, layer.experts, static_cast<uint32_t>(layer.matrices.size()), 0,
                                 gguf::round_up(end, kPage), 0});
        tables.crcs.resize(tables.crcs.size() + layer.experts);
    }
    for (const model::Extent & extent : model::around(streamed, model.bytes))
        tables.extents.push_back({extent.at, extent.size, 0, 0, 0});
    uint64_t at = kPage + tables.bytes();
    for (ExtentEntry & extent : tables.extents) {
        extent.at = align_like(at, extent.gguf_at);
        at = extent.at + extent.size;
    }
    for (LayerEntry & layer : tables.layers) {
        layer.slots_at = gguf::round_up(at, kPage);
        at = layer.slots_at + layer.experts * layer.slot_bytes;
    }
    tables.head.total_bytes = at;
    tables.head.gguf_bytes = model.bytes;
    return tables;
}

bool write_tables(const disk::File & to, Tables & tables, std::string & error) {
    std::vector<uint8_t> raw;
    append(raw, tables.extents);
    append(raw, tables.layers);
    append(raw, tables.matrices);
    append(raw, tables.crcs);
    Head & head = tables.head;
    std::memcpy(head.magic, kMagic, sizeof kMagic);
    head.version = kVersion;
    head.tables_at = kPage;
    head.tables_bytes = raw.size();
    head.extents = static_cast<uint32_t>(tables.extents.size());
    head.layers = static_cast<uint32_t>(tables.layers.size());
    head.matrices = static_cast<uint32_t>(tables.matrices.size());
    head.experts = static_cast<uint32_t>(tables.crcs.size());
    head.tables_crc = crc32c(0, raw.data(), raw.size());
    head.head_crc = crc32c(0, &head, offsetof(Head, head_crc));
    return disk::write_at(to, head.tables_at, raw.data(), raw.size(), error) &&
           disk::write_at(to, 0, &head, sizeof head, error);
}

std::string slot_name(const Index & index, uint32_t layer, uint32_t expert) {
    return "layer " + std::to_string(index.layers[layer].number) + ", expert " + std::to_string(expert);
}

bool verify(const model::Model & container, Progress & progress, std::string & error) {
    const Index & index = container.index;
    disk::File file;
    if (!disk::open_to_read(index.files[0], file, error)) return false;
    disk::forget(file);  // what the drive holds is to be checked, not what memory still knows of it
    std::vector<uint8_t> buffer(kChunk);
    for (const model::Extent & extent : container.dense) {
        const std::string what = "the dense part from byte " + std::to_string(extent.at) + " of the GGUF";
        if (!verify_range(file, extent.from, extent.size, extent.crc, what, buffer, progress, error)) return false;
    }
    for (uint32_t layer = 0; layer < index.layers.size(); ++layer) {
        const Index::Places & places = index.places[layer];
        for (uint32_t expert = 0; expert < places.crcs.size(); ++expert) {
            const Piece & piece = places.pieces[expert];
            const std::string what = slot_name(index, layer, expert);
            if (!verify_range(file, piece.offset, piece.size, places.crcs[expert], what, buffer, progress, error))
                return false;
        }
        disk::forget(file);
    }
    return true;
}

}  // namespace jns

namespace model {

bool read_jns(const std::string & path, Model & model, std::string & error) {
    model = Model();
    disk::File file;
    disk::Stamp stamp;
    jns::Tables tables;
    if (!disk::open_to_read(path, file, error) || !disk::stamp(file, stamp, error)) return false;
    const size_t head = static_cast<size_t>(std::min<uint64_t>(sizeof tables.head, stamp.bytes));
    if (!disk::read_at(file, 0, &tables.head, head, error)) return false;
    return jns::check_head(tables.head, stamp.bytes, path, error) && jns::read_tables(file, tables, error) &&
           jns::Builder(tables, file, model).build(error);
}

bool is_container(const std::string & path) {
    disk::File file;
    char magic[sizeof jns::kMagic] = {};
    std::string error;
    return disk::open_to_read(path, file, error) && disk::read_at(file, 0, magic, sizeof magic, error) &&
           std::memcmp(magic, jns::kMagic, sizeof magic) == 0;
}

}  // namespace model
}  // namespace expertstream
