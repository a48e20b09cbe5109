// Where every expert of a model lies on disk, and how it lies in memory. A value: made once, then only read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace expertstream {

constexpr size_t kPage = 4096;  // alignment of direct reads and of slots

// One run of bytes on disk. A direct read fetches whole pages: the run's first byte lands at `at + offset % kPage`.
struct Piece {
    uint32_t file = 0;    // which of `Index::files`
    uint64_t offset = 0;  // in that file
    uint64_t size = 0;    // bytes
    uint64_t at = 0;      // where its pages begin in a slot; a multiple of kPage
};

// One of the weight tensors of a layer: `experts` matrices of `rows` x `cols`, one after the other.
struct Matrix {
    std::string name;    // as in the GGUF: "blk.3.ffn_gate_exps.weight"
    uint32_t type = 0;   // ggml's number of the type
    uint64_t cols = 0;   // elements of a row (ne[0])
    uint64_t rows = 0;   // rows of one expert (ne[1])
    uint64_t bytes = 0;  // of one expert
    uint64_t row_bytes = 0;
};

struct Layer {
    uint32_t number = 0;  // of the block in the model: 3 in "blk.3."
    uint32_t experts = 0;
    // gate, up, down or gate_up, down, or fewer; in the order in which they lie in a slot
    std::vector<Matrix> matrices;
    uint64_t slot_bytes = 0;  // a multiple of kPage; room for every piece of any expert of this layer
};

struct Index {
    std::vector<std::string> files;
    std::vector<uint64_t> file_bytes;  // sizes when indexed
    uint32_t used = 0;          // experts per token, as the metadata say (the most of all layers); 0 if they do not
    std::vector<Layer> layers;  // ascending numbers; only blocks that have experts
    bool checked = false;       // every slot has a CRC-32C

    // Per layer (by position in `layers`): the pieces of expert e are [e * pieces_each, (e + 1) * pieces_each).
    struct Places {
        uint32_t pieces_each = 0;
        std::vector<Piece> pieces;
        std::vector<uint32_t> crcs;    // one per expert over its single piece, if `checked`
        std::vector<uint64_t> starts;  // [expert * matrices + matrix]: where the matrix begins in a slot, bytes
    };
    std::vector<Places> places;

    uint64_t expert_bytes() const;  // of all experts, as they lie on disk
};

// Reads the header of a GGUF, or of all the files of a split one, and finds its expert tensors (names that end with
// "_exps.weight" and have three dimensions). Nothing is trusted: sizes, counts, offsets and types are checked against
// the file. On failure returns false and says why in `error`, naming the file.
bool index_gguf(const std::string & path, Index & index, std::string & error);

// The same for a `.jns` container, see docs/reference/jns.md.
bool index_jns(const std::string & path, Index & index, std::string & error);

// Either of them, told apart by the first bytes of the file.
bool index_model(const std::string & path, Index & index, std::string & error);

// Bytes of a row of `cols` elements of ggml's type `type`; 0 if the type is not known or `cols` is no whole number of blocks.
uint64_t row_bytes(uint32_t type, uint64_t cols);

}  // namespace expertstream
