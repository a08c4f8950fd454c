// Integer dot products, the inner loop of block formats: the unsigned codes of lines BEGIN to END of a group, 4 k each,
// of P panels of 16 output rows against the int8 activations of M rows:
//
//     sums[m][v] lane r  +=  sum over k of  code[output LANES * v + r][k] * activation[m][k]
//
// A panel's codes lie as codes.h says. The next panel's are `stride` bytes further on.
#pragma once

#include "codes.h"

namespace mtplx {

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool WIDE_ACTIVATIONS = true;  // 8-bit codes are multiplied as int16, in the order below
#else
constexpr bool WIDE_ACTIVATIONS = false;
#endif

// A group's activations: of row m the 32 int8 from bytes + 32 * m on, and for WIDE_ACTIVATIONS the same as int16, every
// four in the order 0 2 1 3. The others have one value a row: see activations.h.
struct GroupInput {
    int tile;  // rows that lie together
    const int8_t *bytes;
    const int16_t *wide;
    const float *scales, *scaled_sums;
    const int32_t *corrections, *of_halves;

    // To the next group.
    void advance() {
        bytes += tile * GROUP;
        if (WIDE_ACTIVATIONS) wide += tile * GROUP;
        scales += tile;
        scaled_sums += tile;
        corrections += tile;
        of_halves += 2 * tile;
    }
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

inline void dot4(Ints &sums, Ints weights, __m512i activations) {
    sums = (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, activations);
    in_order(sums);
}

inline __m512i splat_four(const int8_t *activations) { return _mm512_set1_epi32(four_bytes(activations)); }

template <int BITS, int BEGIN, int END, int M, int P>
inline void dot_lines(const uint8_t *weights, size_t stride, const GroupInput &input, Ints (*sums)[P]) {
#pragma GCC unroll 8
    for (int j = BEGIN; j < END; j++) {
        Ints line[P];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) line[p] = line_of<BITS>(weights + p * stride, j);
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
template <int M>
inline void dot_nibbles(const uint8_t *weights, const GroupInput &input, Ints (*sums)[PARTS]) {
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

// Bytes times int8 overflow int16, so even and odd k are widened apart and multiplied as int16. One half of the panel
// after the other: registers then hold the sums of eight rows.
template <int M>
inline void dot_bytes(const uint8_t *weights, const GroupInput &input, Ints (*sums)[PARTS]) {
    const __m256i even_bytes = _mm256_set1_epi16(255);
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; part++) {
        Ints of_part[M];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) of_part[m] = sums[m][part];
#pragma GCC unroll 2
        for (int j = 0; j < 8; j++) {
            const __m256i line = load<__m256i>(weights + LINE * j + 32 * part);
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++) {
                const __m256i codes = odd ? _mm256_srli_epi16(line, 8) : _mm256_and_si256(line, even_bytes);
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) {
                    const __m256i two = _mm256_set1_epi32(four_bytes(input.wide + 32 * m + 4 * j + 2 * odd));
                    of_part[m] += (Ints)_mm256_madd_epi16(codes, two);
                }
            }
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) sums[m][part] = of_part[m];
    }
}

// Codes of 5 or 6 bits times int8: int16 holds the sum of two lines, at most 63 * 127 * 2 * 2 = 32004.
template <int BITS, int BEGIN, int END, int M>
inline void dot_line_pairs(const uint8_t *weights, const GroupInput &input, Ints (*sums)[PARTS]) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int j = BEGIN; j < END; j += 2) {
        __m256i first[PARTS], second[PARTS];
#pragma GCC unroll 2
        for (int part = 0; part < PARTS; part++) {
            first[part] = (__m256i)line_of<BITS>(weights, j, part);
            second[part] = (__m256i)line_of<BITS>(weights, j + 1, part);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const __m256i four = _mm256_set1_epi32(four_bytes(input.bytes + 32 * m + 4 * j));
            const __m256i next = _mm256_set1_epi32(four_bytes(input.bytes + 32 * m + 4 * j + 4));
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; part++) {
                const __m256i pairs =
                    _mm256_add_epi16(_mm256_maddubs_epi16(first[part], four), _mm256_maddubs_epi16(second[part], next));
                sums[m][part] += (Ints)_mm256_madd_epi16(pairs, ones);
                in_order(sums[m][part]);
            }
        }
    }
}

template <int BITS, int BEGIN, int END, int M, int P>
inline void dot_lines(const uint8_t *weights, size_t, const GroupInput &input, Ints (*sums)[PARTS]) {
    if constexpr (BITS == 4)
        dot_nibbles<M>(weights, input, sums);
    else if constexpr (BITS == 8)
        dot_bytes<M>(weights, input, sums);
    else
        dot_line_pairs<BITS, BEGIN, END, M>(weights, input, sums);
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

template <int BITS, int BEGIN, int END, int M, int P>
inline void dot_lines(const uint8_t *weights, size_t, const GroupInput &input, Ints (*sums)[PARTS]) {
    uint8_t bytes[8 * LINE];
    if (BITS != 8) {
        for (int j = BEGIN; j < END; j++)
            for (int part = 0; part < PARTS; part++)
                store(bytes + j * LINE + part * sizeof(Ints), line_of<BITS>(weights, j, part));
        weights = bytes;
    }
    for (int j = BEGIN; j < END; j++)
        for (int m = 0; m < M; m++)
            for (int part = 0; part < PARTS; part++)
                sums[m][part] += dot4(weights + j * LINE + part * sizeof(Ints), input.bytes + 32 * m + 4 * j);
}

#endif

}  // namespace mtplx
