// Packing and unpacking of weights: see panel.h for the layout.
#include "panel.h"

using namespace mtplx;

namespace {

size_t source_row_bytes(int32_t format, int32_t num_cols) {
    const size_t columns = num_cols;
    if (is_float(format)) return columns * (format == MTPLX_F32 ? 4 : 2);
    const BlockFormat kind = block_format(format);
    return columns / kind.size * kind.bytes;
}

// Scatters one row of elements of `size` bytes to place `row` of its panel.
void pack_elements(const uint8_t *source, size_t size, int32_t num_cols, int row, uint8_t *panel) {
    for (size_t k = 0; k < size_t(num_cols); k++)
        std::memcpy(panel + (k * PANEL + row) * size, source + k * size, size);
}

// Scatters one row of blocks to place `row` of its panel, which is zero there.
void pack_blocks(const uint8_t *source, int32_t format, int32_t num_cols, int row, uint8_t *panel) {
    const BlockFormat kind = block_format(format);
    const PanelLayout layout = panel_layout(format, num_cols);
    const int groups = kind.size / GROUP;
    uint8_t *minima = panel + layout.mins, *lines = panel + layout.lines;
    for (size_t b = 0; b < size_t(num_cols) / kind.size; b++, source += kind.bytes) {
        const Block block = read_block(format, source);
        std::memcpy(panel + (b * PANEL + row) * 2, &block.scale, 2);
        if (kind.has_minimum) std::memcpy(minima + (b * PANEL + row) * 2, &block.minimum, 2);
        if (kind.size == SUPERBLOCK) {
            const size_t multipliers = size_t(num_cols) / SUPERBLOCK * PANEL * 2, count = groups * kind.num_scales;
            for (size_t i = 0; i < count; i++) {
                const size_t at = multipliers + (b * count + i) * PANEL + row;
                panel[at] = static_cast<uint8_t>(block.scales[i]);
                if (kind.has_minimum) minima[at] = static_cast<uint8_t>(block.minima[i]);
            }
        }
        for (int g = 0; g < groups; g++, lines += group_bytes(kind.bits))
            put_codes(kind.bits, block.codes + g * GROUP, row, lines);
    }
}

// Number `index` of a lane's scales or minima.
float scale_at(const uint8_t *scales, const BlockFormat &kind, int32_t num_cols, int index, int lane) {
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(scales);
    if (kind.size == GROUP) return float_of(halves[index * PANEL + lane]);
    const int8_t *multipliers = reinterpret_cast<const int8_t *>(halves + num_cols / SUPERBLOCK * PANEL);
    const int superblock = index / (SUPERBLOCK / GROUP * kind.num_scales);
    return float_of(halves[superblock * PANEL + lane]) * static_cast<float>(multipliers[index * PANEL + lane]);
}

}  // namespace

bool mtplx::is_packable(int32_t format, int32_t num_rows, int32_t num_cols) {
    const int size = is_float(format) ? GROUP : block_format(format).size;
    return size && num_rows > 0 && num_cols > 0 && num_cols % size == 0;
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
    const BlockFormat kind = block_format(weight.format);
    const int run = GROUP / kind.num_scales;  // weights of one scale
    for (int32_t i = 0; i < weight.num_cols / run; i++) {
        const float d = scale_at(panel, kind, weight.num_cols, i, lane);
        const float m = kind.has_minimum ? scale_at(panel + layout.mins, kind, weight.num_cols, i, lane) : 0.0f;
        for (int32_t k = i * run; k < (i + 1) * run; k++) {
            const uint8_t *group = panel + layout.lines + k / GROUP * group_bytes(kind.bits);
            out[k] = d * static_cast<float>(code_at(kind.bits, group, lane, k % GROUP) - kind.zero) + m;
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
