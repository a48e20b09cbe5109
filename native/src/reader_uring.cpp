// Reads through io_uring (Linux 5.6 and later) with bare system calls. Owns the ring and the one thread that serves it.
#include "reader_desk.hpp"

#if defined(__linux__) && defined(__has_include)
#if __has_include(<linux/io_uring.h>)
#define EXPERTSTREAM_RING 1
#endif
#endif

#if defined(EXPERTSTREAM_RING)

#include <linux/io_uring.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace expertstream {
namespace {

// Numbers of the kernel's interface that older headers lack.
constexpr unsigned kSetupDisabled = 1u << 6;       // IORING_SETUP_R_DISABLED, 5.10
constexpr unsigned kSetupSingleIssuer = 1u << 12;  // IORING_SETUP_SINGLE_ISSUER, 6.0
constexpr unsigned kSetupDeferTaskrun = 1u << 13;  // IORING_SETUP_DEFER_TASKRUN, 6.1
constexpr unsigned kRegisterEnable = 12;           // IORING_REGISTER_ENABLE_RINGS
constexpr unsigned kFeatureOfRead = 1u << 3;       // IORING_FEAT_RW_CUR_POS, which came with IORING_OP_READ
constexpr uint64_t kBell = ~uint64_t{0};           // user data of the read that wakes the thread

struct Mapping {
    void * at = MAP_FAILED;
    size_t bytes = 0;

    Mapping() = default;
    Mapping(const Mapping &) = delete;
    Mapping & operator=(const Mapping &) = delete;
    ~Mapping() {
        if (at != MAP_FAILED) munmap(at, bytes);
    }
    bool map(int fd, size_t size, uint64_t what) {
        bytes = size;
        at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(what));
        return at != MAP_FAILED;
    }
    template <class T>
    T * get(uint32_t offset) const {
        return reinterpret_cast<T *>(static_cast<uint8_t *>(at) + offset);
    }
};

// The queues shared with the kernel. One thread uses them.
class Ring {
  public:
    Ring() = default;
    Ring(const Ring &) = delete;
    Ring & operator=(const Ring &) = delete;
    ~Ring() {
        if (fd_ >= 0) ::close(fd_);
    }

    bool open(unsigned entries, const Calls & calls) {
        // The first kind lets completions run in the serving thread only, when it asks for them.
        for (const unsigned flags : {kSetupDisabled | kSetupSingleIssuer | kSetupDeferTaskrun, 0u}) {
            params_ = {};
            params_.flags = flags;
            fd_ = calls.ring_setup(entries, &params_);
            if (fd_ >= 0 || errno != EINVAL) break;
        }
        const unsigned needed = IORING_FEAT_SINGLE_MMAP | kFeatureOfRead;
        return fd_ >= 0 && (params_.features & needed) == needed && map();
    }

    // In the thread that will use it from now on.
    void enable() const {
        if ((params_.flags & kSetupDisabled) != 0) syscall(__NR_io_uring_register, fd_, kRegisterEnable, nullptr, 0);
    }

    void push_read(int fd, void * to, size_t bytes, uint64_t offset, uint64_t data) {
        const unsigned tail = *sq_tail_;  // only we write it
        const unsigned slot = tail & *sq_mask_;
        io_uring_sqe & entry = sqes_.get<io_uring_sqe>(0)[slot];
        entry = {};
        entry.opcode = IORING_OP_READ;
        entry.fd = fd;
        entry.off = offset;
        entry.addr = reinterpret_cast<uintptr_t>(to);
        entry.len = static_cast<uint32_t>(bytes);
        entry.user_data = data;
        sq_array_[slot] = slot;
        __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
        ++unsubmitted_;
    }

    // Hands over what was pushed and waits for at least one completion.
    void enter() {
        const long taken = syscall(__NR_io_uring_enter, fd_, unsubmitted_, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
        if (taken > 0) unsubmitted_ -= static_cast<unsigned>(taken);
    }

    bool pop(io_uring_cqe & completion) {
        const unsigned head = *cq_head_;  // only we write it
        if (head == __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE)) return false;
        completion = cqes_[head & *cq_mask_];
        __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
        return true;
    }

  private:
    bool map() {
        const size_t submissions = params_.sq_off.array + params_.sq_entries * sizeof(unsigned);
        const size_t completions = params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe);
        if (!queues_.map(fd_, std::max(submissions, completions), IORING_OFF_SQ_RING)) return false;
        if (!sqes_.map(fd_, params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES)) return false;
        sq_tail_ = queues_.get<unsigned>(params_.sq_off.tail);
        sq_mask_ = queues_.get<unsigned>(params_.sq_off.ring_mask);
        sq_array_ = queues_.get<unsigned>(params_.sq_off.array);
        cq_head_ = queues_.get<unsigned>(params_.cq_off.head);
        cq_tail_ = queues_.get<unsigned>(params_.cq_off.tail);
        cq_mask_ = queues_.get<unsigned>(params_.cq_off.ring_mask);
        cqes_ = queues_.get<io_uring_cqe>(params_.cq_off.cqes);
        return true;
    }

    int fd_ = -1;
    io_uring_params params_{};
    Mapping queues_, sqes_;
    unsigned * sq_tail_ = nullptr;
    unsigned * sq_mask_ = nullptr;
    unsigned * sq_array_ = nullptr;
    unsigned * cq_head_ = nullptr;
    unsigned * cq_tail_ = nullptr;
    unsigned * cq_mask_ = nullptr;
    io_uring_cqe * cqes_ = nullptr;
    unsigned unsubmitted_ = 0;
};

// A bell that a thread rings to wake the one that waits in the ring. The kernel reads it into `count`.
struct Bell {
    int fd = eventfd(0, EFD_CLOEXEC);
    uint64_t count = 0;

    Bell() = default;
    Bell(const Bell &) = delete;
    Bell & operator=(const Bell &) = delete;
    ~Bell() {
        if (fd >= 0) ::close(fd);
    }
    void ring() const {
        const uint64_t one = 1;
        while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {}
    }
};

struct Device {  // what has to be there before a reader can be
    Bell bell;
    Ring ring;
};

class RingReader final : public Reader {
  public:
    RingReader(std::unique_ptr<Device> device, std::vector<File> files, const ReaderOptions & options,
               const Calls & calls)
        : device_(std::move(device)), desk_(std::move(files), options, calls),
          thread_(quiet_thread([this] { serve(); })) {}

    ~RingReader() override {
        desk_.close();
        device_->bell.ring();
        thread_.join();
    }

    void submit(Load & load, bool urgent) override {
        desk_.add(load, urgent);
        if (asleep_.exchange(false)) device_->bell.ring();
    }
    uint64_t settled() const override { return desk_.settled(); }
    uint64_t wait(uint64_t seen) override { return desk_.wait(seen); }
    ReaderCounters counters() const override { return desk_.counters(); }
    const char * name() const override { return desk_.direct() ? "uring direct" : "uring buffered"; }

  private:
    void serve() {
        device_->ring.enable();
        for (Flight & flight : desk_.flights()) free_.push_back(&flight);
        listen();
        for (;;) {
            fill();
            asleep_ = !free_.empty();
            if (asleep_) fill();  // for what came before whoever brought it could see that we sleep
            if (!listening_ && flying() == 0) return;
            device_->ring.enter();
            asleep_ = false;
            io_uring_cqe completion;
            while (device_->ring.pop(completion)) handle(completion);
        }
    }

    size_t flying() { return desk_.flights().size() - free_.size(); }

    void fill() {
        while (!free_.empty() && desk_.try_next(*free_.back())) {
            Flight & flight = *free_.back();
            free_.pop_back();
            read(flight);
        }
    }

    void read(Flight & flight) {
        flight.fd = flight.part.file->fd();
        const auto number = static_cast<uint64_t>(&flight - desk_.flights().data());
        device_->ring.push_read(flight.fd, flight.to(), flight.bytes(), flight.offset(), number);
    }

    void listen() {
        listening_ = !desk_.closed();
        if (listening_) device_->ring.push_read(device_->bell.fd, &device_->bell.count, sizeof(uint64_t), 0, kBell);
    }

    void handle(const io_uring_cqe & completion) {
        if (completion.user_data == kBell) return listen();
        Flight & flight = desk_.flights()[completion.user_data];
        const ssize_t result = desk_.calls().arrived(flight.fd, flight.to(), flight.bytes(),
                                                     static_cast<off_t>(flight.offset()), completion.res);
        if (!desk_.answer(flight, result)) return read(flight);
        desk_.finish(flight);
        free_.push_back(&flight);
    }

    std::unique_ptr<Device> device_;
    Desk desk_;
    std::vector<Flight *> free_;       // of the serving thread, like the next one
    bool listening_ = false;           // the bell's read is in the ring
    std::atomic<bool> asleep_{false};  // the thread may wait although a flight is free: it has to be woken
    std::thread thread_;
};

}  // namespace

std::unique_ptr<Reader> ring_reader(std::vector<File> & files, const ReaderOptions & options, const Calls & calls) {
    auto device = std::make_unique<Device>();
    const unsigned entries = std::clamp(options.depth, 1u, 256u) + 1;
    if (device->bell.fd < 0 || !device->ring.open(entries, calls)) return nullptr;
    return std::make_unique<RingReader>(std::move(device), std::move(files), options, calls);
}

}  // namespace expertstream

#else

namespace expertstream {

std::unique_ptr<Reader> ring_reader(std::vector<File> &, const ReaderOptions &, const Calls &) { return nullptr; }

}  // namespace expertstream

#endif
