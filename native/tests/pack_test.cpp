// Packing and unpacking: the same bytes again, resumed where it stopped, and nothing half under the final name.
#include <signal.h>
#include <sys/wait.h>

#include "api.h"
#include "check.hpp"
#include "index.hpp"
#include "tiny_model.hpp"

using namespace expertstream;

namespace {

using Call = int (*)(const char *, const char *, es_progress, void *, char *, size_t);

struct Told {
    uint64_t stop_at = UINT64_MAX, kill_at = UINT64_MAX;
    uint64_t done = 0, total = 0;
    bool backwards = false;
};

int tell(uint64_t done, uint64_t total, void * context) {
    Told & told = *static_cast<Told *>(context);
    told.backwards = told.backwards || done < told.done || done > total || (told.total != 0 && told.total != total);
    told.done = done;
    told.total = total;
    if (done >= told.kill_at) kill(getpid(), SIGKILL);
    return done >= told.stop_at;
}

std::string call(Call what, const std::string & from, const std::string & to, Told * told = nullptr) {
    char error[500] = "";
    return what(from.c_str(), to.c_str(), told == nullptr ? nullptr : tell, told, error, sizeof error) == 0 ? "done"
                                                                                                            : error;
}

// A process of its own, killed when it has come that far.
void killed(Call what, const std::string & from, const std::string & to, uint64_t at) {
    const pid_t child = fork();
    if (child == 0) {
        Told told;
        told.kill_at = at;
        call(what, from, to, &told);
        _exit(1);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

bool says(const std::string & text, const std::string & part) {
    if (text.find(part) != std::string::npos) return true;
    std::fprintf(stderr, "\"%s\" does not say \"%s\"\n", text.c_str(), part.c_str());
    return false;
}

struct Model : Folder {
    std::string gguf = *this / "m.gguf", jns = *this / "m.jns", back = *this / "back.gguf", bytes = tiny_moe().bytes();

    Model() { write_file(gguf, bytes); }

    bool has(const std::string & name) const { return std::filesystem::exists(*this / name); }
    // A byte of an expert in what is written so far.
    void damage(const std::string & path) const {
        std::string part = read_file(path);
        part[part.size() - 20'000] ^= 1;
        write_file(path, part);
    }
};

}  // namespace

TEST(what_was_packed_comes_back_byte_by_byte) {
    const Model model;
    Told told;
    CHECK_EQ(call(es_pack, model.gguf, model.jns, &told), "done");
    CHECK(!told.backwards);
    CHECK_EQ(told.done, told.total);
    Told again;
    CHECK_EQ(call(es_unpack, model.jns, model.back, &again), "done");
    CHECK(!again.backwards);
    CHECK_EQ(again.done, again.total);
    CHECK(read_file(model.back) == model.bytes);
    CHECK(read_file(model.gguf) == model.bytes);
    CHECK(!model.has("m.jns.part") && !model.has("m.jns.part.journal") && !model.has("back.gguf.part"));
}

TEST(bytes_between_and_behind_the_tensors_come_back_too) {
    const Model model;
    std::string bytes = model.bytes;
    for (size_t i = 0; i + 1 < bytes.size(); ++i) {
        if (bytes[i] == 0 && i > 2000) bytes[i] = 'p';  // padding; all data is odd
    }
    bytes += "a tail";
    write_file(model.gguf, bytes);
    CHECK_EQ(call(es_pack, model.gguf, model.jns), "done");
    CHECK_EQ(call(es_unpack, model.jns, model.back), "done");
    CHECK(read_file(model.back) == bytes);
}

TEST(a_split_model_comes_back_as_one_file) {
    const Folder folder;
    const TinyGguf whole = tiny_moe();
    const std::string first = write_split(folder, whole, 3);
    CHECK_EQ(call(es_pack, first, folder / "m.jns"), "done");
    CHECK_EQ(call(es_unpack, folder / "m.jns", folder / "m.gguf"), "done");
    const std::string bytes = read_file(folder / "m.gguf");
    CHECK(bytes.compare(0, whole.header().size(), whole.header()) == 0);
    CHECK_EQ(bytes.size(), whole.bytes().size());
    Index parts, one;
    std::string error;
    CHECK(index_gguf(first, parts, error) && index_gguf(folder / "m.gguf", one, error));
    for (size_t layer = 0; layer < 2; ++layer) {
        for (size_t i = 0; i < one.places[layer].pieces.size(); ++i) {
            const Piece &a = parts.places[layer].pieces[i], &b = one.places[layer].pieces[i];
            CHECK(read_file(parts.files[a.file]).substr(a.offset, a.size) == bytes.substr(b.offset, b.size));
        }
    }
}

TEST(a_packing_that_was_stopped_goes_on_where_it_was) {
    const Model model;
    CHECK_EQ(call(es_pack, model.gguf, model / "whole.jns"), "done");
    Told told;
    told.stop_at = 110'000;  // nearly all is written
    CHECK_EQ(call(es_pack, model.gguf, model.jns, &told), "stopped");
    CHECK(!model.has("m.jns") && model.has("m.jns.part"));
    CHECK_EQ(call(es_pack, model.gguf, model.jns), "done");
    CHECK(read_file(model.jns) == read_file(model / "whole.jns"));
}

TEST(what_was_written_before_is_not_written_again_but_is_checked) {
    const Model model;
    Told told;
    told.stop_at = 110'000;
    CHECK_EQ(call(es_pack, model.gguf, model.jns, &told), "stopped");
    model.damage(model.jns + ".part");
    CHECK(says(call(es_pack, model.gguf, model.jns), "m.jns.part: layer 2, expert 3 is damaged"));
    CHECK(!model.has("m.jns") && !model.has("m.jns.part") && !model.has("m.jns.part.journal"));
    CHECK_EQ(call(es_pack, model.gguf, model.jns), "done");
}

TEST(a_packing_of_another_source_is_not_gone_on_with) {
    const Model model;
    Told told;
    told.stop_at = 110'000;
    CHECK_EQ(call(es_pack, model.gguf, model.jns, &told), "stopped");
    model.damage(model.jns + ".part");
    TinyGguf other = tiny_moe();
    other.seed = 2;
    std::filesystem::remove(model.gguf);
    write_file(model.gguf, other.bytes());
    CHECK_EQ(call(es_pack, model.gguf, model.jns), "done");
    CHECK_EQ(call(es_unpack, model.jns, model.back), "done");
    CHECK(read_file(model.back) == other.bytes());
}

TEST(a_torn_journal_counts_as_far_as_it_is_whole) {
    const Model model;
    Told told;
    told.stop_at = 110'000;
    CHECK_EQ(call(es_pack, model.gguf, model.jns, &told), "stopped");
    std::string journal = read_file(model.jns + ".part.journal");
    journal[journal.size() - 15] ^= 1;  // in the last record but one
    journal.resize(journal.size() - 2);
    write_file(model.jns + ".part.journal", journal);
    CHECK_EQ(call(es_pack, model.gguf, model.jns), "done");
    char error[500] = "";
    CHECK_EQ(es_verify(model.jns.c_str(), nullptr, nullptr, error, sizeof error), 0);
}

TEST(a_killed_packing_leaves_the_source_and_no_half_file_and_can_go_on) {
    const Model model;
    CHECK_EQ(call(es_pack, model.gguf, model / "whole.jns"), "done");
    Told size;
    CHECK_EQ(call(es_pack, model.gguf, model / "size.jns", &size), "done");
    for (uint64_t at = 1; at < size.total; at += size.total / 9) {
        killed(es_pack, model.gguf, model.jns, at);
        CHECK(!model.has("m.jns"));
        CHECK(read_file(model.gguf) == model.bytes);
    }
    CHECK_EQ(call(es_pack, model.gguf, model.jns), "done");
    CHECK(read_file(model.jns) == read_file(model / "whole.jns"));
}

TEST(a_killed_unpacking_leaves_no_half_file_and_can_be_repeated) {
    const Model model;
    CHECK_EQ(call(es_pack, model.gguf, model.jns), "done");
    for (const uint64_t at : {1u, 60'000u, 150'000u, 210'000u}) {
        killed(es_unpack, model.jns, model.back, at);
        CHECK(!model.has("back.gguf"));
    }
    CHECK_EQ(call(es_unpack, model.jns, model.back), "done");
    CHECK(read_file(model.back) == model.bytes);
}

TEST(an_unpacking_that_fails_leaves_nothing) {
    const Model model;
    CHECK_EQ(call(es_pack, model.gguf, model.jns), "done");
    Told told;
    told.stop_at = 50'000;
    CHECK_EQ(call(es_unpack, model.jns, model.back, &told), "stopped");
    CHECK(!model.has("back.gguf") && !model.has("back.gguf.part"));
    model.damage(model.jns);
    CHECK(says(call(es_unpack, model.jns, model.back), model.jns + ": layer 2, expert 3 is damaged"));
    CHECK(!model.has("back.gguf") && !model.has("back.gguf.part"));
}

TEST(nothing_that_is_there_is_overwritten) {
    const Model model;
    CHECK_EQ(call(es_pack, model.gguf, model.gguf), model.gguf + ": is the source itself");
    write_file(model.jns, "mine");
    CHECK_EQ(call(es_pack, model.gguf, model.jns), model.jns + ": is there already; remove it first");
    CHECK_EQ(read_file(model.jns), "mine");
    CHECK_EQ(read_file(model.gguf), model.bytes);
}

TEST(two_packings_of_one_target_do_not_meet) {
    const Model model;
    struct Both {
        const Model * model;
        std::string second;
    } both{&model, ""};
    const auto second = [](uint64_t, uint64_t, void * context) {
        Both & both = *static_cast<Both *>(context);
        if (both.second.empty()) both.second = call(es_pack, both.model->gguf, both.model->jns);
        return 0;
    };
    char error[500] = "";
    CHECK_EQ(es_pack(model.gguf.c_str(), model.jns.c_str(), second, &both, error, sizeof error), 0);
    CHECK_EQ(both.second, model.jns + ".part: is being written by another process");
}

TEST(a_source_that_changes_meanwhile_is_not_packed) {
    const Model model;
    const auto change = [](uint64_t done, uint64_t, void * context) {
        if (done < 50'000) std::filesystem::resize_file(static_cast<const Model *>(context)->gguf, 300'000);
        return 0;
    };
    char error[500] = "";
    CHECK_EQ(es_pack(model.gguf.c_str(), model.jns.c_str(), change, const_cast<Model *>(&model), error, sizeof error),
             1);
    CHECK(says(error, model.gguf + ": changed while it was packed"));
    CHECK(!model.has("m.jns") && !model.has("m.jns.part"));
}

TEST(what_has_no_experts_or_is_packed_already_is_refused) {
    const Model model;
    TinyGguf dense;
    dense.tensors = {f32("a.weight", 3)};
    write_file(model / "dense.gguf", dense.bytes());
    CHECK(says(call(es_pack, model / "dense.gguf", model.jns), "has no experts; there is nothing to pack"));
    CHECK_EQ(call(es_pack, model.gguf, model.jns), "done");
    CHECK_EQ(call(es_pack, model.jns, model / "again.jns"), model.jns + ": is a container already");
    CHECK(says(call(es_unpack, model.gguf, model.back), "is a GGUF, not a container"));
}

TEST(a_container_that_does_not_fit_the_disk_is_refused_before_anything_is_written) {
    const Model model;
    TinyGguf huge;  // in a sparse file
    huge.tensors = {q8_0("blk.0.ffn_down_exps.weight", {1 << 15, 1 << 14, 1 << 14})};
    const std::string header = huge.header();
    write_file(model / "huge.gguf", header);
    std::filesystem::resize_file(model / "huge.gguf", huge.up(header.size()) + huge.tensors[0].bytes);
    Told told;
    told.stop_at = 0;
    const std::string said = call(es_pack, model / "huge.gguf", model.jns, &told);
    if (said == "stopped") return;  // a disk with so much room
    CHECK(says(said, "m.jns.part: needs 9345."));
    CHECK(says(said, " GB of free space, but only "));
    CHECK(!model.has("m.jns.part") && !model.has("m.jns"));
}
