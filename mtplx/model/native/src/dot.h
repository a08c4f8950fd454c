// Integer dot products, the inner loop of block formats: one group of 32 unsigned weights of P panels of 16 output rows
// against the int8 activations of M rows:
//
//     sums[m][v] lane r  +=  sum over k of  weight[output LANES * v + r][k] * activation[m][k]
//
// A panel's weights come as lines of 64 bytes, 4 k of each of its 16 rows: byte 4 * row + k % 4. The next panel's are
// `stride` bytes further on.
#pragma once

#include "simd.h"

namespace mtplx {

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool WIDE_ACTIVATIONS = true;  // 8-bit weights are multiplied as int16, in the order below
#else
constexpr bool WIDE_ACTIVATIONS = false;
#endif

// A group's activations: of row m the 32 int8 from bytes + 32 * m on, and for WIDE_ACTIVATIONS the same as int16, every
// four in the order 0 2 1 3.
struct GroupInput {
    const int8_t *bytes;
    const int16_t *wide;
};

// Writes a group's 32 activations as int16 in that order.
inline void widen(const int8_t *bytes, int16_t *wide) {
#if defined(__AVX2__)
    for (int k = 0; k < GROUP; k += 16) {
        const __m256i whole = _mm256_cvtepi8_epi16(load<__m128i>(bytes + k));
        store(wide + k, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(whole, 0xd8), 0xd8));
    }
#else
    (void)bytes, (void)wide;
#endif
}

// Holds the compiler to the order written: it would otherwise compute many products ahead and run out of registers.
template <class Vector>
inline void in_order(Vector &value) {
#if defined(__AVX2__)
    asm volatile("" : "+v"(value));
#endif
}

inline int32_t four_bytes(const void *from) {
    int32_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

#if defined(__AVX512F__)

constexpr int PANELS_AT_ONCE = 2;  // reading an activation costs as much as multiplying with it, so each serves twice

inline void dot4(Ints &sums, __m512i weights, __m512i activations) {
    sums = (Ints)_mm512_dpbusd_epi32((__m512i)sums, weights, activations);
    in_order(sums);
}

inline __m512i splat_four(const int8_t *activations) { return _mm512_set1_epi32(four_bytes(activations)); }

// Line j of four holds k = 4j .. 4j+3 in its low nibbles and k = 16+4j .. in its high ones.
template <int M, int P>
inline void dot_nibbles(const uint8_t *weights, size_t stride, GroupInput input, Ints (*sums)[P]) {
    const __m512i low_nibbles = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i both[P];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) both[p] = load<__m512i>(weights + p * stride + 64 * j);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            __m512i nibbles[P];
#pragma GCC unroll 2
            for (int p = 0; p < P; p++)
                nibbles[p] = _mm512_and_si512(half ? _mm512_srli_epi16(both[p], 4) : both[p], low_nibbles);
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
                const __m512i four = splat_four(input.bytes + 32 * m + 16 * half + 4 * j);
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) dot4(sums[m][p], nibbles[p], four);
            }
        }
    }
}

// Line j of eight holds k = 4j .. 4j+3.
template <int M, int P>
inline void dot_bytes(const uint8_t *weights, size_t stride, GroupInput input, Ints (*sums)[P]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m512i line[P];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) line[p] = load<__m512i>(weights + p * stride + 64 * j);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            const __m512i four = splat_four(input.bytes + 32 * m + 4 * j);
#pragma GCC unroll 2
            for (int p = 0; p < P; p++) dot4(sums[m][p], line[p], four);
        }
    }
}

#elif defined(__AVX2__)

constexpr int PANELS_AT_ONCE = 1;

// Nibbles times int8, in pairs, over eight lines: at most 15 * 127 * 2 * 8 = 30480, so int16 sums do for a whole group.
template <int M, int P>
inline void dot_nibbles(const uint8_t *weights, size_t, GroupInput input, Ints (*sums)[PARTS]) {
    const __m256i low_nibbles = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i pairs[M][2];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) pairs[m][0] = pairs[m][1] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int j = 0; j < 4; j++) {
        const __m256i left = load<__m256i>(weights + 64 * j), right = load<__m256i>(weights + 64 * j + 32);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const __m256i a = _mm256_and_si256(half ? _mm256_srli_epi16(left, 4) : left, low_nibbles);
            const __m256i b = _mm256_and_si256(half ? _mm256_srli_epi16(right, 4) : right, low_nibbles);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                const __m256i four = _mm256_set1_epi32(four_bytes(input.bytes + 32 * m + 16 * half + 4 * j));
                pairs[m][0] = _mm256_add_epi16(pairs[m][0], _mm256_maddubs_epi16(a, four));
                pairs[m][1] = _mm256_add_epi16(pairs[m][1], _mm256_maddubs_epi16(b, four));
                in_order(pairs[m][0]);
                in_order(pairs[m][1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 2
        for (int part = 0; part < 2; part++) sums[m][part] += (Ints)_mm256_madd_epi16(pairs[m][part], ones);
}

// Bytes times int8 overflow int16, so even and odd k are widened apart and multiplied as int16.
template <int M, int P>
inline void dot_bytes(const uint8_t *weights, size_t, GroupInput input, Ints (*sums)[PARTS]) {
    const __m256i even_bytes = _mm256_set1_epi16(255);
#pragma GCC unroll 1
    for (int j = 0; j < 8; j++) {
        const __m256i left = load<__m256i>(weights + 64 * j), right = load<__m256i>(weights + 64 * j + 32);
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
            const __m256i a = odd ? _mm256_srli_epi16(left, 8) : _mm256_and_si256(left, even_bytes);
            const __m256i b = odd ? _mm256_srli_epi16(right, 8) : _mm256_and_si256(right, even_bytes);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                const __m256i two = _mm256_set1_epi32(four_bytes(input.wide + 32 * m + 4 * j + 2 * odd));
                sums[m][0] += (Ints)_mm256_madd_epi16(a, two);
                sums[m][1] += (Ints)_mm256_madd_epi16(b, two);
                in_order(sums[m][0]);
                in_order(sums[m][1]);
            }
        }
    }
}

#else

constexpr int PANELS_AT_ONCE = 1;

// 4 rows of a line: their four products each, added up.
inline Ints dot4(const uint8_t *weights, const int8_t *activations) {
#if defined(__aarch64__)
    const int8x8_t four = vreinterpret_s8_s32(vdup_n_s32(four_bytes(activations)));
    const int16x8_t a = vmovl_s8(four);
    const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(weights)));
    const int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(weights + 8)));
    const int32x4_t first = vpaddq_s32(vmull_s16(vget_low_s16(low), vget_low_s16(a)), vmull_high_s16(low, a));
    const int32x4_t second = vpaddq_s32(vmull_s16(vget_low_s16(high), vget_low_s16(a)), vmull_high_s16(high, a));
    return (Ints)vpaddq_s32(first, second);
#else
    int32_t sums[4];
    for (int r = 0; r < 4; r++) {
        sums[r] = 0;
        for (int k = 0; k < 4; k++) sums[r] += weights[4 * r + k] * activations[k];
    }
    return load<Ints>(sums);
#endif
}

template <int M, int P>
inline void dot_bytes(const uint8_t *weights, size_t, GroupInput input, Ints (*sums)[PARTS]) {
    for (int j = 0; j < 8; j++)
        for (int m = 0; m < M; m++)
            for (int part = 0; part < PARTS; part++)
                sums[m][part] += dot4(weights + 64 * j + 16 * part, input.bytes + 32 * m + 4 * j);
}

template <int M, int P>
inline void dot_nibbles(const uint8_t *weights, size_t, GroupInput input, Ints (*sums)[PARTS]) {
    uint8_t bytes[512];
    for (int i = 0; i < 256; i++) {
        bytes[i] = weights[i] & 15;
        bytes[256 + i] = weights[i] >> 4;
    }
    dot_bytes<M, P>(bytes, 0, input, sums);
}

#endif

}  // namespace mtplx
