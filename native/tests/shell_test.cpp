// The shell of a model: all but the experts, made once, never over the model.
#include <sys/stat.h>

#include "api.h"
#include "check.hpp"
#include "index.hpp"
#include "tiny_model.hpp"

using namespace expertstream;

namespace {

std::string shell(const std::string & model, const std::string & target) {
    char error[500] = "";
    return es_shell(model.c_str(), target.c_str(), error, sizeof error) == 0 ? "made" : error;
}

ino_t inode(const std::string & path) {
    struct stat status;
    return stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

// The file with zeros where the index says that experts are.
std::string without_experts(const std::string & path) {
    Index index;
    std::string error, bytes = read_file(path);
    CHECK(index_gguf(path, index, error));
    for (const Index::Places & places : index.places) {
        for (const Piece & piece : places.pieces) bytes.replace(piece.offset, piece.size, piece.size, '\0');
    }
    return bytes;
}

// Experts large enough that holes show in the blocks a file takes.
TinyGguf roomy() {
    TinyGguf model = tiny_moe();
    model.tensors.push_back(q8_0("blk.3.ffn_down_exps.weight", {1024, 256, 16}));
    model.tensors.push_back(f32("last.weight", 3));
    return model;
}

}  // namespace

TEST(a_shell_is_the_model_with_holes_for_experts) {
    const Folder folder;
    write_file(folder / "m.gguf", roomy().bytes());
    CHECK_EQ(shell(folder / "m.gguf", folder / "shell.gguf"), "made");
    CHECK(read_file(folder / "shell.gguf") == without_experts(folder / "m.gguf"));
    struct stat whole, shell;
    CHECK(stat((folder / "m.gguf").c_str(), &whole) == 0 && stat((folder / "shell.gguf").c_str(), &shell) == 0);
    CHECK_EQ(shell.st_size, whole.st_size);
    CHECK(shell.st_blocks * 512 < 200'000);
    CHECK(!std::filesystem::exists(folder / "shell.gguf.part"));
}

TEST(a_shell_that_is_current_is_left_alone) {
    const Folder folder;
    write_file(folder / "m.gguf", roomy().bytes());
    CHECK_EQ(shell(folder / "m.gguf", folder / "shell.gguf"), "made");
    const ino_t first = inode(folder / "shell.gguf");
    CHECK_EQ(shell(folder / "m.gguf", folder / "shell.gguf"), "made");
    CHECK_EQ(inode(folder / "shell.gguf"), first);
}

TEST(a_shell_of_a_model_that_changed_is_made_anew) {
    const Folder folder;
    TinyGguf model = roomy();
    write_file(folder / "m.gguf", model.bytes());
    CHECK_EQ(shell(folder / "m.gguf", folder / "shell.gguf"), "made");
    model.seed = 2;
    write_file(folder / "new.gguf", model.bytes());
    std::filesystem::rename(folder / "new.gguf", folder / "m.gguf");
    CHECK_EQ(shell(folder / "m.gguf", folder / "shell.gguf"), "made");
    CHECK(read_file(folder / "shell.gguf") == without_experts(folder / "m.gguf"));
}

TEST(a_shell_that_was_damaged_or_lost_its_record_is_made_anew) {
    const Folder folder;
    write_file(folder / "m.gguf", roomy().bytes());
    CHECK_EQ(shell(folder / "m.gguf", folder / "shell.gguf"), "made");
    write_file(folder / "shell.gguf", "short");
    CHECK_EQ(shell(folder / "m.gguf", folder / "shell.gguf"), "made");
    CHECK(read_file(folder / "shell.gguf") == without_experts(folder / "m.gguf"));
    std::filesystem::remove(folder / "shell.gguf.source");
    CHECK_EQ(shell(folder / "m.gguf", folder / "shell.gguf"), "made");
    CHECK(std::filesystem::exists(folder / "shell.gguf.source"));
}

TEST(what_a_killed_process_left_is_not_taken_for_a_shell) {
    const Folder folder;
    write_file(folder / "m.gguf", roomy().bytes());
    write_file(folder / "shell.gguf.part", std::string(100'000, 'x'));
    CHECK_EQ(shell(folder / "m.gguf", folder / "shell.gguf"), "made");
    CHECK(read_file(folder / "shell.gguf") == without_experts(folder / "m.gguf"));
}

TEST(the_shell_of_a_split_model_is_one_file_with_all_dense_tensors) {
    const Folder folder;
    const TinyGguf whole = tiny_moe();
    const std::string first = write_split(folder, whole, 3);
    CHECK_EQ(shell(first, folder / "shell.gguf"), "made");
    const std::string bytes = read_file(folder / "shell.gguf");
    CHECK(bytes.compare(0, whole.header().size(), whole.header()) == 0);  // as if it had never been split
    Index parts, one;
    std::string error;
    CHECK(index_gguf(first, parts, error) && index_gguf(folder / "shell.gguf", one, error));
    CHECK_EQ(one.files.size(), 1u);
    CHECK_EQ(one.layers.size(), parts.layers.size());
    // The last tensor is the last of the last part.
    const std::string last = read_file(folder / "tiny-00003-of-00003.gguf");
    CHECK(bytes.substr(bytes.size() - 32) == last.substr(last.size() - 32));
    for (const Piece & piece : one.places[1].pieces)
        CHECK(bytes.substr(piece.offset, piece.size) == std::string(piece.size, '\0'));
}

TEST(a_model_is_never_overwritten_by_its_shell) {
    const Folder folder;
    const std::string bytes = roomy().bytes();
    write_file(folder / "m.gguf", bytes);
    std::filesystem::create_hard_link(folder / "m.gguf", folder / "same.gguf");
    CHECK_EQ(shell(folder / "m.gguf", folder / "same.gguf"), folder / "same.gguf" + ": is the model itself");
    CHECK(read_file(folder / "m.gguf") == bytes);
}

TEST(a_shell_that_cannot_be_made_says_why_and_leaves_nothing) {
    const Folder folder;
    write_file(folder / "m.gguf", "GGUF");
    CHECK(shell(folder / "m.gguf", folder / "shell.gguf").find("ends inside its header") != std::string::npos);
    CHECK(!std::filesystem::exists(folder / "shell.gguf"));
    write_file(folder / "m.gguf", roomy().bytes());
    CHECK(shell(folder / "m.gguf", folder / "no/shell.gguf").find("cannot be written: No such file") !=
          std::string::npos);
    char error[8];
    CHECK_EQ(es_shell("/nowhere", "/nowhere", error, sizeof error), 1);
    CHECK_EQ(error, "/nowher");
}
