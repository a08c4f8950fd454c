#include "attention.h"

#include <algorithm>
#include <limits>

namespace mtplx {

namespace {

constexpr int TILE_QUERIES = LANES == 16 ? 6 : LANES == 8 ? 3 : 2;
constexpr int BLOCKS_AT_ONCE = LANES == 16 ? 4 : 2;  // so that sums needn't wait for each other
constexpr int VALUE_VECTORS = 4;
constexpr int QUERY_BATCH = 48;
constexpr int AHEAD = 4;  // blocks between what is read and what is fetched: only we know where the next one lies

// One query's view of a segment: its keys are begin .. end - 1, counted from the segment's start.
struct Query {
    const float *query;  // [head_dim]
    float *partial;      // [head_dim + 2]
    int begin, end;
};

// A segment's cache blocks of one head.
template <class Element>
struct Blocks {
    const Element *keys[SEGMENT / BLOCK];    // [head_dim][16] each
    const Element *values[SEGMENT / BLOCK];  // [16][head_dim] each
};

typedef float Scores[SEGMENT];

// scores[t][key] for the keys of blocks [begin, end): products are added along head_dim, one vector lane a key.
template <class Element, int T>
void score(const Blocks<Element> &blocks, int begin, int end, int head_dim, const Query *queries, Scores *scores) {
    for (int first = begin; first < end; first += BLOCKS_AT_ONCE) {
        const Element *keys[BLOCKS_AT_ONCE], *later[BLOCKS_AT_ONCE];
        for (int b = 0; b < BLOCKS_AT_ONCE; b++) {
            keys[b] = blocks.keys[std::min(first + b, end - 1)];  // the last one again, when there are no more
            const bool has_more = first + b + AHEAD < end;
            later[b] = has_more ? blocks.keys[first + b + AHEAD] : blocks.values[std::min(first + b, end - 1) % AHEAD];
        }
        Floats sums[T][BLOCKS_AT_ONCE * PARTS];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
#pragma GCC unroll 8
            for (int v = 0; v < BLOCKS_AT_ONCE * PARTS; v++) sums[t][v] = Floats{};
        for (int d = 0; d < head_dim; d++) {
#pragma GCC unroll 4
            for (int b = 0; b < BLOCKS_AT_ONCE; b++) __builtin_prefetch(later[b] + d * BLOCK, 0, 2);
#pragma GCC unroll 8
            for (int v = 0; v < BLOCKS_AT_ONCE * PARTS; v++) {
                const Floats key = load(keys[v / PARTS] + d * BLOCK + v % PARTS * LANES);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) sums[t][v] = multiply_add(key, splat(queries[t].query[d]), sums[t][v]);
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
#pragma GCC unroll 8
            for (int v = 0; v < BLOCKS_AT_ONCE * PARTS; v++) {
                const int block = std::min(first + v / PARTS, end - 1);
                store(scores[t] + block * BLOCK + v % PARTS * LANES, sums[t][v]);
            }
    }
}

// Turns a query's scores into exponentials relative to the largest, which it stores with their sum.
void soften(const Query &query, int head_dim, float *scores) {
    const int begin = query.begin / BLOCK * BLOCK, end = (query.end + BLOCK - 1) / BLOCK * BLOCK;
    const float nothing = -std::numeric_limits<float>::infinity();
    std::fill(scores + begin, scores + query.begin, nothing);
    std::fill(scores + query.end, scores + end, nothing);
    Floats largest = splat(nothing);
    for (int i = begin; i < end; i += LANES) largest = larger(largest, load(scores + i));
    const float top = largest_of(largest);
    Floats sums = {};
    for (int i = begin; i < end; i += LANES) {
        const Floats weight = exponential(load(scores + i) - splat(top));
        store(scores + i, weight);
        sums += weight;
    }
    query.partial[head_dim] = top;
    query.partial[head_dim + 1] = sum_of(sums);
}

// Adds the values of keys begin .. end - 1, weighted, to C vectors of each partial result from element d on.
template <class Element, int T, int C>
void add_values(const Blocks<Element> &blocks, int begin, int end, int d, int head_dim, const Query *queries,
                const Scores *weights) {
    constexpr int LINE = 64 / sizeof(Element);
    Floats sums[T][C];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) sums[t][c] = load(queries[t].partial + d + c * LANES);
    for (int key = begin; key < end; key++) {
        const int place = key % BLOCK * head_dim + d;
        const Element *value = blocks.values[key / BLOCK] + place;
        const Element *later = blocks.values[std::min(key / BLOCK + AHEAD, (end - 1) / BLOCK)] + place;
#pragma GCC unroll 4
        for (int c = 0; c < C; c += std::max(LINE / LANES, 1)) __builtin_prefetch(later + c * LANES, 0, 2);
        Floats values[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) values[c] = load(value + c * LANES);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) sums[t][c] = multiply_add(values[c], splat(weights[t][key]), sums[t][c]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) store(queries[t].partial + d + c * LANES, sums[t][c]);
}

template <class Element, int T>
void weigh(const Blocks<Element> &blocks, int begin, int end, int head_dim, const Query *queries,
           const Scores *weights) {
    if (begin >= end) return;
    int d = 0;
    for (; d + VALUE_VECTORS * LANES <= head_dim; d += VALUE_VECTORS * LANES)
        add_values<Element, T, VALUE_VECTORS>(blocks, begin, end, d, head_dim, queries, weights);
    for (; d < head_dim; d += LANES) add_values<Element, T, 1>(blocks, begin, end, d, head_dim, queries, weights);
}

// T queries through one segment. Keys that not all of them see are added for each alone, before and after the common
// ones: the same additions in the same order as if it had been alone.
template <class Element, int T>
void attend(const Blocks<Element> &blocks, int head_dim, const Query *queries) {
    alignas(64) Scores scores[T];
    int begin = SEGMENT, end = 0, common_begin = 0, common_end = SEGMENT;
    for (int t = 0; t < T; t++) {
        begin = std::min(begin, queries[t].begin);
        end = std::max(end, queries[t].end);
        common_begin = std::max(common_begin, queries[t].begin);
        common_end = std::min(common_end, queries[t].end);
    }
    common_end = std::max(common_begin, common_end);
    score<Element, T>(blocks, begin / BLOCK, (end + BLOCK - 1) / BLOCK, head_dim, queries, scores);
    for (int t = 0; t < T; t++) {
        const int first_common = std::min(common_begin, queries[t].end);
        soften(queries[t], head_dim, scores[t]);
        std::fill(queries[t].partial, queries[t].partial + head_dim, 0.0f);
        weigh<Element, 1>(blocks, queries[t].begin, first_common, head_dim, queries + t, scores + t);
    }
    weigh<Element, T>(blocks, common_begin, common_end, head_dim, queries, scores);
    for (int t = 0; t < T; t++) {
        const int after_common = std::max(common_end, queries[t].begin);
        weigh<Element, 1>(blocks, after_common, queries[t].end, head_dim, queries + t, scores + t);
    }
}

template <class Element>
void attend_all(const Blocks<Element> &blocks, int head_dim, const Query *queries, int count) {
    const int tiles = (count + TILE_QUERIES - 1) / TILE_QUERIES;
    for (int tile = 0; tile < tiles; tile++) {
        const int first = count * tile / tiles;
        const Query *from = queries + first;
        switch (count * (tile + 1) / tiles - first) {
            case 1: attend<Element, 1>(blocks, head_dim, from); break;
            case 2: attend<Element, 2>(blocks, head_dim, from); break;
            case 3: attend<Element, std::min(3, TILE_QUERIES)>(blocks, head_dim, from); break;
            case 4: attend<Element, std::min(4, TILE_QUERIES)>(blocks, head_dim, from); break;
            case 5: attend<Element, std::min(5, TILE_QUERIES)>(blocks, head_dim, from); break;
            default: attend<Element, std::min(6, TILE_QUERIES)>(blocks, head_dim, from); break;
        }
    }
}

size_t head_offset(const mtplx_cache &cache, int block, int head) {
    return (size_t(block) * cache.num_kv_heads + head) * cache.head_dim * BLOCK;
}

template <class Element>
void write_elements(const mtplx_cache &cache, void *base, size_t begin, int step, const Element *elements) {
    Element *to = static_cast<Element *>(base) + begin;
    for (int d = 0; d < cache.head_dim; d++) to[size_t(d) * step] = elements[d];
}

void write_floats(const mtplx_cache &cache, void *base, size_t begin, int step, const float *elements) {
    if (cache.dtype == MTPLX_CACHE_F32) return write_elements(cache, base, begin, step, elements);
    uint16_t halves[MAX_HEAD_DIM];
    for (int d = 0; d < cache.head_dim; d += LANES) store_halves(halves + d, load(elements + d));
    write_elements(cache, base, begin, step, halves);
}

}  // namespace

int32_t check_rows(const mtplx_rows &rows, int32_t num_blocks) {
    if (rows.num_tokens < 0 || rows.num_sequences < 0) return MTPLX_BAD_SHAPE;
    for (int32_t row = 0; row < rows.num_tokens; row++) {
        const int32_t sequence = rows.sequence_of[row], position = rows.positions[row];
        if (position < 0) return MTPLX_BAD_POSITION;
        if (sequence < 0 || sequence >= rows.num_sequences) return MTPLX_BAD_BLOCK;
        if (position / BLOCK >= rows.block_begin[sequence + 1] - rows.block_begin[sequence]) return MTPLX_BAD_BLOCK;
    }
    const int32_t num_ids = rows.num_sequences ? rows.block_begin[rows.num_sequences] : 0;
    for (int32_t i = 0; i < num_ids; i++)
        if (rows.block_ids[i] < 0 || rows.block_ids[i] >= num_blocks) return MTPLX_BAD_BLOCK;
    return MTPLX_OK;
}

void write_key(const mtplx_cache &cache, int block, int place, int head, const float *key) {
    write_floats(cache, cache.keys, head_offset(cache, block, head) + place, BLOCK, key);
}

void write_value(const mtplx_cache &cache, int block, int place, int head, const float *value) {
    write_floats(cache, cache.values, head_offset(cache, block, head) + size_t(place) * cache.head_dim, 1, value);
}

void Attention::plan(const mtplx_rows &rows, int num_heads, int num_kv_heads, int head_dim, int window,
                     int num_threads, int begin) {
    rows_ = &rows;
    num_heads_ = num_heads;
    num_kv_heads_ = num_kv_heads;
    head_dim_ = head_dim;
    window_ = window;
    begin_ = begin;
    segments_a_row_ = 0;
    is_whole_ = true;
    tasks_.clear();
    for (int row = 0; row < rows.num_tokens;) {
        const int first_row = row;
        int first_segment = first_key(row) / SEGMENT, last_segment = 0;
        const int most = std::min(first_row + MAX_RUN, rows.num_tokens);
        for (; row < most && rows.sequence_of[row] == rows.sequence_of[first_row]; row++) {
            const int first = first_key(row) / SEGMENT, last = rows.positions[row] / SEGMENT;
            segments_a_row_ = std::max(segments_a_row_, last - first + 1);
            first_segment = std::min(first_segment, first);
            last_segment = std::max(last_segment, last);
        }
        is_whole_ = is_whole_ && first_segment == last_segment;
        for (int segment = first_segment; segment <= last_segment; segment++)
            tasks_.push_back({first_row, row - first_row, segment});
    }
    if (num_threads > 1 && num_tasks() < 2 * num_threads) halve_tasks();
    const size_t size = size_t(rows.num_tokens) * num_heads * segments_a_row_ * (head_dim + 2);
    if (partials_.size() < size) partials_.resize(size);
}

// Keys are read twice then, but of a few tasks one thread may have twice as much as another.
void Attention::halve_tasks() {
    for (size_t i = 0, count = tasks_.size(); i < count; i++) {
        const int half = tasks_[i].num_rows / 2;
        if (!half) continue;
        tasks_.push_back({tasks_[i].first_row + half, tasks_[i].num_rows - half, tasks_[i].segment});
        tasks_[i].num_rows = half;
    }
}

void Attention::run_task(int task, const mtplx_cache &cache, const float *queries) {
    const Task &of_run = tasks_[task / num_kv_heads_];
    if (cache.dtype == MTPLX_CACHE_F32)
        run_segment<float>(of_run, task % num_kv_heads_, cache, queries);
    else
        run_segment<uint16_t>(of_run, task % num_kv_heads_, cache, queries);
}

void Attention::combine(int row, int head, float *out) const {
    const int stride = head_dim_ + 2, count = rows_->positions[row] / SEGMENT - first_key(row) / SEGMENT + 1;
    const float *partials = partials_.data() + (size_t(row) * num_heads_ + head) * segments_a_row_ * stride;
    float top = partials[head_dim_], sum = 0.0f;
    for (int i = 1; i < count; i++) top = std::max(top, partials[i * stride + head_dim_]);
    std::fill(out, out + head_dim_, 0.0f);
    for (int i = 0; i < count; i++) {
        const float *partial = partials + i * stride;
        const float weight = exponential(splat(partial[head_dim_] - top))[0];
        sum += weight * partial[head_dim_ + 1];
        for (int d = 0; d < head_dim_; d++) out[d] += weight * partial[d];
    }
    const float factor = 1.0f / sum;
    for (int d = 0; d < head_dim_; d++) out[d] *= factor;
}

int Attention::first_key(int row) const {
    return window_ ? std::max(begin_, rows_->positions[row] - window_ + 1) : begin_;
}

float *Attention::partial(int row, int head, int segment) {
    const size_t index = (size_t(row) * num_heads_ + head) * segments_a_row_ + segment - first_key(row) / SEGMENT;
    return partials_.data() + index * (head_dim_ + 2);
}

template <class Element>
void Attention::run_segment(const Task &task, int kv_head, const mtplx_cache &cache, const float *queries) {
    const int start = task.segment * SEGMENT, end_row = task.first_row + task.num_rows;
    int last_key = -1;
    for (int row = task.first_row; row < end_row; row++)
        last_key = std::max(last_key, std::min(rows_->positions[row] - start, SEGMENT - 1));
    const int32_t *table = rows_->block_ids + rows_->block_begin[rows_->sequence_of[task.first_row]] + start / BLOCK;
    Blocks<Element> blocks;
    for (int b = 0; b * BLOCK <= last_key; b++) {
        const size_t offset = head_offset(cache, table[b], kv_head);
        blocks.keys[b] = static_cast<const Element *>(cache.keys) + offset;
        blocks.values[b] = static_cast<const Element *>(cache.values) + offset;
    }
    Query batch[QUERY_BATCH];
    int count = 0;
    for (int row = task.first_row; row < end_row; row++) {
        const int begin = std::max(first_key(row) - start, 0);
        const int end = std::min(rows_->positions[row] + 1 - start, SEGMENT);
        if (begin >= end) continue;
        const int heads = num_heads_ / num_kv_heads_;
        for (int head = kv_head * heads; head < (kv_head + 1) * heads; head++) {
            const float *query = queries + (size_t(row) * num_heads_ + head) * head_dim_;
            batch[count++] = {query, partial(row, head, task.segment), begin, end};
            if (count == QUERY_BATCH) attend_all(blocks, head_dim_, batch, count);
            count %= QUERY_BATCH;
        }
    }
    attend_all(blocks, head_dim_, batch, count);
}

}  // namespace mtplx
