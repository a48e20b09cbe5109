// The index of a GGUF: what it finds, and what it refuses.
#include "check.hpp"
#include "index.hpp"
#include "tiny_model.hpp"

using namespace expertstream;

namespace {

std::string refusal(const std::string & path) {
    Index index;
    std::string error;
    return index_gguf(path, index, error) ? "accepted" : error;
}

// What is said of a file with these bytes, after its name.
std::string refusal_of(const std::string & bytes) {
    const Folder folder;
    const std::string path = folder / "m.gguf";
    write_file(path, bytes);
    const std::string said = refusal(path);
    return said.rfind(path + ": ", 0) == 0 ? said.substr(path.size() + 2) : said;
}

bool says(const std::string & text, const std::string & part) {
    if (text.find(part) != std::string::npos) return true;
    std::fprintf(stderr, "\"%s\" does not say \"%s\"\n", text.c_str(), part.c_str());
    return false;
}

Index indexed(const std::string & path) {
    Index index;
    std::string error;
    if (!index_gguf(path, index, error)) throw std::runtime_error(error);
    return index;
}

// The bytes of a matrix of an expert, as a reader finds them, and as they lie in the file.
std::string by_index(const Index & index, size_t layer, size_t expert, size_t matrix) {
    const Index::Places & places = index.places[layer];
    const Piece & piece = places.pieces[expert * places.pieces_each + matrix];
    return read_file(index.files[piece.file]).substr(piece.offset, piece.size);
}

}  // namespace

TEST(rows_have_the_size_that_ggml_gives_them) {
    const struct {
        uint32_t type;
        uint64_t cols, bytes;
    } cases[] = {
        {0, 3, 12},    {1, 3, 6},      {30, 3, 6},     {2, 64, 36},    {3, 64, 40},    {6, 64, 44},    {7, 64, 48},
        {8, 64, 68},   {10, 512, 168}, {11, 512, 220}, {12, 512, 288}, {13, 512, 352}, {14, 512, 420}, {16, 256, 66},
        {17, 256, 74}, {18, 256, 98},  {19, 256, 50},  {20, 64, 36},   {21, 256, 110}, {22, 256, 82},  {23, 256, 136},
        {29, 256, 56}, {34, 256, 54},  {35, 256, 66},  {39, 64, 34},   {40, 64, 36},
    };
    for (const auto & one : cases) CHECK_EQ(row_bytes(one.type, one.cols), one.bytes);
}

TEST(a_row_that_cannot_be_has_no_size) {
    CHECK_EQ(row_bytes(8, 33), 0u);
    CHECK_EQ(row_bytes(12, 128), 0u);
    CHECK_EQ(row_bytes(4, 32), 0u);
    CHECK_EQ(row_bytes(1000, 32), 0u);
    CHECK_EQ(row_bytes(0, UINT64_MAX / 2), 0u);
}

TEST(layers_are_the_blocks_with_experts_and_matrices_go_gate_up_down) {
    const Folder folder;
    write_file(folder / "m.gguf", tiny_moe().bytes());
    const Index index = indexed(folder / "m.gguf");
    CHECK_EQ(index.layers.size(), 2u);
    CHECK_EQ(index.layers[0].number, 1u);
    CHECK_EQ(index.layers[1].number, 2u);
    CHECK_EQ(index.layers[1].experts, kTinyExperts);
    CHECK_EQ(index.layers[1].matrices.size(), 3u);
    CHECK_EQ(index.layers[1].matrices[0].name, "blk.2.ffn_gate_exps.weight");
    CHECK_EQ(index.layers[1].matrices[1].name, "blk.2.ffn_up_exps.weight");
    CHECK_EQ(index.layers[1].matrices[2].name, "blk.2.ffn_down_exps.weight");
    CHECK_EQ(index.layers[1].matrices[0].rows, kTinyRows + 1);
    CHECK_EQ(index.layers[1].matrices[0].cols, kTinyCols);
    CHECK_EQ(index.layers[1].matrices[0].row_bytes, 68u);
    CHECK_EQ(index.layers[1].matrices[0].bytes, 68 * (kTinyRows + 1));
    CHECK_EQ(index.expert_bytes(), 2 * kTinyExperts * 68 * (3 * kTinyRows + 3));
    CHECK(!index.checked);
}

TEST(every_piece_is_that_expert_of_that_matrix) {
    const Folder folder;
    const TinyGguf model = tiny_moe();
    const std::string bytes = model.bytes();
    write_file(folder / "m.gguf", bytes);
    const Index index = indexed(folder / "m.gguf");
    uint64_t at = model.up(model.header().size());
    for (const TinyTensor & tensor : model.tensors) {
        for (size_t layer = 0; layer < 2; ++layer) {
            for (size_t m = 0; m < 3; ++m) {
                if (index.layers[layer].matrices[m].name != tensor.name) continue;
                const uint64_t each = tensor.bytes / kTinyExperts;
                for (size_t e = 0; e < kTinyExperts; ++e)
                    CHECK(by_index(index, layer, e, m) == bytes.substr(at + e * each, each));
            }
        }
        at = model.up(at + tensor.bytes);
    }
}

TEST(pages_of_all_pieces_have_room_in_a_slot_and_do_not_meet) {
    const Folder folder;
    write_file(folder / "m.gguf", tiny_moe().bytes());
    const Index index = indexed(folder / "m.gguf");
    for (size_t layer = 0; layer < index.layers.size(); ++layer) {
        const Index::Places & places = index.places[layer];
        CHECK_EQ(index.layers[layer].slot_bytes % kPage, 0u);
        CHECK_EQ(places.pieces.size(), kTinyExperts * 3);
        for (size_t i = 0; i < places.pieces.size(); ++i) {
            const Piece & piece = places.pieces[i];
            const uint64_t pages_end = piece.at + (piece.offset % kPage + piece.size + kPage - 1) / kPage * kPage;
            const uint64_t next = i % 3 == 2 ? index.layers[layer].slot_bytes : places.pieces[i + 1].at;
            CHECK_EQ(piece.at % kPage, 0u);
            CHECK(pages_end <= next);
            CHECK_EQ(places.starts[i], piece.at + piece.offset % kPage);
        }
    }
}

TEST(gate_and_up_in_one_come_before_down) {
    TinyGguf model;
    model.tensors = {q8_0("blk.7.ffn_down_exps.weight", {32, 2, 3}), q8_0("blk.7.ffn_gate_up_exps.weight", {32, 4, 3})};
    const Folder folder;
    write_file(folder / "m.gguf", model.bytes());
    const Index index = indexed(folder / "m.gguf");
    CHECK_EQ(index.layers[0].number, 7u);
    CHECK_EQ(index.layers[0].matrices[0].name, "blk.7.ffn_gate_up_exps.weight");
    CHECK_EQ(index.layers[0].matrices[1].name, "blk.7.ffn_down_exps.weight");
}

TEST(a_matrix_with_another_number_of_experts_is_left_to_llama_cpp) {
    TinyGguf model;
    model.tensors = {q8_0("blk.0.ffn_gate_exps.weight", {32, 2, 4}), q8_0("blk.0.ffn_up_exps.weight", {32, 2, 3}),
                     q8_0("blk.0.ffn_down_exps.weight", {32, 2, 3})};
    const Folder folder;
    write_file(folder / "m.gguf", model.bytes());
    const Index index = indexed(folder / "m.gguf");
    CHECK_EQ(index.layers[0].experts, 3u);
    CHECK_EQ(index.layers[0].matrices.size(), 2u);
    CHECK_EQ(index.layers[0].matrices[0].name, "blk.0.ffn_up_exps.weight");
}

TEST(only_weights_of_three_dimensions_in_a_block_are_experts) {
    TinyGguf model;
    model.tensors = {f32("blk.0.ffn_norm_exps.weight", 4),
                     f32("blk.0.ffn_down_exps.bias", 4),
                     q8_0("ffn_down_exps.weight", {32, 2, 3}),
                     q8_0("blk.x.ffn_down_exps.weight", {32, 2, 3}),
                     q8_0("blk.0.ffn_down_chexps.weight", {32, 2, 3}),
                     q8_0("blk.0.ffn_gate_shexp.weight", {32, 2, 3})};
    const Folder folder;
    write_file(folder / "m.gguf", model.bytes());
    CHECK(indexed(folder / "m.gguf").layers.empty());
}

TEST(the_parts_of_a_split_model_are_found_beside_the_first) {
    const Folder folder;
    const Index index = indexed(write_split(folder, tiny_moe(), 3));
    CHECK_EQ(index.files.size(), 3u);
    CHECK_EQ(index.files[2], folder / "tiny-00003-of-00003.gguf");
    CHECK_EQ(index.file_bytes[2], read_file(index.files[2]).size());
    CHECK_EQ(index.layers.size(), 2u);
    CHECK_EQ(index.places[0].pieces[2].file, 0u);  // down of block 1
    CHECK_EQ(index.places[1].pieces[0].file, 1u);  // gate of block 2
    CHECK_EQ(index.places[1].pieces[1].file, 2u);  // up of block 2
    CHECK(by_index(index, 1, 4, 1).size() == 68 * (kTinyRows + 2));
}

TEST(a_split_model_must_be_whole_and_named_by_its_first_part) {
    const Folder folder;
    const std::string first = write_split(folder, tiny_moe(), 3);
    CHECK(says(refusal(folder / "tiny-00002-of-00003.gguf"), "is not the first part of its model"));
    std::filesystem::rename(folder / "tiny-00003-of-00003.gguf", folder / "kept");
    CHECK(says(refusal(first), "tiny-00003-of-00003.gguf: cannot be opened: No such file"));
    std::filesystem::copy(folder / "tiny-00002-of-00003.gguf", folder / "tiny-00003-of-00003.gguf");
    CHECK(says(refusal(first), "tiny-00003-of-00003.gguf: is not part 3"));
    std::filesystem::rename(first, folder / "other.gguf");
    CHECK(says(refusal(folder / "other.gguf"), "its name must end in -00001-of-00003.gguf"));
}

TEST(a_file_that_is_no_gguf_is_refused_by_what_it_is) {
    CHECK(says(refusal_of(""), "is no GGUF file"));
    CHECK(says(refusal_of("GG"), "is no GGUF file"));
    CHECK(says(refusal_of("GGJT" + std::string(100, '\0')), "is no GGUF file"));
    TinyGguf model = tiny_moe();
    model.version = 1;
    CHECK(says(refusal_of(model.bytes()), "version 1; versions 2 and 3 are supported"));
    model.version = 4;
    CHECK(says(refusal_of(model.bytes()), "version 4"));
    model.version = 0x03000000;
    CHECK(says(refusal_of(model.bytes()), "big-endian"));
    CHECK(says(refusal("/"), "is no regular file"));
    CHECK(says(refusal("/nowhere/m.gguf"), "/nowhere/m.gguf: cannot be opened: No such file"));
}

TEST(every_truncation_is_refused) {
    TinyGguf model = tiny_moe();
    const std::string bytes = model.bytes(), header = model.header();
    const Folder folder;
    for (size_t size = 0; size < header.size(); ++size) {
        write_file(folder / "m.gguf", bytes.substr(0, size));
        CHECK(refusal(folder / "m.gguf") != "accepted");
    }
    const uint64_t end = model.up(bytes.size() - 32) - 12;  // inside the last tensor, which is 20 bytes long
    CHECK(says(refusal_of(bytes.substr(0, end)),
               "output_norm.weight ends behind that: damaged, or not downloaded whole"));
}

TEST(counts_and_lengths_that_cannot_be_are_refused) {
    const std::string begin = "GGUF" + raw<uint32_t>(3);
    const uint64_t many = uint64_t{1} << 60;
    CHECK(says(refusal_of(begin + raw(many) + raw<uint64_t>(0)), "claims"));
    CHECK(says(refusal_of(begin + raw<uint64_t>(0) + raw(many)), "claims"));
    const auto with_key = [&](const std::string & key) {
        return begin + raw<uint64_t>(0) + raw<uint64_t>(1) + key + std::string(64, '\0');
    };
    CHECK(says(refusal_of(with_key(raw(many) + "k")), "unreadable key 0"));
    CHECK(says(refusal_of(with_key(counted("k") + raw<uint32_t>(8) + raw(many))), "unreadable key 0"));
    CHECK(
        says(refusal_of(with_key(counted("k") + raw<uint32_t>(9) + raw<uint32_t>(4) + raw(many))), "unreadable key 0"));
    CHECK(
        says(refusal_of(with_key(counted("k") + raw<uint32_t>(9) + raw<uint32_t>(8) + raw(many))), "unreadable key 0"));
    CHECK(says(refusal_of(with_key(counted("k") + raw<uint32_t>(9) + raw<uint32_t>(9) + raw<uint64_t>(1))),
               "unreadable key 0"));
    CHECK(says(refusal_of(with_key(counted("k") + raw<uint32_t>(77))), "unreadable key 0"));
}

TEST(alignment_is_a_power_of_two) {
    for (const uint32_t alignment : {0u, 3u, 48u, 1u << 31}) {
        TinyGguf model = tiny_moe();
        model.keys.push_back(TinyGguf::number_key("general.alignment", alignment));
        CHECK(says(refusal_of(model.bytes()), "no usable power of two"));
    }
    TinyGguf model = tiny_moe();
    model.alignment = 64;
    model.keys.push_back(TinyGguf::number_key("general.alignment", 64));
    CHECK_EQ(refusal_of(model.bytes()), "accepted");
}

TEST(tensors_that_cannot_be_are_refused) {
    const auto with = [](const TinyTensor & tensor) {
        TinyGguf model;
        model.tensors = {f32("first.weight", 8), tensor};
        return refusal_of(model.bytes());
    };
    const uint64_t huge = uint64_t{1} << 40;
    CHECK(says(with({"t", 0, {1, 1, 1, 1, 1}, 4}), "unreadable tensor 1"));
    CHECK(says(with({"t", 0, {uint64_t{1} << 63}, 4}), "unreadable tensor 1"));
    CHECK(says(with({"t", 8, {huge, huge, huge}, 4}), "unknown or impossible size"));
    CHECK(
        says(with({"t", 4, {32}, 4}), "the tensor t of type 4 with rows of 32 values, of unknown or impossible size"));
    CHECK(says(with({"t", 8, {33}, 4}), "unknown or impossible size"));
    CHECK(says(with({"t", 0, {huge}, 4}), "ends behind that"));
    CHECK(says(with({"t", 0, {8}, 32, 33}), "the tensor t misaligned"));
    CHECK(says(with({"t", 0, {8}, 32, UINT64_MAX - 31}), "ends behind that"));
    CHECK(says(with({"t", 0, {8}, 32, 0}), "in the same place"));
    CHECK(says(with({"first.weight", 0, {8}, 32}), "has the tensor first.weight twice"));
}
