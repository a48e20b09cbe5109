// Files and folders for tests, in the system's folder for such, gone at the end.
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

// What mkstemp and mkdtemp want: they write a name of their own over the six letters at its end.
inline std::string temporary_template() {
    return (std::filesystem::temp_directory_path() / "expertstream-test-XXXXXX").string();
}

struct Folder {
    std::string path = temporary_template();

    Folder() {
        if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no temporary folder");
    }
    ~Folder() { std::filesystem::remove_all(path); }
    Folder(const Folder &) = delete;
    Folder & operator=(const Folder &) = delete;

    std::string operator/(const std::string & name) const { return path + "/" + name; }
};
