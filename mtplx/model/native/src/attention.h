// Attention over a paged cache, in pieces that never depend on how a step was put together.
//
// A query's keys are cut into segments of 256 positions, at multiples of 256 from position 0. Each segment gives a
// partial result (largest score, sum of exponentials, weighted values), and a query's partial results are combined from
// its first segment to its last. Within a segment keys are added in order of position. So neither chunks of a prompt,
// threads nor the other rows of a step show in a result; and threads share the segments of one long sequence.
//
//     positions       0 ..... 255 | 256 ..... 511 | 512 .. 600
//     query at 600    partial 0   | partial 1     | partial 2       combined in this order
//
// Rows of one sequence that follow each other form runs; a run's queries, times the query heads of a key head, go
// through a segment in tiles that read its keys together.
#pragma once

#include <cmath>
#include <vector>

#include "simd.h"
#include "mtplx_native.h"

namespace mtplx {

constexpr int BLOCK = MTPLX_BLOCK_TOKENS;
constexpr int SEGMENT = 256;  // keys
constexpr int MAX_RUN = 16;   // rows
constexpr int MAX_HEAD_DIM = 256;

static_assert(BLOCK == PANEL, "a vector of keys is as long as a panel");

// Checks indices against the cache; MTPLX_OK or what is wrong.
int32_t check_rows(const mtplx_rows &rows, int32_t num_blocks);

// Puts a token's key or value of one head, [head_dim] floats, in its place.
void write_key(const mtplx_cache &cache, int block, int place, int head, const float *key);
void write_value(const mtplx_cache &cache, int block, int place, int head, const float *value);

// What scores are multiplied with: `scale`, or what 0 stands for.
inline float attention_scale(float scale, int head_dim) {
    return scale != 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(head_dim));
}

inline int block_of(const mtplx_rows &rows, int row) {
    return rows.block_ids[rows.block_begin[rows.sequence_of[row]] + rows.positions[row] / BLOCK];
}

// The work of one step, for every layer anew: first all tasks in any order, then combine() for rows and heads.
class Attention {
public:
    // Plans for these rows, which must stay, and so many threads. Queries are [N][num_heads][head_dim], already scaled.
    // Positions below `begin` hold no keys, and no row.
    void plan(const mtplx_rows &rows, int num_heads, int num_kv_heads, int head_dim, int window, int num_threads,
              int begin = 0);

    int num_tasks() const { return static_cast<int>(tasks_.size()) * num_kv_heads_; }
    void run_task(int task, const mtplx_cache &cache, const float *queries);

    // Whether every task is of all keys of its queries, which can then be combined as soon as it has run.
    bool is_whole() const { return is_whole_; }

    // Calls body(row, head) for every query of a task.
    template <class Body>
    void for_queries(int task, const Body &body) const {
        const Task &of_run = tasks_[task / num_kv_heads_];
        const int heads = num_heads_ / num_kv_heads_, first = task % num_kv_heads_ * heads;
        for (int row = of_run.first_row; row < of_run.first_row + of_run.num_rows; row++)
            for (int head = first; head < first + heads; head++) body(row, head);
    }

    // Writes [head_dim] floats.
    void combine(int row, int head, float *out) const;

private:
    struct Task {
        int first_row, num_rows, segment;
    };

    void halve_tasks();
    int first_key(int row) const;
    float *partial(int row, int head, int segment);
    template <class Element>
    void run_segment(const Task &task, int kv_head, const mtplx_cache &cache, const float *queries);

    const mtplx_rows *rows_ = nullptr;
    int num_heads_ = 0, num_kv_heads_ = 0, head_dim_ = 0, window_ = 0, begin_ = 0;
    int segments_a_row_ = 0;
    bool is_whole_ = false;
    std::vector<Task> tasks_;
    std::vector<float> partials_;  // [N][num_heads][segments a row][head_dim + 2]: values, largest score, sum
};

}  // namespace mtplx
