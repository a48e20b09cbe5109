// Owns the file in which workers tell each other what they hold. No locks: an entry belongs to whoever swapped its key
// in, and the key of a process that no longer lives is anybody's to replace, so nothing that dies can hold up the
// others.
#include "share.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace expertstream {
namespace {

constexpr uint64_t kMagic = 0x3130'4853'5854'5244;  // "DRTXSH01" as bytes, little-endian
constexpr size_t kEntries = 64;

// What a process says of itself. Another one may see half of a change: it is a moment's figure and corrects itself.
struct Entry {
    std::atomic<uint64_t> key, least, wanted, resident, weight;
    uint64_t unused[3];
};

uint64_t above_least(const Claim & claim) { return claim.wanted > claim.least ? claim.wanted - claim.least : 0; }

uint64_t weight_of(const Claim & claim) { return std::min<uint64_t>(std::max<uint64_t>(claim.weight, 1), 1000); }

// Who is content first when all get more and more by weight.
std::vector<size_t> by_appetite(const std::vector<Claim> & claims) {
    std::vector<size_t> order(claims.size());
    for (size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return above_least(claims[a]) / weight_of(claims[a]) < above_least(claims[b]) / weight_of(claims[b]);
    });
    return order;
}

}  // namespace

std::vector<uint64_t> divide(uint64_t total, const std::vector<Claim> & claims) {
    std::vector<uint64_t> shares(claims.size());
    uint64_t rest = total, weights = 0;
    for (size_t i = 0; i < claims.size(); ++i) {
        shares[i] = claims[i].least;
        rest -= std::min(rest, claims[i].least);
        weights += weight_of(claims[i]);
    }
    for (const size_t i : by_appetite(claims)) {
        const uint64_t weight = weight_of(claims[i]);
        const uint64_t more = std::min(above_least(claims[i]), rest / std::max(weights, weight) * weight);
        shares[i] += more;
        rest -= more;
        weights -= weight;
    }
    return shares;
}

// pid in the upper 24 bits (at most 2^22), start in clock ticks since boot in the lower 40. Field 22 of proc(5)'s stat,
// counted from behind the name, which may hold anything; field 3 is the state, and a zombie's memory is free.
uint64_t key_of(uint64_t pid) {
#ifdef __linux__
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    size_t at = text.rfind(')');
    if (at == std::string::npos || at + 2 >= text.size() || text[at + 2] == 'Z' || text[at + 2] == 'X') {
        return 0;
    }
    for (int field = 2; field < 22 && at != std::string::npos; ++field) {
        at = text.find(' ', at + 1);
    }
    const uint64_t start = at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
    return pid << 40 | (start & ((1ULL << 40) - 1));
#else
    return kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM ? pid << 40 : 0;
#endif
}

struct Share::File {
    std::atomic<uint64_t> magic;
    uint64_t unused[7];
    Entry entries[kEntries];
};

namespace {

bool lives(uint64_t key) { return key_of(key >> 40) == key; }

void * map_shared(const std::string & path, size_t bytes) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        return MAP_FAILED;
    }
    struct stat status{};
    void * map = MAP_FAILED;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        // Only ever made longer. Others do the same at the same time, which is why nobody writes anything but zeros.
        const bool is_long = static_cast<size_t>(status.st_size) >= bytes || !ftruncate(fd, static_cast<off_t>(bytes));
        map = is_long ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    } else {
        errno = EINVAL;
    }
    const int error = errno;
    close(fd);
    errno = error;
    return map;
}

}  // namespace

std::unique_ptr<Share> Share::open(const std::string & path, std::string & error) {
    std::unique_ptr<Share> share(new Share());
    void * map = map_shared(path, sizeof(File));
    if (map == MAP_FAILED) {
        error = "cannot map the shared budget " + path + ": " + std::strerror(errno);
        return nullptr;
    }
    share->file_ = static_cast<File *>(map);
    uint64_t magic = 0;
    if (!share->file_->magic.compare_exchange_strong(magic, kMagic) && magic != kMagic) {
        error = "the shared budget " + path + " is another kind of file";
        return nullptr;
    }
    share->key_ = key_of(static_cast<uint64_t>(getpid()));
    if (!share->take_entry()) {
        error = "the shared budget " + path + " has no free entry";
        return nullptr;
    }
    return share;
}

Share::~Share() {
    if (file_) {
        uint64_t mine = key_;
        if (key_ != 0) {
            file_->entries[entry_].key.compare_exchange_strong(mine, 0);
        }
        munmap(file_, sizeof(File));
    }
}

bool Share::take_entry() {
    for (size_t i = 0; key_ != 0 && i < kEntries; ++i) {
        uint64_t before = file_->entries[i].key.load();
        if ((before == 0 || !lives(before)) && file_->entries[i].key.compare_exchange_strong(before, key_)) {
            entry_ = i;
            return true;
        }
    }
    return false;
}

void Share::publish(const Claim & mine) {
    mine_ = mine;
    if (file_->entries[entry_].key.load() != key_ && !take_entry()) {
        return;  // somebody took it for dead (another view of /proc); the next time there may be one
    }
    Entry & entry = file_->entries[entry_];
    entry.least = mine.least;
    entry.wanted = mine.wanted;
    entry.resident = mine.resident;
    entry.weight = mine.weight;
}

std::vector<Claim> Share::claims() {
    std::vector<Claim> claims{mine_};
    for (size_t i = 0; i < kEntries; ++i) {
        Entry & entry = file_->entries[i];
        uint64_t key = entry.key.load();
        if (key == 0 || i == entry_) {
            continue;
        }
        if (lives(key)) {
            claims.push_back({entry.least, entry.wanted, entry.resident, entry.weight});
        } else {
            entry.key.compare_exchange_strong(key, 0);
        }
    }
    return claims;
}

}  // namespace expertstream
