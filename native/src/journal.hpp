// The diary of a packing: which parts of the unfinished file are surely on the drive. Private to the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "disk.hpp"

namespace expertstream {

class Journal {
  public:
    // Opens or begins it. `about` tells what is packed into what: the records of another packing are thrown away.
    bool open(const std::string & path, const std::string & about, bool keep, std::string & error);

    // What was recorded when it was opened.
    struct Record {
        uint32_t unit = 0, crc = 0;
        uint32_t check = 0;  // of the two before, so that a torn record is no record
    };
    const std::vector<Record> & records() const { return records_; }

    bool add(const std::vector<Record> & records, std::string & error);
    static Record record(uint32_t unit, uint32_t crc);

  private:
    disk::File file_;
    uint64_t end_ = 0;
    std::vector<Record> records_;
};

}  // namespace expertstream
