// Splits loads into parts, hands them out, judges what came, settles the loads, and watches for reads that hang.
#include "reader_desk.hpp"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>

namespace expertstream {
namespace {

constexpr unsigned kTroubles = 4;  // this many answers without a byte, and a read has failed
constexpr uint64_t kLargestRead = 1u << 30;
constexpr unsigned kDeepest = 256;

uint64_t page_floor(uint64_t value) { return value / kPage * kPage; }
uint64_t page_ceil(uint64_t value) { return page_floor(value + kPage - 1); }

std::string at_byte(const char * before, uint64_t byte, const std::string & after) {
    return before + std::to_string(byte) + after;
}

uint64_t ns_since(Clock::time_point start) {
    return static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - start).count());
}

std::string stall_text(const Part & part, std::chrono::milliseconds stall) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g", static_cast<double>(stall.count()) / 1000);
    const std::string where = at_byte(": read at byte ", part.begin, ": the drive has not answered for ");
    return part.file->path + where + seconds + " s";
}

bool worth_another_try(int error_number) {
    return error_number == EIO || error_number == EAGAIN || error_number == EBUSY || error_number == ENOMEM;
}

}  // namespace

std::thread quiet_thread(std::function<void()> run) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
    std::thread thread(std::move(run));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

Desk::Desk(std::vector<File> files, const ReaderOptions & options, const Calls & calls)
    : calls_(calls), piece_(std::clamp<uint64_t>(page_ceil(options.piece), kPage, kLargestRead)),
      stall_(options.stall_ms), files_(std::move(files)), flights_(std::clamp(options.depth, 1u, kDeepest)) {
    if (stall_.count() != 0) watchdog_ = quiet_thread([this] { watch(); });
}

Desk::~Desk() {
    {
        const std::lock_guard lock(mutex_);
        ended_ = true;
    }
    watch_begins_.notify_all();
    if (watchdog_.joinable()) watchdog_.join();
}

void Desk::add(Load & load, bool urgent) {
    std::unique_lock lock(mutex_);
    load.error.clear();
    load.left.store(0, std::memory_order_relaxed);
    load.state.store(Load::waiting, std::memory_order_relaxed);
    std::deque<Part> & queue = urgent ? urgent_ : other_;
    for (uint32_t i = 0; i < load.count && !closed_; ++i) split(load, load.pieces[i], queue);
    if (closed_) load.error = "the reader is closed";
    if (load.left.load(std::memory_order_relaxed) == 0) settle(load);
    size_t wanted = std::min<size_t>(queue.size(), takers_);
    lock.unlock();  // or the woken would find it locked; the load may be its owner's again
    for (; wanted > 0; --wanted) parts_came_.notify_one();
}

void Desk::split(Load & load, const Piece & piece, std::deque<Part> & queue) {
    if (piece.size == 0) return;
    if (piece.file >= files_.size()) {
        load.error = "a piece of the expert is in a file that the model does not have";
        return;
    }
    const uint64_t first = page_floor(piece.offset), end = piece.offset + piece.size;
    const uint64_t whole = page_ceil(end) - first;
    const uint64_t parts = std::max<uint64_t>(1, (whole + piece_ / 2) / piece_);
    const uint64_t step = page_ceil((whole + parts - 1) / parts);
    for (uint64_t at = 0; at < whole; at += step) {
        const uint64_t bytes = std::min(step, whole - at), begin = first + at;
        queue.push_back(
            {&load, &files_[piece.file], begin, std::min(bytes, end - begin), bytes, load.slot + piece.at + at});
        load.left.fetch_add(1, std::memory_order_relaxed);
    }
}

bool Desk::next(Flight & flight) {
    std::unique_lock lock(mutex_);
    while (!take(flight)) {
        if (closed_) return false;
        ++takers_;
        parts_came_.wait(lock);
        --takers_;
    }
    return true;
}

bool Desk::try_next(Flight & flight) {
    const std::lock_guard lock(mutex_);
    return take(flight);
}

// Parts of a load that has failed already are not worth a read.
bool Desk::take(Flight & flight) {
    for (std::deque<Part> * queue : {&urgent_, &other_}) {
        while (!queue->empty()) {
            const Part part = queue->front();
            queue->pop_front();
            if (part.load->state.load(std::memory_order_relaxed) == Load::waiting && part.load->error.empty()) {
                begin(flight, part);
                return true;
            }
            part_done(*part.load);
        }
    }
    return false;
}

void Desk::begin(Flight & flight, const Part & part) {
    flight.part = part;
    flight.done = 0;
    flight.troubles = 0;
    flight.error.clear();
    flight.busy = true;
    flight.since = Clock::now();
    if (in_flight_++ == 0) busy_since_ = flight.since;
    if (watchdog_rests_) watch_begins_.notify_one();
}

bool Desk::answer(Flight & flight, ssize_t result) {
    File & file = *flight.part.file;
    if (result < 0) {
        const int number = static_cast<int>(-result);
        if (number == EINTR) return false;
        if (number == EINVAL && flight.fd == file.direct_fd) {
            file.direct = false;  // the file system opens files so, but does not read them so
            return false;
        }
        if (worth_another_try(number) && ++flight.troubles < kTroubles) return false;
        return fail(flight, at_byte(": read error at byte ", flight.offset(), ": " + error_text(number)));
    }
    const uint64_t before = flight.done, now = before + static_cast<uint64_t>(result);
    if (now >= flight.part.needed) {
        flight.done = now;
        return true;
    }
    const uint64_t end = flight.part.begin + now;
    if (result == 0 || end == static_cast<uint64_t>(file.opened.st_size)) {
        return fail(flight, at_byte(": the file ends at byte ", end, ", inside an expert"));
    }
    flight.done = page_floor(now);  // a direct read begins at a page
    if (flight.done > before || ++flight.troubles < kTroubles) return false;
    return fail(flight, at_byte(": read error at byte ", flight.offset(), ": the drive gives less than a page"));
}

// If the file is not what it was, that is the reason.
bool Desk::fail(Flight & flight, const std::string & what) const {
    flight.error = what_changed(*flight.part.file, calls_);
    if (flight.error.empty()) flight.error = flight.part.file->path + what;
    return true;
}

void Desk::finish(Flight & flight) {
    const Part part = flight.part;
    Load & load = *part.load;
    if (!part.file->direct) drop_from_cache(*part.file, part.begin, part.bytes);
    std::unique_lock lock(mutex_);
    flight.busy = false;
    if (--in_flight_ == 0) counters_.busy_ns += ns_since(busy_since_);
    ++counters_.reads;
    counters_.bytes += flight.done;
    counters_.retries += flight.troubles;
    if (load.state.load(std::memory_order_relaxed) == Load::waiting) {
        if (load.error.empty()) load.error = flight.error;
        if (load.error.empty() && load.left.load(std::memory_order_relaxed) == 1) {
            lock.unlock();  // nobody else has a part of it any more
            bool mismatch = false;
            std::string why = verify(load, mismatch);
            lock.lock();
            load.error = std::move(why);
            counters_.mismatches += mismatch;
        }
    }
    part_done(load);
}

std::string Desk::verify(const Load & load, bool & mismatch) const {
    for (uint32_t i = 0; i < load.count; ++i) {
        if (load.pieces[i].size == 0 || (i > 0 && load.pieces[i].file == load.pieces[i - 1].file)) continue;
        std::string changed = what_changed(files_[load.pieces[i].file], calls_);
        if (!changed.empty()) return changed;
    }
    if (!load.checked || load.count != 1) return {};
    const Piece & piece = load.pieces[0];
    mismatch = crc32c(0, load.slot + piece.at + piece.offset % kPage, piece.size) != load.crc;
    if (!mismatch) return {};
    return files_[piece.file].path + at_byte(": slot at byte ", piece.offset, " does not match its checksum");
}

void Desk::part_done(Load & load) {
    if (load.left.load(std::memory_order_relaxed) > 1) {
        load.left.fetch_sub(1, std::memory_order_relaxed);
    } else {
        settle(load);
    }
}

// The last touch of a load: from here on it is its owner's, who may use it again before this function returns.
void Desk::settle(Load & load) {
    if (load.state.load(std::memory_order_relaxed) != Load::waiting) {  // given up before; the slot is free now
        load.left.store(0, std::memory_order_release);
        settled_.fetch_add(1, std::memory_order_release);
        load_settled_.notify_all();
        return;
    }
    const bool good = load.error.empty();
    if (!good) ++counters_.failures;
    load.left.store(0, std::memory_order_relaxed);
    load.state.store(good ? Load::ready : Load::failed, std::memory_order_release);
    settled_.fetch_add(1, std::memory_order_release);
    load_settled_.notify_all();
}

// Fails a load while reads into its slot still hang: `left` stays above 0 until they are back.
void Desk::abandon(Load & load, std::string why) {
    if (load.state.load(std::memory_order_relaxed) != Load::waiting) return;
    if (load.error.empty()) load.error = std::move(why);
    ++counters_.failures;
    load.state.store(Load::failed, std::memory_order_release);
    settled_.fetch_add(1, std::memory_order_release);
    load_settled_.notify_all();
}

void Desk::drop_waiting(const std::string & why) {
    for (std::deque<Part> * queue : {&urgent_, &other_}) {
        for (; !queue->empty(); queue->pop_front()) {
            Load & load = *queue->front().load;
            if (load.state.load(std::memory_order_relaxed) == Load::waiting && load.error.empty()) load.error = why;
            part_done(load);
        }
    }
}

void Desk::close() {
    {
        const std::lock_guard lock(mutex_);
        closed_ = true;
        drop_waiting("the reader is closed");
    }
    parts_came_.notify_all();
}

bool Desk::closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
}

uint64_t Desk::wait(uint64_t seen) {
    std::unique_lock lock(mutex_);
    load_settled_.wait(lock, [&] { return settled() > seen; });
    return settled();
}

ReaderCounters Desk::counters() const {
    const std::lock_guard lock(mutex_);
    ReaderCounters result = counters_;
    if (in_flight_ > 0) result.busy_ns += ns_since(busy_since_);
    return result;
}

bool Desk::direct() const {
    return std::all_of(files_.begin(), files_.end(), [](const File & file) { return file.direct.load(); });
}

void Desk::watch() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
        if (in_flight_ == 0) {
            watchdog_rests_ = true;
            watch_begins_.wait(lock);
            watchdog_rests_ = false;
        } else {
            watch_begins_.wait_for(lock, std::max(stall_ / 4, std::chrono::milliseconds(1)));
            look_for_stalls();
        }
    }
}

void Desk::look_for_stalls() {
    const Clock::time_point now = Clock::now();
    const Flight * hung = nullptr;
    size_t count = 0;
    for (const Flight & flight : flights_) {
        if (!flight.busy || now - flight.since < stall_) continue;
        abandon(*flight.part.load, stall_text(flight.part, stall_));
        hung = &flight;
        ++count;
    }
    if (count == flights_.size()) drop_waiting(stall_text(hung->part, stall_));  // nobody is left to read these
}

}  // namespace expertstream
