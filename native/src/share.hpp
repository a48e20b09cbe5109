// How the workers of several models divide one memory: what each one says of itself in a mapped file, and the division.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace expertstream {

struct Claim {
    uint64_t least = 0, wanted = 0;  // of its budget
    uint64_t resident = 0;           // what it holds of it
    uint64_t weight = 1;             // those that are in use weigh more
};

// What each one gets of `total`: its least first, then the rest max-min fair by weight: nobody gets more than he wants
// while another could use it. Pure. Together they get no more than `total`, except where their leasts alone are more.
std::vector<uint64_t> divide(uint64_t total, const std::vector<Claim> & claims);

// A process's entry in the file, and its view of the others. One thread.
class Share {
  public:
    // The file is made if it is not there. nullptr and why: it cannot be mapped, it is not one of ours, every entry is
    // taken.
    static std::unique_ptr<Share> open(const std::string & path, std::string & error);
    ~Share();

    void publish(const Claim & mine);

    // Of all processes that live, mine first. Entries of dead ones are dropped.
    std::vector<Claim> claims();

  private:
    struct File;
    Share() = default;
    bool take_entry();

    File * file_ = nullptr;
    uint64_t key_ = 0;
    size_t entry_ = 0;
    Claim mine_;
};

// Who a process is: its number, and when it started, since numbers come again. 0: there is no such process (any more).
uint64_t key_of(uint64_t pid);

}  // namespace expertstream
