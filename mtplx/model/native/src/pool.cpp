#include "pool.h"

#include <system_error>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace mtplx {

namespace {

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Parts of a step are tens of microseconds long: who waits longer than this has lost somebody to another process.
constexpr int SPINS_BEFORE_YIELDING = 2000;

// After a job threads look out for the next one for some ten microseconds, then they sleep.
constexpr int SPINS_BEFORE_SLEEPING = 300;

// Returns when the condition holds.
template <class Condition>
void wait_until(const Condition &condition) {
    for (int spins = 0; !condition(); spins++) {
        if (spins < SPINS_BEFORE_YIELDING)
            pause_briefly();
        else
            std::this_thread::yield();
    }
}

}  // namespace

void Team::meet() {
    if (size_ == 1) {
        next_.store(0, std::memory_order_relaxed);
        return;
    }
    const unsigned round = round_.load(std::memory_order_acquire);
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        waiting_.store(0, std::memory_order_relaxed);
        next_.store(0, std::memory_order_relaxed);
        round_.store(round + 1, std::memory_order_release);
        return;
    }
    wait_until([&] { return round_.load(std::memory_order_acquire) != round; });
}

Pool::Pool(int num_threads) : team_(num_threads) {
    try {
        for (int i = 1; i < num_threads; i++) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error &) {
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

void Pool::run(const std::function<void(Team &)> &job) {
    if (threads_.empty()) return job(team_);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        job_ = &job;
        running_ = static_cast<int>(threads_.size());
        generation_++;
    }
    wake_.notify_all();
    job(team_);
    wait_until([&] { return running_ == 0; });
}

void Pool::work() {
    for (unsigned seen = 0;;) {
        for (int spins = 0; spins < SPINS_BEFORE_SLEEPING && !is_news(seen); spins++) pause_briefly();
        if (!is_news(seen)) {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return is_news(seen); });
        }
        if (stopping_) return;
        seen = generation_;
        (*job_)(team_);
        running_--;
    }
}

}  // namespace mtplx

extern "C" mtplx_pool *mtplx_pool_create(int32_t num_threads) {
    if (num_threads < 1) return nullptr;
    try {
        return new mtplx_pool(num_threads);
    } catch (const std::exception &) {  // no thread or no memory to be had
        return nullptr;
    }
}

extern "C" void mtplx_pool_destroy(mtplx_pool *pool) { delete pool; }
