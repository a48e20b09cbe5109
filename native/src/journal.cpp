// The diary of a packing: a line of text about what is packed, then records of 12 bytes.
#include "journal.hpp"

#include <cstring>

#include "reader.hpp"

namespace expertstream {

static_assert(sizeof(Journal::Record) == 12);

Journal::Record Journal::record(uint32_t unit, uint32_t crc) {
    Record record{unit, crc, 0};
    record.check = crc32c(0, &record, offsetof(Record, check));
    return record;
}

bool Journal::open(const std::string & path, const std::string & about, bool keep, std::string & error) {
    const std::string text = keep ? disk::read_whole(path) : std::string();
    if (!disk::open_to_write(path, false, file_, error)) return false;
    end_ = about.size();
    if (text.compare(0, about.size(), about) != 0) {
        return disk::resize(file_, 0, error) && disk::write_at(file_, 0, about.data(), about.size(), error) &&
               disk::sync(file_, error);
    }
    Record next;
    for (; end_ + sizeof next <= text.size(); end_ += sizeof next) {
        std::memcpy(&next, text.data() + end_, sizeof next);
        if (next.check != record(next.unit, next.crc).check) break;
        records_.push_back(next);
    }
    return true;
}

bool Journal::add(const std::vector<Record> & records, std::string & error) {
    const size_t bytes = records.size() * sizeof(Record);
    if (!disk::write_at(file_, end_, records.data(), bytes, error)) return false;
    end_ += bytes;
    return true;
}

}  // namespace expertstream
