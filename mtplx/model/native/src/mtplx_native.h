// The C interface of the native CPU kernels: packed linear weights, paged attention, one call per decoding step.
//
// Plain C types, no exceptions across it, nothing of Python or PyTorch. Every struct is passed by pointer and only has
// int32, float and pointer members, in an order that leaves no hidden padding. Matrices are row-major; [N][K] means N
// rows of K contiguous elements. The caller owns every buffer it passes and keeps weights, tables and cache alive as
// long as the model; the library owns threads and scratch memory.
//
// Batch invariance: the bits of an output row depend on its own inputs, the weights and the build, and on nothing else:
// not on the other rows, their number or order, the thread count, or which cache blocks hold its keys.
//
// A worked example, two sequences in one step: sequence 0 decodes token 7 at position 20 (21 keys, 2 blocks), sequence
// 1 prefills three tokens from position 0; logits of the decode token and of the prompt's last token:
//
//     token_ids   = {7, 11, 12, 13}    positions   = {20, 0, 1, 2}     sequence_of = {0, 1, 1, 1}
//     block_begin = {0, 2, 3}          block_ids   = {5, 0, 9}         wanted      = {0, 3}
#ifndef MTPLX_NATIVE_H
#define MTPLX_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MTPLX_API __declspec(dllexport)
#else
#define MTPLX_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MTPLX_ABI_VERSION = 6,
    MTPLX_BLOCK_TOKENS = 16,    // tokens in a cache block, fixed
    MTPLX_LAYOUT_VERSION = 1,   // of packed weights: part of the key of a cache file; the same in every build
};

// What the functions return; mtplx_message gives the sentence.
enum mtplx_status {
    MTPLX_OK = 0,
    MTPLX_BAD_FORMAT = 1,       // weight format unknown, or the number of columns doesn't fit it
    MTPLX_BAD_SHAPE = 2,        // the shapes of a model contradict each other, or aren't supported
    MTPLX_BAD_TOKEN = 3,        // a token id outside the embedding
    MTPLX_BAD_POSITION = 4,     // a position outside the rope table, or 0 in a draft head
    MTPLX_BAD_BLOCK = 5,        // a sequence index or block id out of range, or a table too short for a position
    MTPLX_BAD_WANTED = 6,       // a wanted row that isn't in the step, or no place for what is wanted
    MTPLX_NO_MEMORY = 7,
};

// Formats of weights: the numbers of GGUF's tensor types. num_cols must be a multiple of 32, in K formats of 256 (in GGUF
// blocks it is). Rows of float formats are multiplied with float32 activations. Rows of the block formats are
// multiplied with activations rounded, per row and group of 32, to int8 with a float32 scale (scale = largest
// magnitude / 127).
enum mtplx_format {
    MTPLX_F32 = 0,
    MTPLX_F16 = 1,
    MTPLX_Q4_0 = 2,             // 18 bytes per 32: float16 d, 16 bytes of nibbles;             w = d * (q - 8)
    MTPLX_Q4_1 = 3,             // 20 bytes per 32: float16 d, float16 m, 16 bytes of nibbles;  w = d * q + m
    MTPLX_Q5_0 = 6,             // 22 bytes per 32: as Q4_0 with 4 bytes of upper bits;         w = d * (q - 16)
    MTPLX_Q5_1 = 7,             // 24 bytes per 32: as Q4_1, likewise;                          w = d * q + m
    MTPLX_Q8_0 = 8,             // 34 bytes per 32: float16 d, 32 int8;                         w = d * q
    MTPLX_Q4_K = 12,            // 144 bytes per 256: 6-bit scale and minimum for each 32;      w = d * s * q - m * t
    MTPLX_Q5_K = 13,            // 176 bytes per 256: likewise
    MTPLX_Q6_K = 14,            // 210 bytes per 256: int8 scale for each 16;                   w = d * s * (q - 32)
};

enum mtplx_cache_dtype {
    MTPLX_CACHE_F32 = 0,
    MTPLX_CACHE_F16 = 1,
};

// ---- The build -----------------------------------------------------------------------------------------------------

MTPLX_API int32_t mtplx_abi_version(void);
MTPLX_API int32_t mtplx_layout_version(void);
MTPLX_API const char *mtplx_build_name(void);       // portable, avx2, avx512, neon
MTPLX_API const char *mtplx_source_hash(void);      // of the sources it was built from, as the builder gave it
MTPLX_API int32_t mtplx_machine_runs(const char *build_name);  // 1 if processor and system run that build
MTPLX_API const char *mtplx_message(int32_t status);

// ---- Packed weights ------------------------------------------------------------------------------------------------

// A packed matrix W [num_rows][num_cols]: num_rows outputs of num_cols inputs, any number of rows.
// Start `data` at a multiple of 64 bytes; a memory-mapped file at such an offset will do.
typedef struct mtplx_weight {
    int32_t format;
    int32_t num_rows;
    int32_t num_cols;
    int32_t reserved;
    const void *data;
} mtplx_weight;

// Bytes of the packed matrix, 0 if the format or shape isn't supported.
MTPLX_API size_t mtplx_packed_bytes(int32_t format, int32_t num_rows, int32_t num_cols);

// Packs a matrix given as GGUF holds it, row after row of blocks (F32, F16: elements). Layout only, nothing is rounded.
// `row_order` NULL, or num_rows source rows: packed row i is source row row_order[i] (that is how the q and k rows of a
// Llama GGUF, stored for rotation of adjacent pairs, are put back in rotate-half order).
MTPLX_API int32_t mtplx_pack(int32_t format, int32_t num_rows, int32_t num_cols, const int32_t *row_order,
                             const void *source, void *packed);

// Writes the float32 values of the rows `row_ids` [count] to out [count][num_cols].
MTPLX_API int32_t mtplx_unpack_rows(const mtplx_weight *weight, const int32_t *row_ids, int32_t count, float *out);

// ---- Threads -------------------------------------------------------------------------------------------------------

// `num_threads` >= 1 counts the calling thread. Between calls the others sleep. NULL when threads can't be had. A pool
// serves one call at a time; models may share it when their calls don't overlap.
typedef struct mtplx_pool mtplx_pool;
MTPLX_API mtplx_pool *mtplx_pool_create(int32_t num_threads);
MTPLX_API void mtplx_pool_destroy(mtplx_pool *pool);

// ---- Single operations: for tests, benchmarks and what surrounds a model -------------------------------------------

// y [m][num_rows] = x [m][num_cols] W^T + bias [num_rows]; bias may be NULL.
MTPLX_API int32_t mtplx_linear(mtplx_pool *pool, const mtplx_weight *weight, const float *bias, const float *x,
                               int32_t m, float *y);

// y [m][size] = x / sqrt(mean(x^2) + eps) * weight [size], row by row; as in a step. size is a multiple of 16.
MTPLX_API int32_t mtplx_rms_norm(mtplx_pool *pool, const float *weight, float eps, const float *x, int32_t m,
                                 int32_t size, float *y);

// One layer's cache, for keys and for values. Within a block and head a key's elements lie 16 tokens apart, so that one
// vector holds the same element of 16 keys:
//
//     keys   [num_blocks][num_kv_heads][head_dim][16]
//     values [num_blocks][num_kv_heads][16][head_dim]
//
// Memory should be zero at first. Token p of a sequence lies in block block_ids[block_begin[sequence] + p / 16], place
// p % 16. Copying a whole block copies its tokens; no state lies outside the blocks.
typedef struct mtplx_cache {
    int32_t dtype;              // mtplx_cache_dtype
    int32_t num_blocks;
    int32_t num_kv_heads;
    int32_t head_dim;           // a multiple of 16, at most 256
    void *keys;
    void *values;
} mtplx_cache;

// Which tokens are computed, and where their keys are. Row order is free; rows of one sequence that follow each other
// share their reading of the cache.
typedef struct mtplx_rows {
    int32_t num_tokens;             // N
    int32_t num_sequences;          // S
    const int32_t *positions;       // [N] absolute, from 0
    const int32_t *sequence_of;     // [N] 0 .. S - 1
    const int32_t *block_begin;     // [S + 1] where each sequence's blocks begin in block_ids
    const int32_t *block_ids;       // [block_begin[S]] covering every position of the rows
} mtplx_rows;

// Writes keys and values [N][num_kv_heads][head_dim] (already rotated) at the rows' positions.
MTPLX_API int32_t mtplx_cache_write(mtplx_pool *pool, const mtplx_cache *cache, const mtplx_rows *rows,
                                    const float *keys, const float *values);

// out [N][num_heads][head_dim]: each row attends, with softmax(scale * q . k), to the keys of its own sequence at
// positions max(0, position - window + 1) .. position, all of 0 .. position when window is 0. Those keys must have
// been written. Query head h reads key head h / (num_heads / num_kv_heads). scale 0 means 1 / sqrt(head_dim).
MTPLX_API int32_t mtplx_attention(mtplx_pool *pool, const mtplx_cache *cache, const mtplx_rows *rows, int32_t num_heads,
                                  int32_t window, float scale, const float *queries, float *out);

// ---- A model -------------------------------------------------------------------------------------------------------

// One decoder layer:
//     x += o(attention(rope(norm(q)), rope(norm(k)), v))   with q, k, v = W rms_norm(x, attention_norm) + bias
//     x += down(silu(gate) * up)                           with gate, up = W rms_norm(x, mlp_norm)
// Each weight has its own format. Pointers that may be NULL say so.
typedef struct mtplx_layer {
    mtplx_weight q;                 // [num_heads * head_dim][hidden], rotate-half order
    mtplx_weight k;                 // [num_kv_heads * head_dim][hidden], rotate-half order
    mtplx_weight v;                 // [num_kv_heads * head_dim][hidden]
    mtplx_weight o;                 // [hidden][num_heads * head_dim]
    mtplx_weight gate;              // [intermediate][hidden]
    mtplx_weight up;                // [intermediate][hidden]
    mtplx_weight down;              // [hidden][intermediate]
    const float *attention_norm;    // [hidden]
    const float *mlp_norm;          // [hidden]
    const float *q_bias;            // [num_heads * head_dim] or NULL (Qwen2 has the three)
    const float *k_bias;            // [num_kv_heads * head_dim] or NULL
    const float *v_bias;            // [num_kv_heads * head_dim] or NULL
    const float *q_norm;            // [head_dim] or NULL: rms norm of each head before rope (Qwen3 has both)
    const float *k_norm;            // [head_dim] or NULL
} mtplx_layer;

// A stack of layers between an embedding and an output head. Sizes: hidden, intermediate and num_heads * head_dim are
// multiples of 32, head_dim of 16 and at most 256.
//
// With eh_proj it is the draft head of another model, its trunk: a row then begins not as an embedding, but as
//     eh_proj [rms_norm(embedding of the row's token, enorm), rms_norm(hidden, hnorm)]
// where `hidden` is what the step brings in `inputs`, else the trunk's hidden state of the position before the row's.
// Trunk and head have the same block ids and number of blocks, and share `hidden_states`, which the trunk writes:
//
//     trunk   row at position 4, token e4     writes h4 at the slot of position 4
//     head    row at position 5, token g5     reads h4, whether the trunk has seen position 5 or not
//
// Before position 0 there is no hidden state: a head's rows begin at position 1, and so do the keys that they see.
typedef struct mtplx_config {
    int32_t num_layers;
    int32_t hidden;
    int32_t intermediate;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t vocab;                  // rows of the output head; the embedding may have another number
    int32_t window;                 // keys that a query sees, itself included; 0 = all
    int32_t cache_dtype;            // mtplx_cache_dtype
    int32_t num_cache_blocks;
    int32_t num_positions;          // rows of the rope tables
    float norm_eps;
    float attention_scale;          // 0 means 1 / sqrt(head_dim)
    int32_t reserved;
    const mtplx_layer *layers;      // [num_layers], copied
    mtplx_weight embedding;         // [tokens][hidden]
    mtplx_weight head;              // [vocab][hidden]; the embedding's own struct when tied; data NULL for no head
    mtplx_weight eh_proj;           // [hidden][2 * hidden], the embedding's half first; data NULL for a trunk
    const float *enorm;             // [hidden], with eh_proj only
    const float *hnorm;             // [hidden], with eh_proj only
    const float *final_norm;        // [hidden]
    const float *rope_cos;          // [num_positions][head_dim / 2]; scaling, as of llama3, is already in it
    const float *rope_sin;          // [num_positions][head_dim / 2]:  y[i] = x[i] cos[i] - x[i + d/2] sin[i]
                                    //                                 y[i + d/2] = x[i + d/2] cos[i] + x[i] sin[i]
    void *keys;                     // [num_layers] of mtplx_cache's keys, one after another
    void *values;                   // [num_layers] of mtplx_cache's values
    float *hidden_states;           // [num_cache_blocks * 16][hidden], after the final norm, by cache slot: written by a
                                    // trunk, read by a head. NULL for a trunk without a head
} mtplx_config;

typedef struct mtplx_step {
    mtplx_rows rows;
    int32_t num_wanted;             // W
    int32_t reserved;
    const int32_t *token_ids;       // [N]
    const float *inputs;            // [N][hidden] for a draft head, in place of the trunk's hidden states; or NULL
    const int32_t *wanted;          // [W] indices of rows, in any order
    float *logits;                  // [W][vocab], or NULL when W is 0 or the model has no head
    int32_t *argmax;                // [W] where each line's largest logit is, the first on ties; -1 if one of the line
                                    // is NaN or the largest isn't finite. Or NULL: nobody asks
    float *hidden;                  // [N][hidden] of all rows after the final norm, or NULL
} mtplx_step;

typedef struct mtplx_model mtplx_model;

// Copies config and layers (not what they point to). `pool` must outlive the model. On success *model is set.
MTPLX_API int32_t mtplx_model_create(const mtplx_config *config, mtplx_pool *pool, mtplx_model **model);
MTPLX_API void mtplx_model_destroy(mtplx_model *model);

// Computes the rows: writes their keys and values into the cache of every layer, then logits and hidden states as
// asked. A step that returns an error has written nothing. Running the same step again gives the same cache and
// results.
MTPLX_API int32_t mtplx_model_step(mtplx_model *model, const mtplx_step *step);

// ---- Measuring -----------------------------------------------------------------------------------------------------

// Reads num_bytes (a multiple of 4096) once with the pool's threads, in contiguous parts; returns a sum that keeps the
// reads from being left out. The yardstick of memory bandwidth.
MTPLX_API uint64_t mtplx_read_sum(mtplx_pool *pool, const void *data, size_t num_bytes);

// ---- Drawing a token -----------------------------------------------------------------------------------------------

// Finds the places that could have the largest score + noise of all; the noise of a token id is a function of its 52
// bits (see philox.cpp). scores [count] are at most 0, at least one is 0, and -inf stands for what may not be drawn.
// token_ids [count] say whose scores these are; NULL means 0, 1, 2, ... Writes those places, ascending, and the bits of
// their ids, for which there must be room for all; returns their number: a handful. Every place whose score + noise
// equals the largest in float64, whatever a logarithm's last bits are, is among them.
MTPLX_API int32_t mtplx_draw_candidates(const double *scores, int32_t count, const int32_t *token_ids, uint64_t seed,
                                        uint32_t position, uint32_t choice, int32_t *places, uint64_t *bits);

// The same of scores (logit - largest logit) / temperature, in float64, for temperatures of 0.001 to 1000; also writes
// the scores of those places. Returns 0 if one of the logits [count] is NaN or the largest isn't finite.
MTPLX_API int32_t mtplx_draw_candidates_of_logits(const float *logits, int32_t count, double temperature,
                                                  const int32_t *token_ids, uint64_t seed, uint32_t position,
                                                  uint32_t choice, int32_t *places, uint64_t *bits, double *scores);

// Whether the place, whose logit is finite, is among those that outlive top_p (1: none), then min_p (0: none), in the
// order score descending, place ascending; temperatures of 0.001 to 1000, no NaN, no infinity but negative ones. 0 where
// it isn't, and in a close call.
MTPLX_API int32_t mtplx_survives(const float *logits, int32_t count, double temperature, int32_t place, double top_p,
                                 double min_p);

#ifdef __cplusplus
}
#endif

#endif
