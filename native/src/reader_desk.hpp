// Where loads are split into parts, wait for their turn, and are settled; and the watch over reads that never return.
// Both ways to read (threads, ring) take parts from here and bring them back. Private to the reader.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "reader.hpp"
#include "reader_files.hpp"

namespace expertstream {

using Clock = std::chrono::steady_clock;

// Whole pages of one file that belong to a load.
struct Part {
    Load * load = nullptr;
    File * file = nullptr;
    uint64_t begin = 0;   // in the file; a multiple of kPage
    uint64_t needed = 0;  // bytes from `begin` that have to come
    uint64_t bytes = 0;   // the same, in whole pages: the end of the file may come before
    uint8_t * to = nullptr;
};

// A part on its way.
struct Flight {
    Part part;
    int fd = -1;            // of the read that is under way
    uint64_t done = 0;      // bytes that are there; a multiple of kPage while more is to come
    unsigned troubles = 0;  // answers so far that brought nothing
    std::string error;      // why the part did not come
    bool busy = false;      // guarded by the desk, like the next one
    Clock::time_point since;

    // The read to be done next.
    uint64_t offset() const { return part.begin + done; }
    uint64_t bytes() const { return part.bytes - done; }
    uint8_t * to() const { return part.to + done; }
};

class Desk {
  public:
    Desk(std::vector<File> files, const ReaderOptions & options, const Calls & calls);
    ~Desk();  // after close(), when every flight is finished

    void add(Load & load, bool urgent);

    // The next part for a flight that is not busy. next() waits for one, false: the desk is closed. try_next(), false:
    // none is there.
    bool next(Flight & flight);
    bool try_next(Flight & flight);

    // The answer to a read of the flight: bytes, or an error number below zero. True if the flight is over, well or
    // not; else the rest is to be read.
    bool answer(Flight & flight, ssize_t result);
    // Settles the load if this was its last part; the flight is free again.
    void finish(Flight & flight);

    void close();  // fails what still waits; next() answers false from now on
    bool closed() const;

    uint64_t settled() const { return settled_.load(std::memory_order_acquire); }
    uint64_t wait(uint64_t seen);
    ReaderCounters counters() const;
    bool direct() const;  // every file is read past the page cache

    std::vector<Flight> & flights() { return flights_; }
    const Calls & calls() const { return calls_; }

  private:
    void split(Load & load, const Piece & piece, std::deque<Part> & queue);
    bool take(Flight & flight);
    void begin(Flight & flight, const Part & part);
    void part_done(Load & load);
    void settle(Load & load);
    void abandon(Load & load, std::string why);
    void drop_waiting(const std::string & why);
    std::string verify(const Load & load, bool & mismatch) const;
    bool fail(Flight & flight, const std::string & what) const;
    void watch();
    void look_for_stalls();

    const Calls calls_;
    const uint64_t piece_;
    const std::chrono::milliseconds stall_;
    std::vector<File> files_;
    std::vector<Flight> flights_;

    mutable std::mutex mutex_;
    std::condition_variable parts_came_, load_settled_, watch_begins_;
    std::deque<Part> urgent_, other_;
    unsigned takers_ = 0;  // threads in next()
    unsigned in_flight_ = 0;
    bool watchdog_rests_ = false, closed_ = false, ended_ = false;
    Clock::time_point busy_since_;
    ReaderCounters counters_;
    std::atomic<uint64_t> settled_{0};
    std::thread watchdog_;
};

// The two ways to read.
std::unique_ptr<Reader> threads_reader(std::vector<File> files, const ReaderOptions & options, const Calls & calls);
// nullptr where the system has no ring for us; `files` are untouched then.
std::unique_ptr<Reader> ring_reader(std::vector<File> & files, const ReaderOptions & options, const Calls & calls);

// Reader::open() with other calls; Io::automatic means threads here.
std::unique_ptr<Reader> open_reader(const Index & index, const ReaderOptions & options, const Calls & calls,
                                    std::string & error);

// A thread that takes no signals: those are for the program's own threads.
std::thread quiet_thread(std::function<void()> run);

}  // namespace expertstream
