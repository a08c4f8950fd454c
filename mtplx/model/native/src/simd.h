// Vectors of numbers in this build's width, and the few operations that C++ has no operator for. With dot.h the only
// file that knows instruction sets: everything above them is the same source for each of them.
//
// + - * / and comparisons are the compiler's own on vector types. Nothing here may be contracted or reordered by the
// compiler (-ffp-contract=off, no -ffast-math): which operations are fused is part of what a result's bits depend on.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace mtplx {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

constexpr int PANEL = 16;             // output rows that lie interleaved in packed weights
constexpr int PARTS = PANEL / LANES;  // vectors that hold one value for each of them
constexpr int GROUP = 32;             // weights, or activations, with one scale

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));
typedef uint64_t Longs __attribute__((vector_size(4 * LANES)));  // half as many lanes

template <class Vector, class Element>
inline Vector load(const Element *from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline Floats load(const float *from) { return load<Floats>(from); }

inline Floats load(const double *from) {
    typedef double Doubles __attribute__((vector_size(8 * LANES)));
    Doubles value;
    std::memcpy(&value, from, sizeof value);
    return __builtin_convertvector(value, Floats);
}

// Whole numbers as floats; compilers make a detour through single lanes of what vector extensions say of it.
inline Floats load(const int8_t *from) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from)));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load<int64_t>(from))));
#else
    return __builtin_convertvector(load<Bytes>(from), Floats);
#endif
}

template <class Vector, class Element>
inline void store(Element *to, Vector value) {
    std::memcpy(to, &value, sizeof value);
}

inline Floats splat(float value) { return value - Floats{}; }
inline Ints splat(int32_t value) { return value - Ints{}; }

// a where the mask is set (-1), else b.
inline Floats pick(Ints mask, Floats a, Floats b) { return (Floats)((mask & (Ints)a) | (~mask & (Ints)b)); }

// The larger of both; b where either is NaN, so that a NaN in b gets through.
inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    return pick(a > b, a, b);
#endif
}

inline Ints larger_int(Ints a, Ints b) {
    const Ints mask = a > b;
    return (a & mask) | (b & ~mask);
}

inline Floats smaller(Floats a, Floats b) {
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_min_ps(a, b);
#else
    return pick(a < b, a, b);
#endif
}

// a * b + c: rounded once where the machine can, twice in the portable build.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

inline Floats to_floats(Ints value) { return __builtin_convertvector(value, Floats); }

// The whole product of the lower halves, of each lane.
inline uint64_t multiply_halves(uint64_t a, uint64_t b) { return uint64_t(uint32_t(a)) * uint32_t(b); }
inline Longs multiply_halves(Longs a, Longs b) {
#if defined(__AVX512F__)
    return (Longs)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Longs)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    return (Longs)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#else
    return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

// The nearest whole number, halves to even, of |value| < 2^22.
inline Floats round_whole(Floats value) {
    const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: no bits are left for a fraction
    return (value + shift) - shift;
}

// Lanes moved down by N, round about.
template <int N, class Vector, int... I>
inline Vector moved(Vector value, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(value, value, (I + N) % LANES...);
#else
    return __builtin_shuffle(value, Ints{(I + N) % LANES...});
#endif
}

// All lanes folded into one by halves, in the same order always.
template <int N = LANES / 2, class Vector, class Fold>
inline Vector folded(Vector value, const Fold &fold) {
    value = fold(value, moved<N>(value, std::make_integer_sequence<int, LANES>()));
    if constexpr (N > 1) return folded<N / 2>(value, fold);
    return value;
}

inline float sum_of(Floats value) { return folded(value, [](Floats a, Floats b) { return a + b; })[0]; }
inline int32_t sum_of(Ints value) { return folded(value, [](Ints a, Ints b) { return a + b; })[0]; }
inline float largest_of(Floats value) { return folded(value, larger)[0]; }
inline int32_t largest_of(Ints value) { return folded(value, larger_int)[0]; }

// e to the power of each lane, within 2 units in the last place; 0 below -87, the largest result at 88, NaN for NaN.
inline Floats exponential(Floats x) {
    const Ints too_small = x < splat(-87.0f);
    x = smaller(splat(88.0f), larger(splat(-87.0f), x));
    const Floats n = round_whole(x * splat(1.44269504f));
    Floats r = multiply_add(n, splat(-0.693359375f), x);  // ln 2 in two parts, the first exact in a product with n
    r = multiply_add(n, splat(2.12194440e-4f), r);
    Floats sum = splat(1.0f / 5040);
    const float coefficients[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
    for (float coefficient : coefficients) sum = multiply_add(sum, r, splat(coefficient));
    const Floats power = (Floats)((__builtin_convertvector(n, Ints) + 127) << 23);
    return pick(too_small, Floats{}, sum * power);
}

// ---- float16 -------------------------------------------------------------------------------------------------------

inline Floats load(const uint16_t *from) {
    const Halves half = load<Halves>(from);
#if defined(__AVX512F__)
    return _mm512_cvtph_ps((__m256i)half);
#elif defined(__AVX2__)
    return _mm256_cvtph_ps((__m128i)half);
#else
    const Ints bits = __builtin_convertvector(half, Ints);
    const Ints magnitude = (bits & 0x7fff) << 13;
    const Floats scaled = (Floats)magnitude * splat(5.192296858534828e33f);  // 2^112 moves the exponent; subnormals too
    const Ints special = ((bits & 0x7c00) == splat(0x7c00)) & 0x7f800000;    // infinity, NaN
    return (Floats)((Ints)scaled | special | ((bits & 0x8000) << 16));
#endif
}

inline uint16_t half_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);  // NaN
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
    if (magnitude < 0x38800000) {  // subnormal: let the float adder align and round
        float tiny;
        std::memcpy(&tiny, &magnitude, sizeof tiny);
        tiny += 0.5f;
        std::memcpy(&bits, &tiny, sizeof bits);
        return static_cast<uint16_t>(sign | (bits - 0x3f000000));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

// Rounds to nearest, halves to even.
inline void store_halves(uint16_t *to, Floats value) {
#if defined(__AVX512F__)
    store(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
    store(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    for (int i = 0; i < LANES; i++) to[i] = half_of(value[i]);
#endif
}

inline float float_of(uint16_t half) {
    uint16_t lanes[LANES] = {half};
    return load(lanes)[0];
}

}  // namespace mtplx
