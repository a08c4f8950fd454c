// Packing and unpacking of weights: see panel.h for the layout.
#include "panel.h"

using namespace mtplx;

namespace {

size_t source_row_bytes(int32_t format, int32_t num_cols) {
    const size_t groups = num_cols / GROUP;
    switch (format) {
        case MTPLX_F32: return groups * GROUP * 4;
        case MTPLX_F16: return groups * GROUP * 2;
        case MTPLX_Q4_0: return groups * 18;
        case MTPLX_Q4_1: return groups * 20;
        default: return groups * 34;
    }
}

// Scatters one row of elements of `size` bytes to place `row` of its panel.
void pack_elements(const uint8_t *source, size_t size, int32_t num_cols, int row, uint8_t *panel) {
    for (size_t k = 0; k < size_t(num_cols); k++)
        std::memcpy(panel + (k * PANEL + row) * size, source + k * size, size);
}

// Scatters one row of blocks to place `row` of its panel.
void pack_blocks(const uint8_t *source, int32_t format, int32_t num_cols, int row, uint8_t *panel) {
    const PanelLayout layout = panel_layout(format, num_cols);
    const int line_bytes = format == MTPLX_Q8_0 ? 512 : 256;
    for (int32_t g = 0; g < num_cols / GROUP; g++) {
        const size_t scale = (size_t(g) * PANEL + row) * 2;
        std::memcpy(panel + scale, source, 2);
        source += 2;
        if (layout.mins) {
            std::memcpy(panel + layout.mins + scale, source, 2);
            source += 2;
        }
        uint8_t *lines = panel + layout.lines + size_t(g) * line_bytes;
        const uint8_t offset = format == MTPLX_Q8_0 ? 128 : 0;
        for (int i = 0; i < line_bytes / PANEL; i++)
            lines[i / 4 * 64 + row * 4 + i % 4] = static_cast<uint8_t>(*source++ + offset);
    }
}

}  // namespace

bool mtplx::is_packable(int32_t format, int32_t num_rows, int32_t num_cols) {
    return is_known(format) && num_rows > 0 && num_cols > 0 && num_cols % GROUP == 0;
}

void mtplx::unpack_row(const mtplx_weight &weight, int32_t row, float *out) {
    const uint8_t *panel = panel_of(weight, row / PANEL);
    const PanelLayout layout = panel_layout(weight.format, weight.num_cols);
    const int lane = row % PANEL;
    if (weight.format == MTPLX_F32) {
        const float *floats = reinterpret_cast<const float *>(panel);
        for (int32_t k = 0; k < weight.num_cols; k++) out[k] = floats[size_t(k) * PANEL + lane];
        return;
    }
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(panel);
    if (weight.format == MTPLX_F16) {
        for (int32_t k = 0; k < weight.num_cols; k++) out[k] = float_of(halves[size_t(k) * PANEL + lane]);
        return;
    }
    const bool is_q8 = weight.format == MTPLX_Q8_0;
    const int32_t zero = is_q8 ? 128 : weight.format == MTPLX_Q4_0 ? 8 : 0;
    for (int32_t g = 0; g < weight.num_cols / GROUP; g++) {
        const float d = float_of(halves[g * PANEL + lane]);
        const float m = layout.mins ? float_of(halves[layout.mins / 2 + g * PANEL + lane]) : 0.0f;
        const uint8_t *lines = panel + layout.lines + size_t(g) * (is_q8 ? 512 : 256) + lane * 4;
        for (int i = 0; i < GROUP; i++) {
            const uint8_t byte = lines[(is_q8 ? i : i % 16) / 4 * 64 + i % 4];
            const int32_t q = is_q8 ? byte : i < 16 ? byte & 15 : byte >> 4;
            out[g * GROUP + i] = d * static_cast<float>(q - zero) + m;
        }
    }
}

extern "C" size_t mtplx_packed_bytes(int32_t format, int32_t num_rows, int32_t num_cols) {
    if (!is_packable(format, num_rows, num_cols)) return 0;
    const size_t panels = (size_t(num_rows) + PANEL - 1) / PANEL;
    return panels * panel_layout(format, num_cols).bytes;
}

extern "C" int32_t mtplx_pack(int32_t format, int32_t num_rows, int32_t num_cols, const int32_t *row_order,
                              const void *source, void *packed) {
    if (!is_packable(format, num_rows, num_cols)) return MTPLX_BAD_FORMAT;
    std::memset(packed, 0, mtplx_packed_bytes(format, num_rows, num_cols));
    const size_t row_bytes = source_row_bytes(format, num_cols), panel_bytes = panel_layout(format, num_cols).bytes;
    for (int32_t row = 0; row < num_rows; row++) {
        const int32_t from = row_order ? row_order[row] : row;
        if (from < 0 || from >= num_rows) return MTPLX_BAD_SHAPE;
        const uint8_t *source_row = static_cast<const uint8_t *>(source) + from * row_bytes;
        uint8_t *panel = static_cast<uint8_t *>(packed) + row / PANEL * panel_bytes;
        if (is_float(format))
            pack_elements(source_row, format == MTPLX_F32 ? 4 : 2, num_cols, row % PANEL, panel);
        else
            pack_blocks(source_row, format, num_cols, row % PANEL, panel);
    }
    return MTPLX_OK;
}

extern "C" int32_t mtplx_unpack_rows(const mtplx_weight *weight, const int32_t *row_ids, int32_t count, float *out) {
    if (!is_packable(weight->format, weight->num_rows, weight->num_cols)) return MTPLX_BAD_FORMAT;
    for (int32_t i = 0; i < count; i++)
        if (row_ids[i] < 0 || row_ids[i] >= weight->num_rows) return MTPLX_BAD_TOKEN;
    for (int32_t i = 0; i < count; i++) unpack_row(*weight, row_ids[i], out + size_t(i) * weight->num_cols);
    return MTPLX_OK;
}
