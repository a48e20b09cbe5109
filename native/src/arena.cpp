// Owns the slots and the address space in which they lie, one region per size of slot, and decides which expert leaves.
#include "arena.hpp"

#include <algorithm>
#include <set>

#include "region.hpp"
#include "worth.hpp"

namespace expertstream {
namespace {

constexpr uint64_t kLarge = 1024 * 1024;   // slots from here on: huge pages (first touch 4 times faster, reads a tenth)
constexpr uint32_t kSpare = 256;           // slots of a size beyond one per expert: quarantined ones keep their place
constexpr unsigned kEvictionsAtOnce = 16;  // so that giving back gigabytes never holds up a token

struct Node;

struct Links {
    Node * older = nullptr;
    Node * newer = nullptr;
};

// Every slot that nobody has pinned is in the list of its layer, ordered by last use, and among those of its size, ordered by
// the moment as of which it counts as used.
struct Node : Slot {
    uint32_t size = 0;       // position in State::sizes
    bool forgotten = false;  // no longer in the table: freed with its last pin
    double moment = 0;       // of the clock: not before the last use
    Links links;
};

struct Sooner {
    bool operator()(const Node * a, const Node * b) const {
        return a->moment != b->moment ? a->moment < b->moment : a->used < b->used;
    }
};

using ByMoment = std::set<Node *, Sooner>;

struct List {
    Node * oldest = nullptr;
    Node * newest = nullptr;

    void push(Node * node) {
        node->links = {newest, nullptr};
        (newest ? newest->links.newer : oldest) = node;
        newest = node;
    }
    void remove(Node * node) {
        const Links & at = node->links;
        (at.older ? at.older->links.newer : oldest) = at.newer;
        (at.newer ? at.newer->links.older : newest) = at.older;
        node->links = {};
    }
};

// While a read may still write into the slot. A load that failed because the drive stalled is settled, yet not quiet.
bool in_flight(const Slot & slot) {
    return slot.load.state.load(std::memory_order_acquire) == Load::waiting ||
           slot.load.left.load(std::memory_order_acquire) != 0;
}

Node * oldest_at_rest(const List & list) {
    Node * node = list.oldest;
    while (node && in_flight(*node)) {
        node = node->links.newer;
    }
    return node;
}

Node * newest_at_rest(const List & list) {
    Node * node = list.newest;
    while (node && in_flight(*node)) {
        node = node->links.older;
    }
    return node;
}

Node * first_at_rest(const ByMoment & nodes) {
    const auto found = std::find_if(nodes.begin(), nodes.end(), [](const Node * node) { return !in_flight(*node); });
    return found == nodes.end() ? nullptr : *found;
}

// All slots of one size. Those in `free` have no memory behind them.
struct Size {
    uint64_t slot_bytes = 0;
    uint32_t capacity = 0;
    std::unique_ptr<Region> region;
    std::unique_ptr<Node[]> nodes;
    std::vector<Node *> free;
    uint32_t fresh = 0;  // nodes from here on were never used; taken in order, so that the region fills from its start
    ByMoment at_rest;

    Node * take() {
        if (!free.empty()) {
            Node * node = free.back();
            free.pop_back();
            return node;
        }
        return fresh < capacity ? &nodes[fresh++] : nullptr;
    }
};

}  // namespace

struct Arena::State {
    explicit State(const Index & of) : index(of), worth(of) {}

    const Index & index;
    Worth worth;
    mutable std::mutex mutex;
    std::vector<Size> sizes;
    std::vector<uint32_t> size_of;           // [layer]
    std::vector<std::vector<Node *>> table;  // [layer][expert]
    std::vector<List> of_layer;
    std::vector<Node *> quarantine;  // forgotten, but a read may still write into them
    uint64_t clock = 0, budget = 0, resident = 0, evictions = 0;
    uint64_t pass_began = 0, pass_took = 0;  // of the clock; how long decoding one token took last
    Order pass_order = Order::sweep;         // of the pass under way
    uint32_t in_use = 0;

    void lay_out(bool huge_pages);
    void pin(Node * node);
    void link(Node * node);
    void sort();
    void begin_pass(Order order);
    void unlink(Node * node);
    void forget(Node * node);
    void release(Node * node);
    void give_back(const Node * node) const;  // needs no lock while the slot is nobody's
    void put_back(Node * node);
    void free_quarantined();
    Node * first_to_leave() const;
    Node * recent_victim(const Size & wanted) const;
    Node * sweep_victim(uint32_t layer) const;
    void evict(Node * node);
    std::vector<Node *> leave(unsigned count);
    Node * make_room(uint32_t layer, Order order);
    void fill_in(Node * node, uint32_t layer, uint32_t expert);
    void unpin(Node * node);
};

void Arena::State::lay_out(bool huge_pages) {
    for (const Layer & layer : index.layers) {
        auto size = std::find_if(sizes.begin(), sizes.end(),
                                 [&](const Size & other) { return other.slot_bytes == layer.slot_bytes; });
        if (size == sizes.end()) {
            size = sizes.emplace(sizes.end());
            size->slot_bytes = layer.slot_bytes;
            size->capacity = kSpare;
        }
        size->capacity += layer.experts;
        size_of.push_back(static_cast<uint32_t>(size - sizes.begin()));
        table.emplace_back(layer.experts, nullptr);
        of_layer.push_back({});
    }
    for (Size & size : sizes) {
        size.region =
            std::make_unique<Region>(size.capacity * size.slot_bytes, huge_pages && size.slot_bytes >= kLarge);
        size.nodes = std::make_unique<Node[]>(size.capacity);
        size.free.reserve(size.capacity);
        for (uint32_t i = 0; i < size.capacity; ++i) {
            size.nodes[i].size = static_cast<uint32_t>(&size - sizes.data());
            size.nodes[i].data = size.region->data() + i * size.slot_bytes;
        }
    }
}

void Arena::State::unlink(Node * node) {
    of_layer[node->layer].remove(node);
    sizes[node->size].at_rest.erase(node);
}

void Arena::State::link(Node * node) {
    node->moment =
        static_cast<double>(node->used) + worth.credit(node->layer, node->expert) * static_cast<double>(pass_took);
    of_layer[node->layer].push(node);
    sizes[node->size].at_rest.insert(node);
}

// A long prompt ticks for every expert: how long that took is no measure for tokens.
void Arena::State::begin_pass(Order order) {
    if (pass_order == Order::recent) {
        pass_took = clock - pass_began;
    }
    pass_began = clock;
    pass_order = order;
}

// After the rule has changed.
void Arena::State::sort() {
    for (List & list : of_layer) {
        List old = list;
        list = {};
        while (Node * node = old.oldest) {
            old.remove(node);
            sizes[node->size].at_rest.erase(node);
            link(node);
        }
    }
}

void Arena::State::pin(Node * node) {
    if (node->pins++ == 0) {
        unlink(node);
    }
    node->used = ++clock;
}

// After this the expert can be claimed anew, though the slot may stay pinned for a while.
void Arena::State::forget(Node * node) {
    if (!node->forgotten) {
        node->forgotten = true;
        table[node->layer][node->expert] = nullptr;
    }
}

// Of a forgotten slot that is in no list and that nobody has pinned.
void Arena::State::release(Node * node) {
    if (in_flight(*node)) {
        quarantine.push_back(node);
        return;
    }
    give_back(node);
    put_back(node);
}

void Arena::State::give_back(const Node * node) const {
    sizes[node->size].region->give_back(node->data, sizes[node->size].slot_bytes);
}

void Arena::State::put_back(Node * node) {
    sizes[node->size].free.push_back(node);
    resident -= sizes[node->size].slot_bytes;
    --in_use;
}

void Arena::State::free_quarantined() {
    for (size_t i = quarantine.size(); i-- > 0;) {
        Node * node = quarantine[i];
        if (!in_flight(*node)) {
            quarantine.erase(quarantine.begin() + static_cast<std::ptrdiff_t>(i));
            release(node);
        }
    }
}

// Of all sizes.
Node * Arena::State::first_to_leave() const {
    Node * first = nullptr;
    for (const Size & size : sizes) {
        Node * node = first_at_rest(size.at_rest);
        if (node && (!first || Sooner()(node, first))) {
            first = node;
        }
    }
    return first;
}

// The first of all; but one of the wanted size if that one is nearly as old: within a quarter of the age, or of the time
// after which a use counts half where uses count. New memory for another size costs milliseconds of page faults, more
// than the read itself, and over time the first of every size are equally old.
Node * Arena::State::recent_victim(const Size & wanted) const {
    Node * first = first_to_leave();
    Node * fitting = first_at_rest(wanted.at_rest);
    if (!fitting) {
        return first;
    }
    const double scale =
        worth.often() ? Worth::kHalfLife * static_cast<double>(pass_took) : static_cast<double>(clock) - first->moment;
    return fitting->moment - first->moment <= scale / 4 ? fitting : first;
}

// The layer before this one is needed last of all, the next one soonest; in the half that is needed later, a slot of
// the wanted size comes first, for the same reason. If there is nothing but this layer, what was used last goes first:
// it has had its turn in this pass, while what was used in an earlier pass may still be wanted in this.
Node * Arena::State::sweep_victim(uint32_t layer) const {
    const size_t layers = of_layer.size();
    Node * latest = nullptr;
    for (size_t back = 1; back < layers && (!latest || back <= layers / 2); ++back) {
        const size_t candidate = (layer + layers - back) % layers;
        const bool fits = size_of[candidate] == size_of[layer];
        Node * node = !latest || fits ? oldest_at_rest(of_layer[candidate]) : nullptr;
        if (node && fits) {
            return node;
        }
        latest = latest ? latest : node;
    }
    return latest ? latest : newest_at_rest(of_layer[layer]);
}

// The slot stays in use, though it is nobody's: the caller hands it on or releases it.
void Arena::State::evict(Node * node) {
    unlink(node);
    forget(node);
    ++evictions;
}

// At most `count` slots out of what is over the budget; for the caller to give back their pages and then put them back.
std::vector<Node *> Arena::State::leave(unsigned count) {
    std::vector<Node *> leaving;
    uint64_t bytes = resident;
    while (leaving.size() < count && bytes > budget) {
        Node * node = first_to_leave();
        if (!node) {
            break;
        }
        evict(node);
        bytes -= sizes[node->size].slot_bytes;
        leaving.push_back(node);
    }
    return leaving;
}

// A slot that is in use, but nobody's. Where an expert of the same size leaves, its memory is handed on as it is.
Node * Arena::State::make_room(uint32_t layer, Order order) {
    Size & size = sizes[size_of[layer]];
    if (size.slot_bytes > budget) {
        return nullptr;
    }
    while (resident + size.slot_bytes > budget) {
        Node * node = order == Order::recent ? recent_victim(size) : sweep_victim(layer);
        if (!node) {
            return nullptr;
        }
        evict(node);
        if (node->size == size_of[layer] && resident <= budget) {
            return node;
        }
        release(node);
    }
    Node * node = size.take();
    if (node) {
        resident += size.slot_bytes;
        ++in_use;
    }
    return node;
}

void Arena::State::fill_in(Node * node, uint32_t layer, uint32_t expert) {
    const Index::Places & places = index.places[layer];
    node->layer = layer;
    node->expert = expert;
    node->forgotten = false;
    node->pins = 1;
    node->used = ++clock;
    Load & load = node->load;
    load.pieces = places.pieces.data() + static_cast<size_t>(expert) * places.pieces_each;
    load.count = places.pieces_each;
    load.slot = node->data;
    load.checked = index.checked;
    load.crc = index.checked ? places.crcs[expert] : 0;
    load.error.clear();
    load.left.store(0, std::memory_order_relaxed);
    load.state.store(Load::idle, std::memory_order_release);
    table[layer][expert] = node;
}

void Arena::State::unpin(Node * node) {
    if (--node->pins > 0) {
        return;
    }
    const uint32_t state = node->load.state.load(std::memory_order_acquire);
    if (node->forgotten || state == Load::idle || state == Load::failed) {
        forget(node);
        release(node);
    } else {
        node->used = ++clock;
        link(node);
    }
    for (Node * leaving : leave(kEvictionsAtOnce)) {
        release(leaving);
    }
}

Arena::Arena(const Index & index, bool huge_pages) : state_(std::make_unique<State>(index)) {
    state_->lay_out(huge_pages);
}

Arena::~Arena() = default;

uint64_t Arena::least(const Index & index, uint32_t used) {
    uint64_t bytes = 0;
    for (const Layer & layer : index.layers) {
        bytes = std::max(bytes, layer.slot_bytes * std::min<uint64_t>(2ULL * used, layer.experts));
    }
    return bytes;
}

Slot * Arena::find(uint32_t layer, uint32_t expert) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    Node * node = state_->table[layer][expert];
    if (!node) {
        return nullptr;
    }
    if (node->load.state.load(std::memory_order_acquire) != Load::failed) {
        state_->pin(node);
        return node;
    }
    if (node->pins == 0) {
        state_->unlink(node);
        state_->forget(node);
        state_->release(node);
    }
    return nullptr;
}

void Arena::asked(uint32_t layer, const std::vector<uint32_t> & experts, Order order) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    Worth & worth = state_->worth;
    const uint64_t pass = worth.pass();
    const bool often = worth.often();
    worth.asked(layer, experts, order == Order::recent ? state_->budget : 0);
    if (worth.pass() != pass) {
        state_->begin_pass(order);
    }
    if (worth.often() != often) {
        state_->sort();
    }
}

Slot * Arena::claim(uint32_t layer, uint32_t expert, Order order) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->free_quarantined();
    if (Node * node = state_->table[layer][expert]) {
        if (node->load.state.load(std::memory_order_acquire) != Load::failed) {
            return nullptr;
        }
        state_->forget(node);
        if (node->pins == 0) {
            state_->unlink(node);
            state_->release(node);
        }
    }
    Node * node = state_->make_room(layer, order);
    if (node) {
        state_->fill_in(node, layer, expert);
    }
    return node;
}

void Arena::unpin(Slot * slot) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->unpin(static_cast<Node *>(slot));
}

void Arena::discard(Slot * slot) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->forget(static_cast<Node *>(slot));
    state_->unpin(static_cast<Node *>(slot));
}

void Arena::set_budget(uint64_t bytes) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->budget = bytes;
    state_->free_quarantined();
    for (;;) {
        const std::vector<Node *> leaving = state_->leave(kEvictionsAtOnce);
        if (leaving.empty()) {
            return;
        }
        lock.unlock();
        for (const Node * node : leaving) {
            state_->give_back(node);
        }
        lock.lock();
        for (Node * node : leaving) {
            state_->put_back(node);
        }
    }
}

uint64_t Arena::budget() const {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->budget;
}

uint64_t Arena::resident() const {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->resident;
}

uint32_t Arena::slots() const {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->in_use;
}

uint64_t Arena::evictions() const {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->evictions;
}

}  // namespace expertstream
