// How packed weights lie in memory. A matrix is cut into panels of 16 output rows, the last one filled up with zero
// rows; a panel is contiguous, and so are the panels. G = num_cols / 32 groups, S = num_cols / 256 superblocks.
//
//     F32, F16         [num_cols][16] elements
//
//     block formats    scales, filled up to a multiple of 64 bytes
//                      minima, likewise (formats with a minimum)
//                      codes [G], see codes.h
//
// where scales, as minima, are [G][16] float16, and in the K formats
//
//                      [S][16] float16, then [G][num_scales][16] int8 by which the superblock's is multiplied
#pragma once

#include "blocks.h"
#include "codes.h"

namespace mtplx {

struct PanelLayout {
    size_t mins;   // where the minima begin, from the panel's start; 0 when there are none
    size_t lines;  // where the codes, or the elements, begin
    size_t bytes;  // of the panel
};

inline bool is_float(int32_t format) { return format == MTPLX_F32 || format == MTPLX_F16; }

inline PanelLayout panel_layout(int32_t format, int32_t num_cols) {
    const size_t columns = num_cols, groups = columns / GROUP;
    if (is_float(format)) return {0, 0, columns * PANEL * (format == MTPLX_F32 ? 4 : 2)};
    const BlockFormat kind = block_format(format);
    const size_t halves = columns / kind.size * PANEL * 2;
    const size_t multipliers = kind.size == SUPERBLOCK ? groups * kind.num_scales * PANEL : 0;
    const size_t scales = (halves + multipliers + 63) / 64 * 64, mins = kind.has_minimum ? scales : 0;
    return {mins, scales + mins, scales + mins + groups * group_bytes(kind.bits)};
}

inline int32_t num_panels(const mtplx_weight &weight) { return (weight.num_rows + PANEL - 1) / PANEL; }

inline const uint8_t *panel_of(const mtplx_weight &weight, int32_t panel) {
    return static_cast<const uint8_t *>(weight.data) + panel * panel_layout(weight.format, weight.num_cols).bytes;
}

bool is_packable(int32_t format, int32_t num_rows, int32_t num_cols);

// The values of one row, [num_cols].
void unpack_row(const mtplx_weight &weight, int32_t row, float *out);

}  // namespace mtplx
