// The `.jns` container as it is read: what is found in one, and what is refused.
#include <cstring>

#include "api.h"
#include "check.hpp"
#include "container.hpp"
#include "index.hpp"
#include "reader.hpp"
#include "tiny_model.hpp"

using namespace expertstream;

namespace {

struct Packed : Folder {
    std::string gguf = *this / "m.gguf", jns = *this / "m.jns", bytes;

    Packed() {
        char error[500] = "";
        write_file(gguf, tiny_moe().bytes());
        if (es_pack(gguf.c_str(), jns.c_str(), nullptr, nullptr, error, sizeof error) != 0)
            throw std::runtime_error(error);
        bytes = read_file(jns);
    }
};

Index indexed(const std::string & path) {
    Index index;
    std::string error;
    if (!index_model(path, index, error)) throw std::runtime_error(error);
    return index;
}

std::string refusal(const std::string & path) {
    Index index;
    std::string error;
    return index_jns(path, index, error) ? "accepted" : error;
}

std::string verdict(const std::string & path) {
    char error[500] = "";
    return es_verify(path.c_str(), nullptr, nullptr, error, sizeof error) == 0 ? "right" : error;
}

bool says(const std::string & text, const std::string & part) {
    if (text.find(part) != std::string::npos) return true;
    std::fprintf(stderr, "\"%s\" does not say \"%s\"\n", text.c_str(), part.c_str());
    return false;
}

jns::Tables tables_of(const Packed & packed) {
    model::Model model;
    std::string error;
    if (!model::read_gguf(packed.gguf, model, error)) throw std::runtime_error(error);
    return jns::lay_out(model);
}

// What is said of the container with these tables, whose checksums are right.
std::string refusal_with(const Packed & packed, jns::Tables tables) {
    disk::File file;
    std::string error;
    write_file(packed.jns, packed.bytes);
    if (!disk::open_to_write(packed.jns, true, file, error) || !jns::write_tables(file, tables, error))
        throw std::runtime_error(error);
    return refusal(packed.jns);
}

}  // namespace

TEST(a_container_has_the_experts_of_its_gguf_each_in_one_aligned_piece) {
    const Packed packed;
    const Index index = indexed(packed.jns), plain = indexed(packed.gguf);
    const std::string gguf = read_file(packed.gguf);
    CHECK(index.checked);
    CHECK_EQ(index.layers.size(), plain.layers.size());
    CHECK_EQ(index.expert_bytes(), plain.expert_bytes());
    for (size_t layer = 0; layer < index.layers.size(); ++layer) {
        const Index::Places & places = index.places[layer];
        CHECK_EQ(index.layers[layer].number, plain.layers[layer].number);
        CHECK_EQ(places.pieces_each, 1u);
        for (size_t expert = 0; expert < kTinyExperts; ++expert) {
            const Piece & piece = places.pieces[expert];
            CHECK_EQ(piece.offset % kPage, 0u);
            CHECK_EQ(piece.size, index.layers[layer].slot_bytes);
            CHECK_EQ(crc32c(0, packed.bytes.data() + piece.offset, piece.size), places.crcs[expert]);
            for (size_t m = 0; m < 3; ++m) {
                const Matrix & matrix = index.layers[layer].matrices[m];
                const Piece & source = plain.places[layer].pieces[expert * 3 + m];
                const uint64_t start = places.starts[expert * 3 + m];
                CHECK_EQ(matrix.name, plain.layers[layer].matrices[m].name);
                CHECK_EQ(matrix.rows, plain.layers[layer].matrices[m].rows);
                CHECK_EQ(start % 64, 0u);
                CHECK(packed.bytes.substr(piece.offset + start, matrix.bytes) ==
                      gguf.substr(source.offset, source.size));
            }
        }
    }
}

TEST(a_whole_container_verifies) {
    const Packed packed;
    CHECK_EQ(verdict(packed.jns), "right");
}

TEST(the_first_damaged_slot_is_named) {
    const Packed packed;
    const Piece slot = indexed(packed.jns).places[1].pieces[3];
    for (const uint64_t at : {slot.offset, slot.offset + slot.size / 2, slot.offset + slot.size - 1}) {
        std::string bytes = packed.bytes;
        bytes[at] ^= 16;
        write_file(packed.jns, bytes);
        CHECK_EQ(refusal(packed.jns), "accepted");  // its tables are right
        CHECK(says(verdict(packed.jns), packed.jns + ": layer 2, expert 3 is damaged"));
    }
}

TEST(damage_of_the_dense_part_is_found_when_it_is_used) {
    const Packed packed;
    const jns::Tables tables = tables_of(packed);
    std::string bytes = packed.bytes;
    bytes[tables.extents[2].at + 5] ^= 1;
    write_file(packed.jns, bytes);
    CHECK(says(verdict(packed.jns), "the dense part from byte " + std::to_string(tables.extents[2].gguf_at)));
    char error[500] = "";
    CHECK_EQ(es_shell(packed.jns.c_str(), (packed / "s.gguf").c_str(), error, sizeof error), 1);
    CHECK(says(error, "is damaged"));
    CHECK(!std::filesystem::exists(packed / "s.gguf"));
    CHECK(!std::filesystem::exists(packed / "s.gguf.part"));
}

TEST(any_flipped_bit_of_head_and_tables_is_refused) {
    const Packed packed;
    const jns::Tables tables = tables_of(packed);
    for (size_t at = 0; at < kPage + tables.bytes(); ++at) {
        if (at == sizeof(jns::Head)) at = kPage;
        std::string bytes = packed.bytes.substr(0, kPage + tables.bytes());
        bytes[at] ^= static_cast<char>(1 << at % 8);
        write_file(packed / "flipped", bytes);
        std::filesystem::resize_file(packed / "flipped", packed.bytes.size());
        CHECK(refusal(packed / "flipped") != "accepted");
    }
}

TEST(a_container_of_another_length_is_refused) {
    const Packed packed;
    for (const size_t size :
         {size_t{8}, size_t{119}, size_t{120}, size_t{4096}, packed.bytes.size() - 1, packed.bytes.size() + 1}) {
        write_file(packed.jns, packed.bytes);
        std::filesystem::resize_file(packed.jns, size);
        CHECK(refusal(packed.jns) != "accepted");
    }
    CHECK(says(refusal(packed.jns),
               "bytes long instead of " + std::to_string(packed.bytes.size()) + ": damaged, or not copied whole"));
}

TEST(files_that_are_none_are_refused_by_what_they_are) {
    const Packed packed;
    CHECK_EQ(refusal(packed.gguf), packed.gguf + ": is a GGUF, not a container");
    write_file(packed.jns, "JANASLLM" + std::string(500, '\1'));
    CHECK(says(refusal(packed.jns), packed.jns + ": is a container of Janas (JANASLLM), which cannot be read here"));
    for (const std::string & bytes : {std::string(), std::string("DRVT"), std::string(500, 'x')}) {
        write_file(packed.jns, bytes);
        CHECK(says(refusal(packed.jns), "is neither a GGUF nor a container"));
    }
    std::string later = packed.bytes;
    later[8] = 2;
    write_file(packed.jns, later);
    CHECK(says(refusal(packed.jns), "is a container of version 2; this program reads version 1"));
}

TEST(tables_that_cannot_be_are_refused_though_their_checksums_are_right) {
    const Packed packed;
    const jns::Tables good = tables_of(packed);
    CHECK_EQ(refusal_with(packed, good), "accepted");
    const auto with = [&](auto && change) {
        jns::Tables tables = good;
        change(tables);
        return refusal_with(packed, tables);
    };
    CHECK(says(with([](auto & t) { t.head.flags = 1; }), "features of a later program (flags 1)"));
    CHECK(says(with([](auto & t) { t.extents.clear(); }), "dense parts where none can be"));
    CHECK(says(with([](auto & t) { t.extents[0].gguf_at = 1; }), "dense parts where none can be"));
    CHECK(says(with([](auto & t) { t.extents[1].at = t.extents[0].at; }), "dense parts where none can be"));
    CHECK(says(with([](auto & t) { t.extents[1].size = UINT64_MAX - 4; }), "dense parts where none can be"));
    CHECK(says(with([](auto & t) { t.extents[0].at = 0; }), "dense parts where none can be"));
    CHECK(says(with([](auto & t) { t.extents[1].gguf_at -= 1; }), "contradict its GGUF header"));
    CHECK(says(with([](auto & t) { t.extents.pop_back(); }), "contradict its GGUF header"));
    CHECK(says(with([](auto & t) { t.crcs.pop_back(); }), "a block 2 that cannot be"));
    CHECK(says(with([](auto & t) { t.crcs.push_back(0); }), "contradict its GGUF header"));
    CHECK(says(with([](auto & t) { t.matrices.pop_back(); }), "a block 2 that cannot be"));
    CHECK(says(with([](auto & t) { t.matrices.push_back(t.matrices[0]); }), "contradict its GGUF header"));
    CHECK(says(with([](auto & t) { t.head.gguf_bytes += 1; }), "contradict its GGUF header"));
}

TEST(layers_that_cannot_be_are_refused_though_their_checksums_are_right) {
    const Packed packed;
    const jns::Tables good = tables_of(packed);
    const auto with = [&](auto && change) {
        jns::Tables tables = good;
        change(tables.layers[0], tables.matrices[1]);
        return refusal_with(packed, tables);
    };
    const std::string told = "a block 1 that cannot be";
    CHECK(says(with([](auto & l, auto &) { l.number = 2; }), "a block 2 that cannot be"));
    CHECK(says(with([](auto & l, auto &) { l.experts = 0; }), told));
    CHECK(says(with([](auto & l, auto &) { l.experts = 4; }), told));
    CHECK(says(with([](auto & l, auto &) { l.experts = UINT32_MAX; }), told));
    CHECK(says(with([](auto & l, auto &) { l.matrices = 0; }), told));
    CHECK(says(with([](auto & l, auto &) { l.matrices = 100; }), told));
    CHECK(says(with([](auto & l, auto &) { l.slots_at += 64; }), told));
    CHECK(says(with([](auto & l, auto &) { l.slots_at = 4096; }), told));
    CHECK(says(with([](auto & l, auto &) { l.slots_at = uint64_t{1} << 63; }), told));
    CHECK(says(with([](auto & l, auto &) { l.slot_bytes -= 4096; }), told));
    CHECK(says(with([](auto & l, auto &) { l.slot_bytes = uint64_t{1} << 62; }), told));
    CHECK(says(with([](auto &, auto & m) { m.tensor = UINT32_MAX; }), told));
    CHECK(says(with([](auto &, auto & m) { m.tensor = 0; }), told));
    CHECK(says(with([](auto &, auto & m) { m.tensor = 4; }), told));  // the gate, a second time
    CHECK(says(with([](auto &, auto & m) { m.start += 1; }), told));
    CHECK(says(with([](auto &, auto & m) { m.start = 0; }), told));
    CHECK(says(with([](auto &, auto & m) { m.start = UINT64_MAX - 63; }), told));
    CHECK(says(with([](auto &, auto & m) { m.bytes += 1; }), told));
}

TEST(the_description_tells_a_container_from_a_gguf_and_the_rest_alike) {
    const Packed packed;
    const auto describe = [](const std::string & path) {
        char json[20000], error[500] = "";
        if (es_describe(path.c_str(), json, sizeof json, error, sizeof error) != 0) throw std::runtime_error(error);
        return std::string(json);
    };
    const std::string jns = describe(packed.jns), gguf = describe(packed.gguf);
    CHECK(says(jns,
               "{\"container\": true, \"architecture\": \"tiny\", \"name\": \"Tiny \\\"MoE\\\"\", \"experts\": 5, "
               "\"used\": 2, \"layers\": 2,"));
    CHECK(says(gguf, "{\"container\": false, \"architecture\": \"tiny\""));
    const std::string bytes =
        "\"context_length\": 512, \"embedding_length\": 0, \"expert_bytes\": 99960, \"dense_bytes\": ";
    CHECK(says(jns, bytes));
    CHECK(says(gguf, bytes));
    CHECK(says(jns,
               "\"matrices\": [{\"name\": \"blk.1.ffn_gate_exps.weight\", \"type\": \"Q8_0\", \"cols\": 64, \"rows\": "
               "49, \"bytes\": 3332}, "));
    char json[100], error[500] = "";
    CHECK_EQ(es_describe(packed.jns.c_str(), json, sizeof json, error, sizeof error), 1);
    CHECK(says(error, "bytes for its description"));
}

TEST(a_name_that_is_no_utf_8_still_makes_json) {
    const Folder folder;
    TinyGguf model = tiny_moe();
    model.keys[1] = TinyGguf::text_key("general.name", "\xc3\xa4 \xff\x01\xed\xa0\x80 \xe2\x82");
    write_file(folder / "m.gguf", model.bytes());
    char json[20000], error[500] = "";
    CHECK_EQ(es_describe((folder / "m.gguf").c_str(), json, sizeof json, error, sizeof error), 0);
    CHECK(says(json, "\"name\": \"\xc3\xa4 \\ufffd\\u0001\\ufffd\\ufffd\\ufffd \\ufffd\\ufffd\""));
}

TEST(tensors_of_experts_that_stay_with_llama_cpp_are_named) {
    const Folder folder;
    TinyGguf model = tiny_moe();
    model.tensors.push_back(q8_0("blk.2.ffn_down_chexps.weight", {32, 2, 2}));
    write_file(folder / "m.gguf", model.bytes());
    char json[20000], error[500] = "";
    CHECK_EQ(es_describe((folder / "m.gguf").c_str(), json, sizeof json, error, sizeof error), 0);
    CHECK(says(json, "\"left_out\": [\"blk.2.ffn_down_chexps.weight\"]"));
}
