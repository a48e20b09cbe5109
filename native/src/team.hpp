// The threads that calculate. They are the host's: llama.cpp's OpenMP threads where it has them, so that two sets of threads do
// not fight for the same cores; else a set of our own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace expertstream {

// What one of several threads knows while they work on the same thing.
class Member {
  public:
    Member(unsigned index, unsigned count, std::atomic<uint32_t> & arrived)
        : index_(index), count_(count), arrived_(arrived) {}
    unsigned index() const { return index_; }
    unsigned count() const { return count_; }
    // Returns once all have called it as often.
    void meet();

  private:
    unsigned index_, count_;
    uint32_t met_ = 0;
    std::atomic<uint32_t> & arrived_;
};

// Runs `work` on `threads` threads, of which the caller is one, and returns when all have finished.
void run_together(unsigned threads, const std::function<void(Member &)> & work);

// Gives out the numbers below a limit, each once, to whoever asks.
class Counter {
  public:
    void reset() { next_.store(0, std::memory_order_relaxed); }
    uint32_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  private:
    alignas(64) std::atomic<uint32_t> next_{0};
};

}  // namespace expertstream
