// Reads with a pool of threads, each with one read in flight. Owns the threads.
#include <cerrno>
#include <system_error>

#include "reader_desk.hpp"

namespace expertstream {
namespace {

class ThreadsReader final : public Reader {
  public:
    ThreadsReader(std::vector<File> files, const ReaderOptions & options, const Calls & calls)
        : desk_(std::move(files), options, calls) {
        try {
            for (Flight & flight : desk_.flights()) threads_.push_back(quiet_thread([&] { work(flight); }));
        } catch (const std::system_error &) {  // too many threads
            end();
            throw;
        }
    }

    ~ThreadsReader() override { end(); }

    void submit(Load & load, bool urgent) override { desk_.add(load, urgent); }
    uint64_t settled() const override { return desk_.settled(); }
    uint64_t wait(uint64_t seen) override { return desk_.wait(seen); }
    ReaderCounters counters() const override { return desk_.counters(); }
    const char * name() const override { return desk_.direct() ? "threads direct" : "threads buffered"; }

  private:
    void end() {
        desk_.close();
        for (std::thread & thread : threads_) thread.join();
    }

    void work(Flight & flight) {
        while (desk_.next(flight)) {
            while (!desk_.answer(flight, read(flight))) {}
            desk_.finish(flight);
        }
    }

    ssize_t read(Flight & flight) const {
        flight.fd = flight.part.file->fd();
        const ssize_t result =
            desk_.calls().pread(flight.fd, flight.to(), flight.bytes(), static_cast<off_t>(flight.offset()));
        return result < 0 ? -errno : result;
    }

    Desk desk_;
    std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Reader> threads_reader(std::vector<File> files, const ReaderOptions & options, const Calls & calls) {
    return std::make_unique<ThreadsReader>(std::move(files), options, calls);
}

}  // namespace expertstream
