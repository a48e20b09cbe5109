// The header of a GGUF, read from files that nobody vouches for. Also the sizes of ggml's types.
#include "gguf.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <unordered_set>

#include "index.hpp"

namespace expertstream {

namespace {

struct TypeSize {
    uint32_t type;
    uint32_t values, bytes;  // of a block
    const char * name;
};

constexpr TypeSize kTypes[] = {
    {0, 1, 4, "F32"},         {1, 1, 2, "F16"},         {2, 32, 18, "Q4_0"},      {3, 32, 20, "Q4_1"},
    {6, 32, 22, "Q5_0"},      {7, 32, 24, "Q5_1"},      {8, 32, 34, "Q8_0"},      {9, 32, 36, "Q8_1"},
    {10, 256, 84, "Q2_K"},    {11, 256, 110, "Q3_K"},   {12, 256, 144, "Q4_K"},   {13, 256, 176, "Q5_K"},
    {14, 256, 210, "Q6_K"},   {15, 256, 292, "Q8_K"},   {16, 256, 66, "IQ2_XXS"}, {17, 256, 74, "IQ2_XS"},
    {18, 256, 98, "IQ3_XXS"}, {19, 256, 50, "IQ1_S"},   {20, 32, 18, "IQ4_NL"},   {21, 256, 110, "IQ3_S"},
    {22, 256, 82, "IQ2_S"},   {23, 256, 136, "IQ4_XS"}, {24, 1, 1, "I8"},         {25, 1, 2, "I16"},
    {26, 1, 4, "I32"},        {27, 1, 8, "I64"},        {28, 1, 8, "F64"},        {29, 256, 56, "IQ1_M"},
    {30, 1, 2, "BF16"},       {34, 256, 54, "TQ1_0"},   {35, 256, 66, "TQ2_0"},   {39, 32, 17, "MXFP4"},
    {40, 64, 36, "NVFP4"},    {41, 128, 18, "Q1_0"},    {42, 64, 18, "Q2_0"},
};

const TypeSize * type_size(uint32_t type) {
    const auto * found =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeSize & t) { return t.type == type; });
    return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace

uint64_t row_bytes(uint32_t type, uint64_t cols) {
    const TypeSize * size = type_size(type);
    uint64_t bytes = 0;
    if (size == nullptr || cols % size->values != 0) return 0;
    return __builtin_mul_overflow(cols / size->values, uint64_t{size->bytes}, &bytes) ? 0 : bytes;
}

namespace gguf {

namespace {

// Far above any real model, far below what would hurt: a hostile file is refused before it costs memory or minutes.
constexpr uint64_t kMostHeaderBytes = 256u << 20, kMostKeys = 1u << 16, kMostTensors = 1u << 18;
constexpr uint64_t kMostName = 1024, kMostText = 4096, kMostList = 4096;
constexpr size_t kWindow = 64u << 10;

// Goes through the header from front to back, by a window of it. Whatever would pass the end fails.
class Cursor {
  public:
    explicit Cursor(const Place & place)
        : place_(place), end_(std::min({place.readable, place.bytes, kMostHeaderBytes})), window_(kWindow) {}

    uint64_t at() const { return at_; }

    bool take(void * data, size_t size) {
        if (size > end_ - at_) return false;
        for (auto * to = static_cast<uint8_t *>(data); size > 0;) {
            if ((at_ < begin_ || at_ >= begin_ + filled_) && !fill()) return false;
            const size_t n = std::min(size, static_cast<size_t>(begin_ + filled_ - at_));
            std::memcpy(to, window_.data() + (at_ - begin_), n);
            to += n;
            at_ += n;
            size -= n;
        }
        return true;
    }

    template <class T> bool number(T & value) { return take(&value, sizeof value); }

    bool skip(uint64_t size) {
        if (size > end_ - at_) return false;
        at_ += size;
        return true;
    }

    bool name(std::string & text) {
        uint64_t size = 0;
        if (!number(size) || size > kMostName || size > end_ - at_) return false;
        text.resize(static_cast<size_t>(size));
        return take(text.data(), text.size());
    }

    const std::string & trouble() const { return trouble_; }  // of the drive, if that was it

  private:
    bool fill() {
        filled_ = static_cast<size_t>(std::min<uint64_t>(kWindow, end_ - at_));
        begin_ = at_;
        if (disk::read_at(*place_.file, place_.base + at_, window_.data(), filled_, trouble_)) return true;
        filled_ = 0;
        return false;
    }

    const Place & place_;
    uint64_t at_ = 0, end_;
    uint64_t begin_ = 0;  // of the window
    size_t filled_ = 0;
    std::vector<uint8_t> window_;
    std::string trouble_;
};

uint64_t number_bytes(uint32_t type) {
    switch (type) {
        case kUint8:
        case kInt8:
        case kBool: return 1;
        case kUint16:
        case kInt16: return 2;
        case kUint32:
        case kInt32:
        case kFloat32: return 4;
        case kUint64:
        case kInt64:
        case kFloat64: return 8;
        default: return 0;
    }
}

// A whole number of any width; what is below zero or no whole number counts as 0.
bool take_number(Cursor & cursor, uint32_t type, uint64_t & value) {
    uint64_t raw = 0;
    const uint64_t width = number_bytes(type);
    if (!cursor.take(&raw, static_cast<size_t>(width))) return false;
    const bool is_signed = type == kInt8 || type == kInt16 || type == kInt32 || type == kInt64;
    const bool negative = is_signed && (raw >> (width * 8 - 1)) != 0;
    value = negative || type == kFloat32 || type == kFloat64 ? 0 : raw;
    return true;
}

bool take_text(Cursor & cursor, std::string * text) {
    uint64_t size = 0;
    if (!cursor.number(size)) return false;
    if (text == nullptr || size > kMostText) return cursor.skip(size);
    text->resize(static_cast<size_t>(size));
    return cursor.take(text->data(), text->size());
}

bool take_list(Cursor & cursor, uint64_t & largest) {
    uint32_t type = 0;
    uint64_t count = 0, value = 0, bytes = 0;
    if (!cursor.number(type) || !cursor.number(count)) return false;
    if (type == kString) {
        for (; count > 0; --count) {
            if (!take_text(cursor, nullptr)) return false;
        }
        return true;
    }
    const uint64_t width = number_bytes(type);
    if (width == 0) return false;
    if (count > kMostList) return !__builtin_mul_overflow(count, width, &bytes) && cursor.skip(bytes);
    for (; count > 0; --count) {
        if (!take_number(cursor, type, value)) return false;
        largest = std::max(largest, value);
    }
    return true;
}

bool take_key(Cursor & cursor, Key & key) {
    key.at = cursor.at();
    if (!cursor.name(key.name) || !cursor.number(key.type)) return false;
    bool ok = false;
    if (key.type == kString) {
        ok = take_text(cursor, &key.text);
    } else if (key.type == kArray) {
        ok = take_list(cursor, key.number);
    } else if (number_bytes(key.type) != 0) {
        ok = take_number(cursor, key.type, key.number);
    }
    key.end = cursor.at();
    return ok;
}

// False also for sizes that do not fit 64 bits, and for types and rows that ggml does not know.
bool measure(Tensor & tensor) {
    const uint64_t row = row_bytes(tensor.type, tensor.ne[0]);
    if (row == 0 && tensor.ne[0] != 0) return false;
    tensor.bytes = row;
    for (int i = 1; i < 4; ++i) {
        if (__builtin_mul_overflow(tensor.bytes, tensor.ne[i], &tensor.bytes)) return false;
    }
    return tensor.bytes <= INT64_MAX;
}

bool take_tensor(Cursor & cursor, Tensor & tensor) {
    if (!cursor.name(tensor.name) || !cursor.number(tensor.dims) || tensor.dims > 4) return false;
    for (uint32_t i = 0; i < tensor.dims; ++i) {
        if (!cursor.number(tensor.ne[i]) || tensor.ne[i] > INT64_MAX) return false;
    }
    return cursor.number(tensor.type) && cursor.number(tensor.offset);
}

bool refuse(const Cursor & cursor, const std::string & file, const std::string & what, std::string & error) {
    if (!cursor.trouble().empty()) {
        error = cursor.trouble();
        return false;
    }
    return disk::fail(error, file, what + " (at byte " + std::to_string(cursor.at()) + "): damaged, or not whole");
}

bool check_magic(Cursor & cursor, const std::string & file, Header & header, std::string & error) {
    char magic[4] = {};
    if (!cursor.number(magic) || std::memcmp(magic, "GGUF", 4) != 0) {
        if (cursor.trouble().empty()) return disk::fail(error, file, "is no GGUF file");
        return refuse(cursor, file, "", error);
    }
    if (!cursor.number(header.version)) return refuse(cursor, file, "ends inside its header", error);
    if (header.version == 2 || header.version == 3) return true;
    const bool swapped = header.version != 0 && (header.version & 0xffff) == 0;
    return disk::fail(
        error, file,
        swapped ? "is a big-endian GGUF, which is not supported"
                : "is a GGUF of version " + std::to_string(header.version) + "; versions 2 and 3 are supported");
}

bool read_keys(Cursor & cursor, const std::string & file, uint64_t count, Header & header, std::string & error) {
    std::unordered_set<std::string> seen;
    for (uint64_t i = 0; i < count; ++i) {
        Key key;
        if (!take_key(cursor, key)) return refuse(cursor, file, "has an unreadable key " + std::to_string(i), error);
        if (!seen.insert(key.name).second) return disk::fail(error, file, "has the key " + key.name + " twice");
        header.keys.push_back(std::move(key));
    }
    const Key * alignment = header.key("general.alignment");
    if (alignment == nullptr) return true;
    header.alignment = alignment->number;
    const bool power = header.alignment != 0 && (header.alignment & (header.alignment - 1)) == 0;
    if (alignment->type == kUint32 && power && header.alignment <= (1u << 20)) return true;
    return disk::fail(error, file,
                      "has the alignment " + std::to_string(header.alignment) + ", which is no usable power of two");
}

bool read_tensors(Cursor & cursor, const std::string & file, uint64_t count, Header & header, std::string & error) {
    std::unordered_set<std::string> seen;
    for (uint64_t i = 0; i < count; ++i) {
        Tensor tensor;
        if (!take_tensor(cursor, tensor))
            return refuse(cursor, file, "has an unreadable tensor " + std::to_string(i), error);
        if (!seen.insert(tensor.name).second)
            return disk::fail(error, file, "has the tensor " + tensor.name + " twice");
        if (!measure(tensor)) {
            return disk::fail(error, file,
                              "has the tensor " + tensor.name + " of " + type_name(tensor.type) + " with rows of " +
                                  std::to_string(tensor.ne[0]) + " values, of unknown or impossible size");
        }
        header.tensors.push_back(std::move(tensor));
    }
    header.data_at = round_up(cursor.at(), header.alignment);
    return true;
}

// Turns offsets into places in the file, once they are known to lie there and not in each other.
bool place_tensors(const std::string & file, Header & header, std::string & error) {
    std::vector<Tensor *> order;
    for (Tensor & tensor : header.tensors) {
        uint64_t end = 0;
        if (tensor.offset % header.alignment != 0)
            return disk::fail(error, file, "has the tensor " + tensor.name + " misaligned");
        if (__builtin_add_overflow(tensor.offset, header.data_at, &tensor.offset) ||
            __builtin_add_overflow(tensor.offset, tensor.bytes, &end) || end > header.file_bytes) {
            return disk::fail(error, file,
                              "is " + std::to_string(header.file_bytes) + " bytes long, but its tensor " + tensor.name +
                                  " ends behind that: damaged, or not downloaded whole");
        }
        if (tensor.bytes > 0) order.push_back(&tensor);
    }
    std::sort(order.begin(), order.end(), [](const Tensor * a, const Tensor * b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i) {
        if (order[i - 1]->offset + order[i - 1]->bytes <= order[i]->offset) continue;
        return disk::fail(error, file,
                          "has the tensors " + order[i - 1]->name + " and " + order[i]->name + " in the same place");
    }
    return true;
}

}  // namespace

const Key * Header::key(const std::string & name) const {
    const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key & key) { return key.name == name; });
    return found == keys.end() ? nullptr : &*found;
}

uint64_t Header::number(const std::string & name, uint64_t otherwise) const {
    const Key * found = key(name);
    return found == nullptr ? otherwise : found->number;
}

std::string Header::text(const std::string & name) const {
    const Key * found = key(name);
    return found == nullptr ? std::string() : found->text;
}

uint64_t round_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

std::string type_name(uint32_t type) {
    const TypeSize * size = type_size(type);
    return size == nullptr ? "type " + std::to_string(type) : size->name;
}

bool read_header(const Place & place, Header & header, std::string & error) {
    header = Header();
    header.file_bytes = place.bytes;
    const std::string & file = place.file->name();
    Cursor cursor(place);
    uint64_t tensors = 0, keys = 0;
    if (!check_magic(cursor, file, header, error)) return false;
    if (!cursor.number(tensors) || !cursor.number(keys)) return refuse(cursor, file, "ends inside its header", error);
    if (tensors > kMostTensors || keys > kMostKeys) {
        return disk::fail(
            error, file,
            "claims " + std::to_string(tensors) + " tensors and " + std::to_string(keys) + " keys: damaged");
    }
    if (!read_keys(cursor, file, keys, header, error)) return false;
    header.tensors_at = cursor.at();
    return read_tensors(cursor, file, tensors, header, error) && place_tensors(file, header, error);
}

bool split_names(const std::string & path, uint64_t count, std::vector<std::string> & names, std::string & error) {
    names = {path};
    if (count <= 1) return true;
    char ending[64];
    const auto ending_of = [&](uint64_t part) {
        std::snprintf(ending, sizeof ending, "-%05u-of-%05u.gguf", static_cast<unsigned>(part),
                      static_cast<unsigned>(count));
        return std::string(ending);
    };
    const std::string first = ending_of(1);
    if (count > 99999 || path.size() < first.size() ||
        path.compare(path.size() - first.size(), first.size(), first) != 0) {
        return disk::fail(error, path,
                          "is the first of " + std::to_string(count) + " parts, so its name must end in " + first);
    }
    const std::string stem = path.substr(0, path.size() - first.size());
    for (uint64_t part = 2; part <= count; ++part) names.push_back(stem + ending_of(part));
    return true;
}

}  // namespace gguf
}  // namespace expertstream
