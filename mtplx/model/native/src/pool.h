// A team of threads that runs one job at a time and sleeps in between. Within a job loops are shared out piece by
// piece, so that a thread that was held up leaves its share to the others; who computes a piece never shows in a
// result.
#pragma once

#include <atomic>
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
    void wait(int spins, const Condition &holds) {
        for (int i = 0; i < spins; i++) {
            if (holds()) return;
            pause_briefly();
        }
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

// What a job sees of its team: every thread runs the whole job and meets the others in each loop.
class Team {
public:
    explicit Team(int size) : size_(size) {}

    int size() const { return size_; }

    // Calls body(i) once for every i below count, in pieces of `grain` on whichever thread is free. Returns when all
    // are done. Every thread must come here with the same count and grain.
    template <class Body>
    void share(int count, int grain, const Body &body) {
        for (;;) {
            const int begin = next_.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) break;
            const int end = begin + grain < count ? begin + grain : count;
            for (int i = begin; i < end; i++) body(i);
        }
        meet();
    }

    // A grain that leaves each thread about eight pieces.
    int grain(int count) const {
        const int piece = count / (8 * size_);
        return piece < 1 ? 1 : piece;
    }

private:
    // Waits for all threads; the last to come opens the next loop.
    void meet();

    const int size_;
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> waiting_{0};
    alignas(64) std::atomic<unsigned> round_{0};
    Bell next_round_;
};

class Pool {
public:
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    // Runs the job on all threads, the calling one included, and returns when all are through. It must not throw.
    void run(const std::function<void(Team &)> &job);

private:
    void work();
    void stop();

    Team team_;
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
