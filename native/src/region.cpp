#include "region.hpp"

#include <sys/mman.h>

#include <new>

namespace expertstream {
namespace {

constexpr uint64_t kHugePage = 2 * 1024 * 1024;

}  // namespace

Region::Region(uint64_t bytes, bool huge)
    : map_(
          mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
      bytes_(bytes + kHugePage), huge_(huge) {
    if (map_ == MAP_FAILED) throw std::bad_alloc();
    const uintptr_t begin = reinterpret_cast<uintptr_t>(map_);
    data_ = static_cast<uint8_t *>(map_) + (kHugePage - begin % kHugePage) % kHugePage;
#ifdef __linux__
    // Advice: what the kernel does not know, it may ignore. Without THP a 4 KiB page is as right; a fork during a direct read
    // into private memory would tear it (open(2), O_DIRECT), and nobody wants the weights in a core dump.
    (void) madvise(map_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    (void) madvise(map_, bytes_, MADV_DONTFORK);
    (void) madvise(map_, bytes_, MADV_DONTDUMP);
#endif
}

Region::~Region() { munmap(map_, bytes_); }

// A huge page of which only a part is given back stays whole and charged until the system is short: measured, a fifth came
// back. MADV_FREE of that part splits it first.
void Region::give_back(uint8_t * from, uint64_t bytes) const {
#ifdef __linux__
    if (huge_) (void) madvise(from, bytes, MADV_FREE);
    (void) madvise(from, bytes, MADV_DONTNEED);
#else
    (void) madvise(from, bytes, MADV_FREE);
#endif
}

}  // namespace expertstream
