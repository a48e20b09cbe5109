// Opens the files of a model and picks the way to read them.
#include "reader.hpp"

#include <system_error>

#include "probe.hpp"
#include "reader_desk.hpp"

namespace expertstream {

std::unique_ptr<Reader> open_reader(const Index & index, const ReaderOptions & options, const Calls & calls,
                                    std::string & error) {
    std::vector<File> files;
    if (!open_files(index, options.direct, calls, files, error)) return nullptr;
    try {
        if (options.io == Io::uring) {
            if (auto ring = ring_reader(files, options, calls)) return ring;
        }
        return threads_reader(std::move(files), options, calls);
    } catch (const std::system_error & refused) {
        error = std::string("no threads to read with: ") + refused.what();
        return nullptr;
    }
}

std::unique_ptr<Reader> Reader::open(const Index & index, const ReaderOptions & options, std::string & error) {
    ReaderOptions chosen = options;
    if (chosen.io == Io::automatic) chosen.io = faster_io(index, options);
    return open_reader(index, chosen, system_calls(), error);
}

}  // namespace expertstream
