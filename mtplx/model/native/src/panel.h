// How packed weights lie in memory. A matrix is cut into panels of 16 output rows, the last one filled up with zero
// rows; a panel is contiguous, and so are the panels. G = num_cols / 32 groups.
//
//     F32, F16     [num_cols][16] elements
//
//     Q4_0, Q4_1,  d [G][16] float16, filled up to a multiple of 64 bytes
//     Q8_0         m [G][16] float16, likewise (Q4_1 only)
//                  lines of 64 bytes: byte 4 * row + i of line j belongs to that row and
//                      Q8_0, 8 lines a group:  k = 4j + i, stored as q + 128
//                      Q4, 4 lines a group:    k = 4j + i in the low nibble, k = 16 + 4j + i in the high one
//
// A line is what one 64-byte vector instruction takes: four k for each of sixteen rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mtplx_native.h"
#include "simd.h"

namespace mtplx {

struct PanelLayout {
    size_t mins;   // where m begins, from the panel's start; 0 when there is none
    size_t lines;  // where the lines, or the elements, begin
    size_t bytes;  // of the panel
};

inline bool is_float(int32_t format) { return format == MTPLX_F32 || format == MTPLX_F16; }

inline bool is_known(int32_t format) {
    return is_float(format) || format == MTPLX_Q4_0 || format == MTPLX_Q4_1 || format == MTPLX_Q8_0;
}

inline PanelLayout panel_layout(int32_t format, int32_t num_cols) {
    const size_t columns = num_cols, groups = columns / GROUP;
    if (is_float(format)) return {0, 0, columns * PANEL * (format == MTPLX_F32 ? 4 : 2)};
    const size_t scales = (groups * PANEL * 2 + 63) / 64 * 64;
    const size_t mins = format == MTPLX_Q4_1 ? scales : 0;
    const size_t lines = scales + mins;
    return {mins, lines, lines + groups * (format == MTPLX_Q8_0 ? 512 : 256)};
}

inline int32_t num_panels(const mtplx_weight &weight) { return (weight.num_rows + PANEL - 1) / PANEL; }

inline const uint8_t *panel_of(const mtplx_weight &weight, int32_t panel) {
    return static_cast<const uint8_t *>(weight.data) + panel * panel_layout(weight.format, weight.num_cols).bytes;
}

bool is_packable(int32_t format, int32_t num_rows, int32_t num_cols);

// The values of one row, [num_cols].
void unpack_row(const mtplx_weight &weight, int32_t row, float *out);

}  // namespace mtplx
