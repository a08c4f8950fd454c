// The single operations of the C interface, and what it says of the build.
#include <algorithm>
#include <cmath>
#include <new>

#include "attention.h"
#include "linear.h"
#include "pool.h"

using namespace mtplx;

namespace {

bool cache_fits(const mtplx_cache &cache) {
    return (cache.dtype == MTPLX_CACHE_F32 || cache.dtype == MTPLX_CACHE_F16) && cache.num_blocks > 0 &&
           cache.num_kv_heads > 0 && cache.head_dim > 0 && cache.head_dim % PANEL == 0 &&
           cache.head_dim <= MAX_HEAD_DIM;
}

}  // namespace

#ifndef MTPLX_BUILD
#define MTPLX_BUILD "portable"
#endif
#ifndef MTPLX_SOURCE_HASH
#define MTPLX_SOURCE_HASH ""
#endif

extern "C" int32_t mtplx_abi_version(void) { return MTPLX_ABI_VERSION; }
extern "C" int32_t mtplx_layout_version(void) { return MTPLX_LAYOUT_VERSION; }
extern "C" const char *mtplx_build_name(void) { return MTPLX_BUILD; }
extern "C" const char *mtplx_source_hash(void) { return MTPLX_SOURCE_HASH; }

extern "C" int32_t mtplx_machine_runs(const char *build_name) {
#if defined(__x86_64__)
    if (!std::strcmp(build_name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!std::strcmp(build_name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    return !std::strcmp(build_name, MTPLX_BUILD);  // the plainest build of its architecture
}

extern "C" const char *mtplx_message(int32_t status) {
    switch (status) {
        case MTPLX_OK: return "done";
        case MTPLX_BAD_FORMAT: return "the weight format is unknown or doesn't fit the number of columns";
        case MTPLX_BAD_SHAPE: return "the shapes contradict each other or aren't supported";
        case MTPLX_BAD_TOKEN: return "a token id is outside the embedding";
        case MTPLX_BAD_POSITION: return "a position is outside the rope table";
        case MTPLX_BAD_BLOCK: return "a sequence index or cache block is out of range, or a block table is too short";
        case MTPLX_BAD_WANTED: return "a wanted row isn't in the step, or there is no place for what is wanted";
        case MTPLX_NO_MEMORY: return "there is no memory for the step";
        default: return "unknown status";
    }
}

extern "C" int32_t mtplx_linear(mtplx_pool *pool, const mtplx_weight *weight, const float *bias, const float *x,
                                int32_t m, float *y) try {
    if (!is_packable(weight->format, weight->num_rows, weight->num_cols)) return MTPLX_BAD_FORMAT;
    Activations input(weight->num_cols);
    input.resize(m);
    pool->run([&](Team &team) {
        team.share(m, [&](int row) {
            std::memcpy(input.floats(row), x + size_t(row) * input.size(), size_t(input.size()) * sizeof(float));
            if (!is_float(weight->format)) input.quantize(row);
        });
        const int pairs = (num_panels(*weight) + 1) / 2;
        team.share(pairs, [&](int pair) {
            const int begin = pair * 2 * PANEL;
            const int width = std::min(weight->num_rows - begin, 2 * PANEL);
            for_tiles(m, [&](int first, int count) {
                PairOutput out[TILE];
                multiply_panels(*weight, pair * 2, (width + PANEL - 1) / PANEL, input, first, count, out);
                for (int i = 0; i < count; i++) {
                    if (bias)
                        for (int r = 0; r < width; r++) out[i][r] += bias[begin + r];
                    std::memcpy(y + size_t(first + i) * weight->num_rows + begin, out[i], width * sizeof(float));
                }
            });
        });
    });
    return MTPLX_OK;
} catch (const std::bad_alloc &) {
    return MTPLX_NO_MEMORY;
}

extern "C" int32_t mtplx_rms_norm(mtplx_pool *pool, const float *weight, float eps, const float *x, int32_t m,
                                  int32_t size, float *y) {
    if (size < PANEL || size % PANEL) return MTPLX_BAD_SHAPE;
    pool->run([&](Team &team) {
        team.share(m, [&](int row) {
            const size_t at = size_t(row) * size;
            rms_norm(x + at, weight, eps, size, y + at);
        });
    });
    return MTPLX_OK;
}

extern "C" int32_t mtplx_cache_write(mtplx_pool *pool, const mtplx_cache *cache, const mtplx_rows *rows,
                                     const float *keys, const float *values) {
    if (!cache_fits(*cache)) return MTPLX_BAD_SHAPE;
    const int32_t status = check_rows(*rows, cache->num_blocks);
    if (status != MTPLX_OK) return status;
    pool->run([&](Team &team) {
        team.share(rows->num_tokens * cache->num_kv_heads, [&](int index) {
            const int row = index / cache->num_kv_heads, head = index % cache->num_kv_heads;
            const int block = block_of(*rows, row), place = rows->positions[row] % BLOCK;
            write_key(*cache, block, place, head, keys + size_t(index) * cache->head_dim);
            write_value(*cache, block, place, head, values + size_t(index) * cache->head_dim);
        });
    });
    return MTPLX_OK;
}

extern "C" int32_t mtplx_attention(mtplx_pool *pool, const mtplx_cache *cache, const mtplx_rows *rows,
                                   int32_t num_heads, int32_t window, float scale, const float *queries,
                                   float *out) try {
    if (!cache_fits(*cache) || num_heads < 1 || num_heads % cache->num_kv_heads || window < 0) return MTPLX_BAD_SHAPE;
    const int32_t status = check_rows(*rows, cache->num_blocks);
    if (status != MTPLX_OK) return status;
    const int size = cache->head_dim, heads = rows->num_tokens * num_heads;
    const float factor = attention_scale(scale, size);
    std::vector<float> scaled(queries, queries + size_t(heads) * size);
    for (float &element : scaled) element *= factor;
    Attention attention;
    attention.plan(*rows, num_heads, cache->num_kv_heads, size, window, pool->size());
    pool->run([&](Team &team) {
        team.share(attention.num_tasks(), [&](int task) { attention.run_task(task, *cache, scaled.data()); });
        team.share(heads, [&](int index) {
            attention.combine(index / num_heads, index % num_heads, out + size_t(index) * size);
        });
    });
    return MTPLX_OK;
} catch (const std::bad_alloc &) {
    return MTPLX_NO_MEMORY;
}

extern "C" uint64_t mtplx_read_sum(mtplx_pool *pool, const void *data, size_t num_bytes) {
    const int pages = static_cast<int>(num_bytes / 4096);
    std::atomic<uint64_t> total{0};
    pool->run([&](Team &team) {
        team.share(team.size(), [&](int part) {
            const size_t begin = size_t(pages) * part / team.size(), end = size_t(pages) * (part + 1) / team.size();
            Ints sums[8] = {};
            for (size_t page = begin; page < end; page++) {
                const int32_t *words = static_cast<const int32_t *>(data) + page * 1024;
                for (int i = 0; i < 1024; i += 8 * LANES)
                    for (int j = 0; j < 8; j++) sums[j] += load<Ints>(words + i + j * LANES);
            }
            uint64_t sum = 0;
            for (const Ints &lane : sums)
                for (int i = 0; i < LANES; i++) sum += static_cast<uint32_t>(lane[i]);
            total += sum;
        });
    });
    return total;
}
