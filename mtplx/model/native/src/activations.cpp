#include "activations.h"

#include <algorithm>
#include <cmath>

namespace mtplx {

namespace {

// Returns the largest magnitude of a group, NaN if there is a NaN. Magnitudes are compared by their bits: the same
// order, with NaN on top.
float largest_magnitude(const float *x) {
    Ints largest = {};
    for (int i = 0; i < GROUP; i += LANES) largest = larger_int(largest, (Ints)load(x + i) & 0x7fffffff);
    const int32_t bits = largest_of(largest);
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    return magnitude;
}

// Writes round(x * factor) for half a group and returns the sum of it.
int32_t round_half(const float *x, float factor, int8_t *bytes) {
    Ints sums = {};
    for (int i = 0; i < GROUP / 2; i += LANES) {
        const Ints whole = __builtin_convertvector(round_whole(load(x + i) * splat(factor)), Ints);
        const Ints rounded = whole << 24 >> 24;  // the byte that is stored, also where NaN became some number
        store(bytes + i, __builtin_convertvector(rounded, Bytes));
        sums += rounded;
    }
    return sum_of(sums);
}

}  // namespace

void Activations::resize(int num_rows) {
    tile_ = std::max(1, std::min(num_rows, TILE));
    const size_t rows = (size_t(num_rows) + tile_ - 1) / tile_ * tile_, groups = rows * num_groups();
    if (groups <= scales_.size()) return;
    floats_.resize(rows * size_);
    bytes_.resize(rows * size_);
    if (WIDE_ACTIVATIONS) wide_.resize(rows * size_);
    scales_.resize(groups);
    scaled_sums_.resize(groups);
    corrections_.resize(groups);
    of_halves_.resize(2 * groups);
}

void Activations::quantize(int row, int begin, int end) {
    for (int g = begin; g < end; g++) {
        const float *x = floats(row) + g * GROUP;
        const size_t at = place(row, g);
        int8_t *bytes = bytes_.data() + at * GROUP;
        const float magnitude = largest_magnitude(x);
        const float scale = magnitude / 127.0f;
        const float factor = scale > 0.0f ? 127.0f / magnitude : 0.0f;
        const int32_t first = round_half(x, factor, bytes);
        const int32_t second = round_half(x + GROUP / 2, factor, bytes + GROUP / 2), sum = first + second;
        scales_[at] = scale;
        scaled_sums_[at] = scale * static_cast<float>(sum);
        corrections_[at] = -128 * sum;
        int32_t *of_halves = of_halves_.data() + at + at / tile_ * tile_;
        of_halves[0] = -32 * first;
        of_halves[tile_] = -32 * second;
        if (WIDE_ACTIVATIONS) widen(bytes, wide_.data() + at * GROUP);
    }
}

void rms_norm(const float *x, const float *weight, float eps, int size, float *y) {
    Floats squares = {};
    for (int i = 0; i < size; i += LANES) squares = multiply_add(load(x + i), load(x + i), squares);
    const float factor = 1.0f / std::sqrt(sum_of(squares) / static_cast<float>(size) + eps);
    for (int i = 0; i < size; i += LANES) store(y + i, load(x + i) * splat(factor) * load(weight + i));
}

}  // namespace mtplx
