// The shell of a model: a GGUF with all of it but the experts, which are holes. Made once, then kept with a note of
// what it was made from.
#include "shell.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "api.h"
#include "c_call.hpp"
#include "reader.hpp"

namespace expertstream {

namespace {

constexpr size_t kChunk = 4u << 20;

// What `<shell>.source` says: which files the shell was made from, and which file it is itself.
std::string record(const std::string & source, const disk::Stamp & shell) {
    return "expertstream shell 1\n" + source + "shell " + shell.text() + "\n";
}

// Whether the shell is there, is the one that was written, and its sources are as they were.
bool is_current(const std::string & shell, const std::string & source) {
    disk::File file;
    disk::Stamp stamp;
    std::string error;
    if (!disk::exists(shell) || !disk::open_to_read(shell, file, error) || !disk::stamp(file, stamp, error))
        return false;
    return disk::read_whole(shell + ".source") == record(source, stamp);
}

// Byte by byte, for a container, where a CRC tells whether the bytes are right.
bool copy_checked(const disk::File & from, const model::Extent & extent, const disk::File & to, Progress & progress,
                  std::string & error) {
    std::vector<uint8_t> buffer(static_cast<size_t>(std::min<uint64_t>(extent.size, kChunk)));
    uint32_t crc = 0;
    for (uint64_t done = 0; done < extent.size;) {
        const size_t n = static_cast<size_t>(std::min<uint64_t>(extent.size - done, buffer.size()));
        if (!disk::read_at(from, extent.from + done, buffer.data(), n, error)) return false;
        if (!disk::write_at(to, extent.at + done, buffer.data(), n, error) || !progress.add(n, error)) return false;
        crc = crc32c(crc, buffer.data(), n);
        done += n;
    }
    if (crc == extent.crc) return true;
    return disk::fail(error, from.name(),
                      "is damaged: its dense bytes " + std::to_string(extent.at) + " to " +
                          std::to_string(extent.at + extent.size) + " of the GGUF have the wrong checksum");
}

bool build(const model::Model & model, const std::string & shell, const std::string & source, const disk::File & part,
           std::string & error) {
    disk::Stamp stamp;
    std::string now;
    Progress nobody;
    if (!disk::resize(part, 0, error) || !write_dense(model, part, nobody, error) || !disk::sync(part, error))
        return false;
    if (!model::versions_of(model.index.files, now, error)) return false;
    if (now != source) return disk::fail(error, model.index.files[0], "changed while its shell was made");
    disk::forget(part);
    if (!disk::stamp(part, stamp, error) || !disk::replace(part.name(), shell, error)) return false;
    return disk::write_whole(shell + ".source", record(source, stamp), error);
}

bool make_shell(const std::string & path, const std::string & shell, std::string & error) {
    model::Model model;
    std::string source;
    if (!model::read(path, model, error) || !model::versions_of(model.index.files, source, error)) return false;
    for (const std::string & file : model.index.files) {
        if (disk::same_file(file, shell)) return disk::fail(error, shell, "is the model itself");
    }
    if (is_current(shell, source)) return true;
    disk::File part;
    if (!disk::open_to_write(shell + ".part", true, part, error)) return false;
    // Another process may have made it while this one waited.
    const bool made = is_current(shell, source);
    if (!made && build(model, shell, source, part, error)) return true;
    remove(part.name().c_str());
    return made;
}

}  // namespace

bool write_dense(const model::Model & model, const disk::File & to, Progress & progress, std::string & error) {
    model::Bytes bytes;
    if (!bytes.open(model, error) || !disk::resize(to, model.bytes, error)) return false;
    if (!disk::write_at(to, 0, model.merged.data(), model.merged.size(), error)) return false;
    for (const model::Extent & extent : model.dense) {
        const disk::File & from = bytes.file(extent.file);
        const bool ok = model.index.checked ? copy_checked(from, extent, to, progress, error)
                                            : disk::copy(from, extent.from, to, extent.at, extent.size, error);
        if (!ok) return false;
    }
    return true;
}

}  // namespace expertstream

extern "C" int es_shell(const char * model, const char * shell, char * error, size_t error_bytes) {
    using namespace expertstream;
    return c_call(error, error_bytes, [&](std::string & text) { return make_shell(model, shell, text); });
}
