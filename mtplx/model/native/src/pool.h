// A team of threads that runs one job at a time and sleeps in between. Within a job loops are shared out piece by
// piece, so that a thread that was held up leaves its share to the others; who computes a piece never shows in a
// result.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "mtplx_native.h"

namespace mtplx {

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Where threads wait for something to become true: a short while awake, then asleep, so that a processor that others
// want isn't spun away. Conditions read sequentially consistent atomics, which change before the bell rings.
class Bell {
public:
    template <class Condition>
    void wait(std::chrono::microseconds awake, const Condition &holds) {
        const auto until = std::chrono::steady_clock::now() + awake;
        do {
            for (int i = 0; i < 32; i++) {
                if (holds()) return;
                pause_briefly();
            }
        } while (std::chrono::steady_clock::now() < until);
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_++;
        woken_.wait(lock, holds);
        sleepers_--;
    }

    void ring() {
        if (sleepers_ == 0) return;  // whoever falls asleep after this has seen the change
        { std::lock_guard<std::mutex> lock(mutex_); }
        woken_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable woken_;
    std::atomic<int> sleepers_{0};
};

// One thread's part of a loop that it shares with others: the next index, counted from the part's first.
struct alignas(64) Part {
    std::atomic<int> next{0};
};

// What the threads of a job have in common.
class Crew {
public:
    explicit Crew(int size) : size(size), parts(size) {}

    // Waits for all threads; the last to come opens the next loop.
    void meet();

    const int size;
    std::vector<Part> parts;

private:
    alignas(64) std::atomic<int> waiting_{0};
    alignas(64) std::atomic<unsigned> round_{0};
    Bell next_round_;
};

// A job's team as one of its threads sees it: every thread runs the whole job and meets the others in each loop.
class Team {
public:
    Team(Crew &crew, int index) : crew_(crew), index_(index) {}

    int size() const { return crew_.size; }
    int index() const { return index_; }  // of this thread

    // Calls body(i) once for every i below count and returns when all are done. Each thread has a part of its own, in
    // one piece, so that what it fetches ahead is what it reads next; who is through helps the others. Every thread
    // must come here with the same count.
    template <class Body>
    void share(int count, const Body &body) {
        for (int turn = 0; turn < size(); turn++) {
            const int owner = (index_ + turn) % size(), end = begin_of(owner + 1, count);
            for (int i; (i = begin_of(owner, count) + crew_.parts[owner].next++) < end;) body(i);
        }
        crew_.meet();
    }

private:
    int begin_of(int owner, int count) const { return static_cast<int>((int64_t(count) * owner + size() - 1) / size()); }

    Crew &crew_;
    const int index_;
};

class Pool {
public:
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int size() const { return crew_.size; }

    // Runs the job on all threads, the calling one included, and returns when all are through. It must not throw.
    void run(const std::function<void(Team &)> &job);

private:
    void work(int index);
    void stop();

    Crew crew_;
    std::vector<std::thread> threads_;
    const std::function<void(Team &)> *job_ = nullptr;  // set before generation_ is raised
    std::atomic<unsigned> generation_{0};               // counts jobs, so that no thread runs one twice
    std::atomic<int> running_{0};                       // threads that have still to leave the job
    std::atomic<bool> stopping_{false};
    Bell news_, left_;
};

}  // namespace mtplx

struct mtplx_pool : mtplx::Pool {
    using Pool::Pool;
};
