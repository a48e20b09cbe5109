#include "moe_op.hpp"

#include <algorithm>
#include <chrono>

#include "wave.hpp"

namespace expertstream {
namespace {

constexpr size_t kMostLoads = 16;        // on their way at once: more would only pin memory
constexpr size_t kMostGroupsOfWave = 8;  // of a long prompt: between two waves, room is made and the next loads begin
constexpr uint32_t kMostPairsOfWave = 4096;

uint64_t now_ns() {
    using namespace std::chrono;
    return static_cast<uint64_t>(duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

// A task that may need every expert of its layer goes through the layers like a long prompt.
Order order_of(const Task & task, const Layer & layer) {
    return uint64_t{task.tokens} * task.slots >= layer.experts ? Order::sweep : Order::recent;
}

// The pairs of the task ordered by expert, and a group for each expert that got any. False: an id is no expert of the layer.
bool group(const Task & task, uint32_t experts, std::vector<Pair> & pairs, std::vector<Group> & groups) {
    std::vector<uint32_t> ends(experts + 1, 0);
    for (uint32_t token = 0; token < task.tokens; ++token)
        for (uint32_t slot = 0; slot < task.slots; ++slot) {
            const int32_t expert = *task.experts.at(slot, token);
            if (expert < 0 || static_cast<uint32_t>(expert) >= experts) return false;
            ++ends[static_cast<uint32_t>(expert) + 1];
        }
    for (uint32_t expert = 0; expert < experts; ++expert) ends[expert + 1] += ends[expert];
    groups.clear();
    for (uint32_t expert = 0; expert < experts; ++expert)
        if (ends[expert + 1] > ends[expert])
            groups.push_back({expert, ends[expert], ends[expert + 1], 0, nullptr, nullptr, nullptr});
    pairs.resize(uint64_t{task.tokens} * task.slots);
    for (uint32_t token = 0; token < task.tokens; ++token)
        for (uint32_t slot = 0; slot < task.slots; ++slot)
            pairs[ends[static_cast<uint32_t>(*task.experts.at(slot, token))]++] = {token, slot};
    return true;
}

}  // namespace

struct MoeOp::State {
    const Index & index;
    Maths maths;
    Arena & arena;
    Reader & reader;
    Stats & stats;
    Lookahead * lookahead;
    std::vector<Slot *> ahead;  // fetched before they were asked for, pinned until the next task has looked
    Scratch scratch;
    std::vector<Pair> pairs;
    std::vector<Group> groups;
    std::vector<uint32_t> asked;
    uint32_t last_layer = ~0u;
    uint64_t pass = 0;
};

namespace {

// While the host calculates what lies between this layer and the next, the drive would be idle: fetch what the next one will
// probably ask for. Only the better half of the guess, which is right far more often: all of it read a third more, to no gain.
// Only for single tokens; a prompt needs nearly every expert anyway.
void fetch_ahead(MoeOp::State & state, const Task & task) {
    const uint32_t next = task.layer + 1;
    if (state.lookahead == nullptr || task.tokens != 1 || task.in.per_slot != 0 || next >= state.index.layers.size())
        return;
    for (uint32_t expert : state.lookahead->guess(next, task.in.at(0, 0), (task.slots + 1) / 2)) {
        if (Slot * slot = state.arena.find(next, expert)) {
            state.arena.unpin(slot);
        } else if ((slot = state.arena.claim(next, expert, Order::recent)) != nullptr) {
            state.reader.submit(slot->load, false);
            state.ahead.push_back(slot);
        }
    }
}

// One task on its way: which experts are in memory, which are coming, which are still to be asked for.
class Run {
  public:
    Run(MoeOp::State & state, const Task & task, unsigned threads)
        : state_(state), task_(task), layer_(state.index.layers[task.layer]), order_(order_of(task, layer_)),
          frame_{task, layer_, state.maths.products[task.layer], state.maths.swiglu, state.pairs, threads} {}

    // `visit`: hits and misses count.
    bool finish(bool visit, std::string & error) {
        look_up(visit);
        release_guesses();
        start_loads();  // what is asked for goes before what is guessed
        if (visit) fetch_ahead(state_, task_);
        while (failure_.empty() && !(missing_.empty() && loading_.empty() && ready_.empty())) {
            if (state_.pass < state_.stats.page().abort_below.load(std::memory_order_relaxed)) {
                failure_ = "the calculation was stopped: nobody waits for it";
                stopped_ = true;
                break;
            }
            settled_ = state_.reader.settled();  // before looking: what settles after it is not waited for
            start_loads();
            take_arrived();
            if (!ready_.empty())
                calculate_ready();
            else if (!loading_.empty())
                wait();
            else if (!state_.ahead.empty())
                give_up_guesses();
            else if (failure_.empty())
                failure_ = "the expert budget of " + std::to_string(state_.arena.budget()) +
                           " bytes has no room for one more expert";
        }
        let_go();
        error = failure_;
        return failure_.empty();
    }

    // Nothing went wrong; somebody wished it to end.
    bool stopped() const { return stopped_; }

  private:
    void look_up(bool visit) {
        uint64_t hits = 0;
        for (Group & group : state_.groups) {
            Slot * slot = state_.arena.find(task_.layer, group.expert);
            if (slot == nullptr) {
                missing_.push_back(group);
                continue;
            }
            attach(group, slot);
            const bool there = slot->load.state.load(std::memory_order_acquire) == Load::ready;
            (there ? ready_ : loading_).push_back(group);
            hits += there ? 1 : 0;
        }
        std::reverse(missing_.begin(), missing_.end());  // taken from the back
        if (!visit) return;
        state_.stats.page().hits.fetch_add(hits, std::memory_order_relaxed);
        state_.stats.page().misses.fetch_add(state_.groups.size() - hits, std::memory_order_relaxed);
        if (task_.layer < kMaxLayers) {
            state_.stats.page().layer_hits[task_.layer].fetch_add(hits, std::memory_order_relaxed);
            state_.stats.page().layer_misses[task_.layer].fetch_add(state_.groups.size() - hits,
                                                                    std::memory_order_relaxed);
        }
    }

    void attach(Group & group, Slot * slot) const {
        const Index::Places & places = state_.index.places[task_.layer];
        group.slot = slot;
        group.weights = slot->data;
        group.starts = places.starts.data() + group.expert * layer_.matrices.size();
    }

    void start_loads() {
        while (!missing_.empty() && loading_.size() < kMostLoads) {
            Group & group = missing_.back();
            Slot * slot = state_.arena.claim(task_.layer, group.expert, order_);
            if (slot == nullptr) return;
            attach(group, slot);
            state_.reader.submit(slot->load, true);
            loading_.push_back(group);
            missing_.pop_back();
        }
    }

    void take_arrived() {
        auto still = std::partition(loading_.begin(), loading_.end(), [](const Group & group) {
            return group.slot->load.state.load(std::memory_order_acquire) == Load::waiting;
        });
        for (auto group = still; group != loading_.end(); ++group) {
            if (group->slot->load.state.load(std::memory_order_acquire) == Load::ready) {
                ready_.push_back(*group);
                continue;
            }
            if (failure_.empty()) failure_ = group->slot->load.error;
            state_.arena.discard(group->slot);
        }
        loading_.erase(still, loading_.end());
    }

    void calculate_ready() {
        const uint64_t start = now_ns();
        size_t count = 0;
        for (uint64_t pairs = 0; count < ready_.size() && count < kMostGroupsOfWave && pairs < kMostPairsOfWave;
             ++count)
            pairs += ready_[ready_.size() - 1 - count].size();
        std::vector<Group> wave(ready_.end() - static_cast<ptrdiff_t>(count), ready_.end());
        ready_.resize(ready_.size() - count);
        calculate(frame_, wave, first_, state_.scratch);
        first_ = false;
        for (Group & group : wave) state_.arena.unpin(group.slot);
        state_.stats.page().compute_ns.fetch_add(now_ns() - start, std::memory_order_relaxed);
    }

    void wait() {
        const uint64_t start = now_ns();
        state_.reader.wait(settled_);
        state_.stats.page().wait_ns.fetch_add(now_ns() - start, std::memory_order_relaxed);
    }

    // They take room that is needed now. What is on its way cannot leave before it has arrived.
    void give_up_guesses() {
        for (Slot * slot : state_.ahead)
            while (slot->load.state.load(std::memory_order_acquire) == Load::waiting) {
                settled_ = state_.reader.settled();
                if (slot->load.state.load(std::memory_order_acquire) == Load::waiting) wait();
            }
        release_guesses();
    }

    void release_guesses() {
        for (Slot * slot : state_.ahead) state_.arena.unpin(slot);
        state_.ahead.clear();
    }

    // After a failure: nothing stays pinned, and what is on its way arrives first.
    void let_go() {
        for (Group & group : ready_) state_.arena.unpin(group.slot);
        ready_.clear();
        while (!loading_.empty()) {
            settled_ = state_.reader.settled();
            take_arrived();
            for (Group & group : ready_) state_.arena.unpin(group.slot);
            ready_.clear();
            if (!loading_.empty()) state_.reader.wait(settled_);
        }
    }

    MoeOp::State & state_;
    const Task & task_;
    const Layer & layer_;
    const Order order_;
    const Frame frame_;
    std::vector<Group> missing_, loading_, ready_;
    uint64_t settled_ = 0;
    bool first_ = true, stopped_ = false;
    std::string failure_;
};

}  // namespace

bool MoeOp::run(const Task & task, unsigned threads, std::string & error) {
    State & state = *state_;
    Page & page = state.stats.page();
    const Layer & layer = state.index.layers[task.layer];
    const bool visit =
        task.down.matrix >= 0 || task.layer != state.last_layer;  // else: another matrix of the same visit
    state.last_layer = task.layer;
    if (visit && task.layer == 0) {
        state.pass = page.passes.fetch_add(1);
        page.tokens.fetch_add(task.tokens);
    }
    if (!group(task, layer.experts, state.pairs, state.groups)) {
        error = "the router of layer " + std::to_string(layer.number) + " chose an expert that the layer does not have";
        state.stats.fail(error);
        return false;
    }
    if (visit) {
        state.asked.clear();
        for (const Group & one : state.groups) state.asked.push_back(one.expert);
        state.stats.trace(task.layer, state.asked.data(), static_cast<uint32_t>(state.asked.size()));
        state.arena.asked(task.layer, state.asked, order_of(task, layer));
    }
    Run run(state, task, threads);
    const bool done = run.finish(visit, error);
    if (!done && !run.stopped()) state.stats.fail(error);
    return done;
}

MoeOp::MoeOp(const Index & index, Maths maths, Arena & arena, Reader & reader, Stats & stats, Lookahead * lookahead)
    : state_(new State{index, std::move(maths), arena, reader, stats, lookahead, {}, {}, {}, {}, {}}) {}

MoeOp::~MoeOp() = default;

}  // namespace expertstream
