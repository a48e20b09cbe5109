// The experts in memory: slots inside a budget of bytes, found, pinned, claimed, evicted. Owns the memory.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "index.hpp"
#include "reader.hpp"

namespace expertstream {

struct Slot {
    uint32_t layer = 0, expert = 0;  // positions in the index
    uint8_t * data = nullptr;
    Load load;          // `load.state` tells whether the bytes are there
    uint32_t pins = 0;  // guarded by the arena
    uint64_t used = 0;  // clock of last use: when it was last pinned or let go
};

enum class Order {
    recent,  // decoding: evict what was used longest ago, or rarely and long ago, see worth.hpp
    sweep,   // a long prompt goes through the layers in order: evict what is needed latest, seen from the current layer
};

// Thread-safe. A slot that is not pinned and in memory may be evicted by any call that claims or shrinks; one that is
// on its way stays until its load is settled, so a prefetch may be unpinned as soon as it is submitted.
class Arena {
  public:
    // Reserves address space for every expert of `index`, which must outlive it; no memory, and a budget of 0. Throws
    // bad_alloc. `huge_pages`: ask for them where slots are large.
    explicit Arena(const Index & index, bool huge_pages = true);
    ~Arena();

    // Least budget with which a model can run: every expert of one token in the largest layer twice over (`used` of
    // them).
    static uint64_t least(const Index & index, uint32_t used);

    // The experts of a layer that one pass asks for, before it looks for them: how often each is used decides which leave.
    void asked(uint32_t layer, const std::vector<uint32_t> & experts, Order order);

    // The slot of an expert that is in memory or on its way, pinned; nullptr if it is neither, or if its load failed.
    Slot * find(uint32_t layer, uint32_t expert);
    // A slot for an expert that is not in memory, pinned, its load idle and its pieces filled in; evicts for it.
    // nullptr: everything is pinned, or the budget holds no more, or another thread has claimed it since (then find()
    // has it).
    Slot * claim(uint32_t layer, uint32_t expert, Order order);
    // What was claimed but never submitted, and what failed, is forgotten with its last pin.
    void unpin(Slot * slot);
    // Forgets the contents of a pinned slot whose load failed, and unpins it.
    void discard(Slot * slot);

    // Evicts down to it at once, but for what is pinned, which goes when it is unpinned. Evicted memory goes back to
    // the system.
    void set_budget(uint64_t bytes);
    uint64_t budget() const;
    uint64_t resident() const;   // bytes of slots in use, whole
    uint32_t slots() const;      // how many are in use
    uint64_t evictions() const;  // so far

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace expertstream
