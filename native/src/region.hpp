// Address space without memory behind it: pages come when they are written to, and go back part by part.
#pragma once

#include <cstdint>

namespace expertstream {

class Region {
  public:
    // Throws bad_alloc. `huge`: asks the system for huge pages.
    Region(uint64_t bytes, bool huge);
    Region(const Region &) = delete;
    Region & operator=(const Region &) = delete;
    ~Region();
    uint8_t * data() const { return data_; }  // aligned to a huge page
    // The memory of whole pages of it; they read as zeros afterwards.
    void give_back(uint8_t * from, uint64_t bytes) const;

  private:
    void * map_;
    uint8_t * data_;
    uint64_t bytes_;
    bool huge_;
};

}  // namespace expertstream
