// How fast the drive and the memory are. Short measurements, made with the reader that later does the work.
#pragma once

#include <cstdint>
#include <string>

#include "index.hpp"
#include "reader.hpp"

namespace expertstream {

struct DriveProbe {
    uint64_t piece = 512 * 1024;
    unsigned depth = 8;
    unsigned ms = 100;
    uint64_t seed = 1;  // the same seed reads the same places
};

// Bytes per second of random reads through `reader`, which has `index`'s files open. Below 0, and why, on failure.
double drive_rate(Reader & reader, const Index & index, const DriveProbe & probe, std::string & error);

// Io::uring if the ring is worth it on this model's drive: at least 3 % faster in each of a few short rounds. Else
// Io::threads. Takes about 0.15 s.
Io faster_io(const Index & index, const ReaderOptions & options);

// An index of one file and no layers, for a probe of it.
bool index_for_probe(const std::string & path, Index & index, std::string & error);

// Bytes per second that `threads` threads read from memory, the best pass of about `ms` milliseconds; 0 if there is no
// memory to be had.
double memory_rate(unsigned threads, unsigned ms);

}  // namespace expertstream
