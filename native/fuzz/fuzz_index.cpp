// Feeds any bytes to the readers of GGUF and `.jns` headers: with libFuzzer, or with driver.cpp where there is none.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "api.h"
#include "container.hpp"
#include "index.hpp"
#include "reader.hpp"

using namespace expertstream;

namespace {

constexpr uint64_t kTail = 8u << 20;  // zeros behind the input, so that tensors it speaks of may lie in the file

// Checksums that are right, so that what lies behind them is reached too.
void sign(std::vector<uint8_t> & bytes) {
    jns::Head head;
    if (bytes.size() < sizeof head || std::memcmp(bytes.data(), jns::kMagic, sizeof jns::kMagic) != 0) return;
    std::memcpy(&head, bytes.data(), sizeof head);
    const uint64_t at = head.tables_at, size = head.tables_bytes;
    if (at <= bytes.size() && size <= bytes.size() - at) head.tables_crc = crc32c(0, bytes.data() + at, size);
    head.total_bytes = bytes.size() + kTail;
    head.head_crc = crc32c(0, &head, offsetof(jns::Head, head_crc));
    std::memcpy(bytes.data(), &head, sizeof head);
}

void check(bool holds) {
    if (!holds) abort();
}

// What the rest of the library takes for granted of an index.
void check_index(const Index & index) {
    check(index.files.size() == index.file_bytes.size() && index.places.size() == index.layers.size());
    for (size_t l = 0; l < index.layers.size(); ++l) {
        const Layer & layer = index.layers[l];
        const Index::Places & places = index.places[l];
        const size_t matrices = layer.matrices.size();
        check(layer.experts > 0 && matrices > 0 && layer.slot_bytes % kPage == 0);
        check(l == 0 || index.layers[l - 1].number < layer.number);
        check(places.pieces.size() == size_t{layer.experts} * places.pieces_each &&
              places.starts.size() == layer.experts * matrices);
        check(places.crcs.size() == (index.checked ? layer.experts : 0));
        for (const Piece & piece : places.pieces) {
            check(piece.file < index.files.size() && piece.size > 0 && piece.size <= index.file_bytes[piece.file]);
            check(piece.offset <= index.file_bytes[piece.file] - piece.size && piece.at % kPage == 0);
            check(piece.at + (piece.offset % kPage + piece.size + kPage - 1) / kPage * kPage <= layer.slot_bytes);
        }
        for (size_t i = 0; i < places.starts.size(); ++i) {
            check(places.starts[i] + layer.matrices[i % matrices].bytes <= layer.slot_bytes);
        }
        for (const Matrix & matrix : layer.matrices) {
            check(matrix.row_bytes == row_bytes(matrix.type, matrix.cols) &&
                  matrix.bytes == matrix.row_bytes * matrix.rows);
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    static const std::string path = "/proc/self/fd/" + std::to_string(fd);
    std::vector<uint8_t> bytes(data, data + size);
    sign(bytes);
    const bool with_tail = size > 4 && (bytes[0] == 'D' || bytes[size - 1] % 2 == 0);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, bytes.data(), size, 0) != static_cast<ssize_t>(size)) abort();
    if (ftruncate(fd, static_cast<off_t>(size + (with_tail ? kTail : 0))) != 0) abort();
    for (const auto read : {index_gguf, index_jns}) {
        Index index;
        std::string error;
        if (read(path, index, error))
            check_index(index);
        else
            check(!error.empty());
    }
    static std::vector<char> json(1u << 20);
    char error[200];
    es_describe(path.c_str(), json.data(), json.size(), error, sizeof error);
    return 0;
}
