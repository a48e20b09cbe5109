#include "team.hpp"

#include <dlfcn.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace expertstream {
namespace {

constexpr int kSpins = 4000;  // some 50 us; then others may need the core more

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The functions of the OpenMP that the host has loaded (GCC's interface, which LLVM's library offers too).
struct OpenMp {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned) = nullptr;
    int (*thread)() = nullptr;
    int (*threads)() = nullptr;

    static const OpenMp & host() {
        static const OpenMp found = [] {
            OpenMp openmp;
            openmp.parallel = reinterpret_cast<decltype(parallel)>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
            openmp.thread = reinterpret_cast<decltype(thread)>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
            openmp.threads = reinterpret_cast<decltype(threads)>(dlsym(RTLD_DEFAULT, "omp_get_num_threads"));
            return openmp;
        }();
        return found;
    }
    bool there() const { return parallel != nullptr && thread != nullptr && threads != nullptr; }
};

struct Errand {
    const std::function<void(Member &)> & work;
    std::atomic<uint32_t> arrived{0};
};

void as_member_of_openmp(void * data) {
    auto & errand = *static_cast<Errand *>(data);
    const OpenMp & openmp = OpenMp::host();
    Member member(static_cast<unsigned>(openmp.thread()), static_cast<unsigned>(openmp.threads()), errand.arrived);
    errand.work(member);
}

// Threads of our own, which sleep between two errands. One errand at a time.
class Pool {
  public:
    static Pool & own() {
        static Pool pool;
        return pool;
    }

    void run(unsigned threads, const std::function<void(Member &)> & work) {
        Errand errand{work};
        {
            std::lock_guard<std::mutex> lock(mutex_);
            while (threads_.size() + 1 < threads) start(static_cast<unsigned>(threads_.size()) + 1);
            errand_ = &errand;
            wanted_ = threads;
            busy_ = threads - 1;
            ++round_;
        }
        wake_.notify_all();
        Member member(0, threads, errand.arrived);
        work(member);
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [&] { return busy_ == 0; });
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            closed_ = true;
        }
        wake_.notify_all();
        for (std::thread & thread : threads_) thread.join();
    }

  private:
    void start(unsigned index) {
        threads_.emplace_back([this, index, seen = round_]() mutable { live(index, seen); });
    }

    void live(unsigned index, uint64_t seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            wake_.wait(lock, [&] { return closed_ || round_ != seen; });
            if (closed_) return;
            seen = round_;
            if (index >= wanted_) continue;
            Errand & errand = *errand_;
            lock.unlock();
            Member member(index, wanted_, errand.arrived);
            errand.work(member);
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
    Errand * errand_ = nullptr;
    unsigned wanted_ = 0, busy_ = 0;
    uint64_t round_ = 0;
    bool closed_ = false;
};

}  // namespace

void Member::meet() {
    if (count_ == 1) return;
    const uint32_t all = ++met_ * count_;
    arrived_.fetch_add(1, std::memory_order_acq_rel);
    for (int spins = 0; arrived_.load(std::memory_order_acquire) < all; ++spins) {
        if (spins < kSpins)
            relax();
        else
            std::this_thread::yield();
    }
}

void run_together(unsigned threads, const std::function<void(Member &)> & work) {
    if (threads <= 1) {
        std::atomic<uint32_t> arrived{0};
        Member alone(0, 1, arrived);
        work(alone);
    } else if (const OpenMp & openmp = OpenMp::host(); openmp.there()) {
        Errand errand{work};
        openmp.parallel(as_member_of_openmp, &errand, threads, 0);
    } else {
        Pool::own().run(threads, work);
    }
}

}  // namespace expertstream
