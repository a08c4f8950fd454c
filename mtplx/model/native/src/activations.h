// Rows of activations, as float32 and rounded to int8 by groups of 32: what linear kernels multiply weights with.
#pragma once

#include <vector>

#include "dot.h"

namespace mtplx {

constexpr int TILE = 16;  // rows whose activations lie together

// Rows of `size` inputs, G = size / 32 groups. Floats lie row by row; what is rounded lies by tiles of T rows and, in a
// tile, by groups, so that a kernel finds all rows of a group at fixed distances from one address. T is 16, or all rows
// where there are fewer: what one thread writes and another reads should be few cache lines.
//
//     floats        [N][size]
//     bytes         [N / T][G][T][32]   round(x / scale), in -127 .. 127
//     wide          [N / T][G][T][32]   the same as int16 in dot.h's order, where the build needs it
//     scales        [N / T][G][T]       largest |x| of the group / 127
//     scaled_sums   [N / T][G][T]       scale * (sum of bytes), for weights with a minimum
//     corrections   [N / T][G][T]       -128 * (sum of bytes), for weights stored unsigned
//     of_halves     [N / T][G][2][T]    -32 * (sum of each half's bytes), for weights with a scale for each half
class Activations {
public:
    explicit Activations(int size) : size_(size) {}

    // Makes room for `num_rows`; what was there is lost.
    void resize(int num_rows);

    // Rounds groups [begin, end) of a row from its floats.
    void quantize(int row, int begin, int end);
    void quantize(int row) { quantize(row, 0, num_groups()); }

    int size() const { return size_; }
    int num_groups() const { return size_ / GROUP; }

    float *floats(int row) { return floats_.data() + size_t(row) * size_; }
    const float *floats(int row) const { return floats_.data() + size_t(row) * size_; }

    // A row's first group; the next one is a tile's rows further on.
    GroupInput first_group(int row) const {
        const size_t at = place(row, 0);
        const int16_t *wide = WIDE_ACTIVATIONS ? wide_.data() + at * GROUP : nullptr;
        const int32_t *of_halves = of_halves_.data() + at + at / tile_ * tile_;
        return {tile_, bytes_.data() + at * GROUP, wide, scales_.data() + at, scaled_sums_.data() + at,
                corrections_.data() + at, of_halves};
    }

private:
    size_t place(int row, int group) const {
        return (size_t(row / tile_) * num_groups() + group) * tile_ + row % tile_;
    }

    int size_, tile_ = TILE;
    std::vector<float> floats_, scales_, scaled_sums_;
    std::vector<int8_t> bytes_;
    std::vector<int16_t> wide_;
    std::vector<int32_t> corrections_, of_halves_;
};

// y = x / sqrt(mean(x^2) + eps) * weight over `size` elements, a multiple of 16; y may be x.
void rms_norm(const float *x, const float *weight, float eps, int size, float *y);

}  // namespace mtplx
