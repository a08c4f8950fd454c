#include "pool.h"

#include <new>
#include <system_error>

namespace mtplx {

namespace {

// Parts of a step are tens of microseconds long: who waits longer than this has lost somebody to another process.
constexpr std::chrono::microseconds AWAKE_IN_A_JOB(100);

// Between jobs are a step's sampling and planning, a few hundred microseconds; to be woken takes some fifty.
constexpr std::chrono::microseconds AWAKE_BETWEEN_JOBS(300);

}  // namespace

void Crew::meet() {
    const unsigned round = round_;
    if (waiting_.fetch_add(1) < size - 1) return next_round_.wait(AWAKE_IN_A_JOB, [&] { return round_ != round; });
    waiting_ = 0;
    for (Part &part : parts) part.next = 0;
    round_ = round + 1;
    next_round_.ring();
}

Pool::Pool(int num_threads) : crew_(num_threads) {
    try {
        for (int i = 1; i < num_threads; i++) threads_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error &) {
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    stopping_ = true;
    news_.ring();
    for (std::thread &thread : threads_) thread.join();
}

void Pool::run(const std::function<void(Team &)> &job) {
    job_ = &job;
    running_ = static_cast<int>(threads_.size());
    generation_++;
    news_.ring();
    Team team(crew_, 0);
    job(team);
    left_.wait(AWAKE_IN_A_JOB, [&] { return running_ == 0; });
}

void Pool::work(int index) {
    Team team(crew_, index);
    for (unsigned seen = 0;;) {
        news_.wait(AWAKE_BETWEEN_JOBS, [&] { return stopping_ || generation_ != seen; });
        if (stopping_) return;
        seen = generation_;
        (*job_)(team);
        running_--;
        left_.ring();
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
