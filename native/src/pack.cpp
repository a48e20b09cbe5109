// Packing a GGUF into a container, and back. Both write beside the target, read back what they wrote, then rename.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "api.h"
#include "c_call.hpp"
#include "container.hpp"
#include "journal.hpp"
#include "reader.hpp"
#include "shell.hpp"

namespace expertstream {

namespace {

constexpr uint64_t kBatch = 128u << 20;  // bytes that a kill may cost
constexpr uint64_t kChunk = 4u << 20;

bool check_target(const std::string & source, const std::string & target, std::string & error) {
    if (!disk::exists(target)) return true;
    return disk::fail(error, target,
                      disk::same_file(source, target) ? "is the source itself" : "is there already; remove it first");
}

// The matrices of one expert together, as they lie in a slot; the rest of the slot is zeros.
bool gather(const model::Model & model, const model::Bytes & bytes, const std::vector<uint64_t> & starts,
            uint32_t layer, uint32_t expert, std::vector<uint8_t> & slot, std::string & error) {
    const Index::Places & places = model.index.places[layer];
    const size_t count = model.index.layers[layer].matrices.size();
    std::fill(slot.begin(), slot.end(), uint8_t{0});
    for (size_t m = 0; m < count; ++m) {
        const Piece & piece = places.pieces[expert * count + m];
        if (!disk::read_at(bytes.file(piece.file), piece.offset, slot.data() + starts[m], piece.size, error))
            return false;
    }
    return true;
}

class Packing {
  public:
    Packing(const model::Model & model, Progress & progress)
        : model_(model), progress_(progress), tables_(jns::lay_out(model)) {}

    bool run(const std::string & target, std::string & error) {
        const std::string part = target + ".part";
        std::string about;
        if (!bytes_.open(model_, error) || !disk::open_to_write(part, false, part_, error) || !describe(about, error))
            return false;
        disk::Stamp before;
        if (!disk::stamp(part_, before, error)) return false;
        const bool resume = before.bytes == tables_.head.total_bytes;
        if (!disk::reserve(part_, tables_.head.total_bytes, error)) {
            if (!resume) remove(part.c_str());
            return false;
        }
        if (!journal_.open(part + ".journal", about, resume, error)) return false;
        progress_.total = 2 * payload();
        if (!write(error)) {
            std::string ignored;
            settle(ignored);  // what is done need not be done again
            return false;
        }
        return check_source(about, error) && verify(error) && finish(target, error);
    }

  private:
    uint32_t units() const { return static_cast<uint32_t>(tables_.extents.size() + tables_.crcs.size()); }

    uint64_t payload() const {
        uint64_t bytes = 0;
        for (const jns::ExtentEntry & extent : tables_.extents) bytes += extent.size;
        for (const jns::LayerEntry & layer : tables_.layers) bytes += layer.experts * layer.slot_bytes;
        return bytes;
    }

    // Whatever of this changes makes another file, and a journal worthless.
    bool describe(std::string & text, std::string & error) const {
        std::string files;
        if (!model::versions_of(model_.index.files, files, error)) return false;
        text = "expertstream pack " + std::to_string(jns::kVersion) + "\n" + files + "units " +
               std::to_string(units()) + ", bytes " + std::to_string(tables_.head.total_bytes) + "\n";
        return true;
    }

    bool write(std::string & error) {
        std::vector<bool> done(units());
        for (const Journal::Record & record : journal_.records()) {
            if (record.unit >= units()) continue;
            done[record.unit] = true;
            crc_of(record.unit) = record.crc;
        }
        return write_dense_parts(done, error) && write_slots(done, error) && settle(error);
    }

    uint32_t & crc_of(uint32_t unit) {
        const size_t extents = tables_.extents.size();
        return unit < extents ? tables_.extents[unit].crc : tables_.crcs[unit - extents];
    }

    bool write_dense_parts(const std::vector<bool> & done, std::string & error) {
        std::vector<uint8_t> buffer(kChunk);
        for (uint32_t unit = 0; unit < tables_.extents.size(); ++unit) {
            const jns::ExtentEntry & extent = tables_.extents[unit];
            uint32_t crc = 0;
            for (uint64_t at = 0; at < extent.size;) {
                const uint64_t n = std::min(extent.size - at, kChunk);
                if (!done[unit]) {
                    if (!bytes_.read(extent.gguf_at + at, buffer.data(), n, error)) return false;
                    if (!disk::write_at(part_, extent.at + at, buffer.data(), n, error)) return false;
                    crc = crc32c(crc, buffer.data(), n);
                }
                if (!progress_.add(n, error)) return false;
                at += n;
            }
            if (!done[unit] && !note(unit, crc, extent.size, error)) return false;
        }
        return true;
    }

    bool write_slots(const std::vector<bool> & done, std::string & error) {
        uint32_t unit = static_cast<uint32_t>(tables_.extents.size());
        const jns::MatrixEntry * matrix = tables_.matrices.data();
        for (uint32_t layer = 0; layer < tables_.layers.size(); ++layer) {
            const jns::LayerEntry & entry = tables_.layers[layer];
            std::vector<uint64_t> starts;
            for (uint32_t m = 0; m < entry.matrices; ++m) starts.push_back((matrix++)->start);
            std::vector<uint8_t> slot(entry.slot_bytes);
            for (uint32_t expert = 0; expert < entry.experts; ++expert, ++unit) {
                if (!done[unit]) {
                    const uint64_t at = entry.slots_at + expert * entry.slot_bytes;
                    if (!gather(model_, bytes_, starts, layer, expert, slot, error)) return false;
                    if (!disk::write_at(part_, at, slot.data(), slot.size(), error)) return false;
                    if (!note(unit, crc32c(0, slot.data(), slot.size()), slot.size(), error)) return false;
                }
                if (!progress_.add(entry.slot_bytes, error)) return false;
            }
        }
        return true;
    }

    bool note(uint32_t unit, uint32_t crc, uint64_t bytes, std::string & error) {
        crc_of(unit) = crc;
        pending_.push_back(Journal::record(unit, crc));
        pending_bytes_ += bytes;
        return pending_bytes_ < kBatch || settle(error);
    }

    // Only what is on the drive may be in the journal.
    bool settle(std::string & error) {
        if (pending_.empty()) return true;
        if (!disk::sync(part_, error) || !journal_.add(pending_, error)) return false;
        pending_.clear();
        pending_bytes_ = 0;
        disk::forget(part_);
        bytes_.forget();
        return true;
    }

    bool check_source(const std::string & about, std::string & error) const {
        std::string now;
        if (!describe(now, error)) return false;
        return now == about || discard(disk::fail(error, model_.index.files[0], "changed while it was packed"));
    }

    bool verify(std::string & error) {
        model::Model written;
        if (!jns::write_tables(part_, tables_, error) || !disk::sync(part_, error)) return false;
        if (!model::read_jns(part_.name(), written, error)) return discard(false);
        return jns::verify(written, progress_, error) || (error != "stopped" && discard(false));
    }

    bool finish(const std::string & target, std::string & error) {
        remove((part_.name() + ".journal").c_str());
        return disk::replace(part_.name(), target, error);
    }

    bool discard(bool result) const {
        remove((part_.name() + ".journal").c_str());
        remove(part_.name().c_str());
        return result;
    }

    const model::Model & model_;
    Progress & progress_;
    jns::Tables tables_;
    model::Bytes bytes_;
    disk::File part_;
    Journal journal_;
    std::vector<Journal::Record> pending_;
    uint64_t pending_bytes_ = 0;
};

bool pack(const std::string & gguf, const std::string & target, Progress & progress, std::string & error) {
    model::Model model;
    if (!check_target(gguf, target, error)) return false;
    if (model::is_container(gguf)) return disk::fail(error, gguf, "is a container already");
    if (!model::read_gguf(gguf, model, error)) return false;
    if (model.index.layers.empty()) return disk::fail(error, gguf, "has no experts; there is nothing to pack");
    return Packing(model, progress).run(target, error);
}

// Calls `use` with every slot of a container, read and found right.
bool for_each_slot(
    const model::Model & container, Progress & progress, std::string & error,
    const std::function<bool(uint32_t layer, uint32_t expert, const std::vector<uint8_t> & slot)> & use) {
    model::Bytes bytes;
    if (!bytes.open(container, error)) return false;
    const Index & index = container.index;
    for (uint32_t layer = 0; layer < index.layers.size(); ++layer) {
        const Index::Places & places = index.places[layer];
        std::vector<uint8_t> slot(index.layers[layer].slot_bytes);
        for (uint32_t expert = 0; expert < index.layers[layer].experts; ++expert) {
            const Piece & piece = places.pieces[expert];
            if (!disk::read_at(bytes.file(0), piece.offset, slot.data(), slot.size(), error)) return false;
            if (crc32c(0, slot.data(), slot.size()) != places.crcs[expert]) {
                return disk::fail(error, index.files[0],
                                  jns::slot_name(index, layer, expert) + " is damaged: wrong checksum");
            }
            if (!use(layer, expert, slot) || !progress.add(slot.size(), error)) return false;
        }
        bytes.forget();
    }
    return true;
}

bool scatter(const model::Model & container, const disk::File & to, Progress & progress, std::string & error) {
    return for_each_slot(
        container, progress, error, [&](uint32_t layer, uint32_t expert, const std::vector<uint8_t> & slot) {
            const auto & matrices = container.index.layers[layer].matrices;
            for (size_t m = 0; m < matrices.size(); ++m) {
                const uint64_t start = container.index.places[layer].starts[expert * matrices.size() + m];
                const uint64_t at = container.begin[layer][m] + expert * matrices[m].bytes;
                if (!disk::write_at(to, at, slot.data() + start, matrices[m].bytes, error)) return false;
            }
            return true;
        });
}

// Whether the GGUF that was written holds what the container says: every dense part, and every slot gathered again.
bool compare(const model::Model & container, const std::string & path, Progress & progress, std::string & error) {
    disk::File file;
    if (!disk::open_to_read(path, file, error)) return false;
    std::vector<uint8_t> buffer(kChunk);
    for (const model::Extent & extent : container.dense) {
        uint32_t crc = 0;
        for (uint64_t done = 0; done < extent.size;) {
            const uint64_t n = std::min(extent.size - done, kChunk);
            if (!disk::read_at(file, extent.at + done, buffer.data(), n, error) || !progress.add(n, error))
                return false;
            crc = crc32c(crc, buffer.data(), n);
            done += n;
        }
        if (crc != extent.crc) return disk::fail(error, path, "does not read back as it was written");
    }
    for (uint32_t layer = 0; layer < container.index.layers.size(); ++layer) {
        const Layer & shape = container.index.layers[layer];
        const Index::Places & places = container.index.places[layer];
        std::vector<uint8_t> slot(shape.slot_bytes);
        for (uint32_t expert = 0; expert < shape.experts; ++expert) {
            for (size_t m = 0; m < shape.matrices.size(); ++m) {
                const uint64_t bytes = shape.matrices[m].bytes, at = container.begin[layer][m] + expert * bytes;
                if (!disk::read_at(file, at, slot.data() + places.starts[expert * shape.matrices.size() + m], bytes,
                                   error))
                    return false;
            }
            if (crc32c(0, slot.data(), slot.size()) != places.crcs[expert])
                return disk::fail(error, path, "does not read back as it was written");
            if (!progress.add(slot.size(), error)) return false;
        }
    }
    return true;
}

bool unpack_into(const model::Model & container, const disk::File & part, Progress & progress, std::string & error) {
    progress.total = 2 * container.dense_bytes();
    for (const Layer & layer : container.index.layers) progress.total += 2 * layer.experts * layer.slot_bytes;
    if (!disk::resize(part, 0, error) || !disk::reserve(part, container.bytes, error)) return false;
    if (!write_dense(container, part, progress, error) || !scatter(container, part, progress, error)) return false;
    if (!disk::sync(part, error)) return false;
    disk::forget(part);
    return compare(container, part.name(), progress, error);
}

bool unpack(const std::string & jns, const std::string & target, Progress & progress, std::string & error) {
    model::Model container;
    disk::File part;
    if (!check_target(jns, target, error) || !model::read_jns(jns, container, error)) return false;
    if (!disk::open_to_write(target + ".part", false, part, error)) return false;
    if (unpack_into(container, part, progress, error)) return disk::replace(part.name(), target, error);
    remove(part.name().c_str());
    return false;
}

bool verify(const std::string & jns, Progress & progress, std::string & error) {
    model::Model container;
    if (!model::read_jns(jns, container, error)) return false;
    progress.total = container.dense_bytes();
    for (const Layer & layer : container.index.layers) progress.total += layer.experts * layer.slot_bytes;
    return jns::verify(container, progress, error);
}

}  // namespace
}  // namespace expertstream

extern "C" int es_pack(const char * gguf, const char * jns, es_progress progress, void * context, char * error,
                       size_t error_bytes) {
    using namespace expertstream;
    return c_call(error, error_bytes, [&](std::string & text) {
        Progress told{progress, context};
        return pack(gguf, jns, told, text);
    });
}

extern "C" int es_unpack(const char * jns, const char * gguf, es_progress progress, void * context, char * error,
                         size_t error_bytes) {
    using namespace expertstream;
    return c_call(error, error_bytes, [&](std::string & text) {
        Progress told{progress, context};
        return unpack(jns, gguf, told, text);
    });
}

extern "C" int es_verify(const char * jns, es_progress progress, void * context, char * error, size_t error_bytes) {
    using namespace expertstream;
    return c_call(error, error_bytes, [&](std::string & text) {
        Progress told{progress, context};
        return verify(jns, told, text);
    });
}
