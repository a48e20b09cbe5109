// A model as one GGUF, whatever files it really lies in: what shell, container and description are made from.
// Private to the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf.hpp"
#include "index.hpp"

namespace expertstream::model {

// A run of bytes of the one GGUF which are not of a streamed expert: the dense part.
struct Extent {
    uint64_t at = 0;  // in the one GGUF
    uint64_t size = 0;
    uint32_t file = 0;  // which of `Index::files`
    uint64_t from = 0;  // in that file
    uint32_t crc = 0;   // CRC-32C, in a container
};

struct Model {
    Index index;
    gguf::Header header;                       // of the one GGUF: its tensors lie where they do there
    std::vector<uint8_t> merged;               // its first bytes, if it has been put together from several parts
    uint64_t bytes = 0;                        // of the one GGUF
    std::vector<Extent> dense;                 // ascending; with `merged` and the experts everything but padding
    std::vector<std::vector<uint64_t>> begin;  // [layer][matrix]: where that tensor begins in the one GGUF

    uint64_t dense_bytes() const;
};

// Where the streamed tensors of a GGUF are: what makes an index of it and of a container alike.
struct ExpertTensor {
    uint32_t layer = 0;  // number of the block
    uint32_t order = 0;  // gate, up, down
    const gguf::Tensor * tensor = nullptr;
    uint32_t file = 0;
};

bool is_expert_tensor(const gguf::Tensor & tensor, uint32_t & layer, uint32_t & order);
// Sorted by layer and order. What has another number of experts than the rest of its block is not streamed, but dense.
std::vector<ExpertTensor> expert_tensors(const std::vector<gguf::Header> & parts);
Matrix matrix_of(const gguf::Tensor & tensor);
// Everything in [0, bytes) that is not in one of `tensors`.
std::vector<Extent> around(const std::vector<ExpertTensor> & tensors, uint64_t bytes);

bool read_gguf(const std::string & path, Model & model, std::string & error);
bool read_jns(const std::string & path, Model & model, std::string & error);
bool read(const std::string & path, Model & model, std::string & error);

// Which versions of which files these are, a line for each.
bool versions_of(const std::vector<std::string> & files, std::string & text, std::string & error);

// The files of a model, open, and any dense or padding bytes of its one GGUF out of them.
class Bytes {
  public:
    bool open(const Model & model, std::string & error);
    bool read(uint64_t at, uint8_t * data, uint64_t size, std::string & error) const;
    const disk::File & file(uint32_t number) const { return files_[number]; }
    void forget() const;  // drops them from the page cache

  private:
    const Model * model_ = nullptr;
    std::vector<disk::File> files_;
};

bool is_container(const std::string & path);  // by its first bytes

}  // namespace expertstream::model
