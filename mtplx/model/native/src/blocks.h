// GGUF's blocks: what each format of them holds, and one of them taken apart.
#pragma once

#include "mtplx_native.h"
#include "simd.h"

namespace mtplx {

constexpr int SUPERBLOCK = 256;  // weights in a block of the K formats

// w = d * (code - zero), or d * code + m. In the K formats d and m of a group, or half a group, are whole multiples of
// one d and one m of the block.
struct BlockFormat {
    int bytes;         // of a block
    int size;          // weights in it: 32, SUPERBLOCK in the K formats
    int bits;          // of a code; 0 for what is no block format
    int zero;          // the code that stands for 0
    bool has_minimum;  // m; zero is then 0
    int num_scales;    // of a group of 32: 1, or 2 when each half has its own
};

constexpr BlockFormat block_format(int32_t format) {
    switch (format) {
        case MTPLX_Q4_0: return {18, GROUP, 4, 8, false, 1};
        case MTPLX_Q4_1: return {20, GROUP, 4, 0, true, 1};
        case MTPLX_Q5_0: return {22, GROUP, 5, 16, false, 1};
        case MTPLX_Q5_1: return {24, GROUP, 5, 0, true, 1};
        case MTPLX_Q8_0: return {34, GROUP, 8, 128, false, 1};
        case MTPLX_Q4_K: return {144, SUPERBLOCK, 4, 0, true, 1};
        case MTPLX_Q5_K: return {176, SUPERBLOCK, 5, 0, true, 1};
        case MTPLX_Q6_K: return {210, SUPERBLOCK, 6, 32, false, 2};
        default: return {};
    }
}

// float16 d and m, their multipliers in the K formats (negative for m, which GGUF subtracts), unsigned codes.
struct Block {
    uint16_t scale, minimum;
    int8_t scales[16], minima[8];
    uint8_t codes[SUPERBLOCK];
};

Block read_block(int32_t format, const uint8_t *bytes);

}  // namespace mtplx
