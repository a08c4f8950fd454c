#include "linear.h"

#include <utility>

namespace mtplx {

namespace {

// Rows whose sums fit the registers of the build; larger tiles are cut, the panel then comes from the nearest cache.
constexpr int REGISTER_ROWS = LANES >= 8 ? 8 : 2;

// Bytes between what is being read and what is fetched, into the second-level cache. In large pages 20 to 32 KiB were
// best, with weights near and far.
constexpr int AHEAD = 20480;

inline void fetch(const uint8_t *from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + AHEAD + i, 0, 2);
}

// Loops over rows and vectors are unrolled by force: an array that is indexed by a variable lives in memory.
template <int M, int V>
inline void clear(Floats (*totals)[V]) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) totals[m][v] = Floats{};
}

// Scales, or minima, of outputs LANES * v .. of P panels; `scales` are the first panel's, the next one's `stride` bytes
// further on. `index` counts a row's scales.
template <int FORMAT>
inline Floats load_scales(const uint8_t *scales, size_t stride, int num_cols, int index, int v) {
    constexpr BlockFormat kind = block_format(FORMAT);
    const int lane = v % PARTS * LANES;
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(scales + v / PARTS * stride);
    if (kind.size == GROUP) return load(halves + index * PANEL + lane);
    const int8_t *multipliers = reinterpret_cast<const int8_t *>(halves + num_cols / SUPERBLOCK * PANEL);
    const int superblock = index / (SUPERBLOCK / GROUP * kind.num_scales);
    return load(halves + superblock * PANEL + lane) * load(multipliers + index * PANEL + lane);
}

// Adds to totals what the codes of one scale come to: of a group, or of half of it.
template <int FORMAT, int HALF, int M, int P>
inline void add_run(const uint8_t *panel, const PanelLayout &layout, int num_cols, int g, const uint8_t *lines,
                    const GroupInput &input, Floats (*totals)[P * PARTS]) {
    constexpr BlockFormat kind = block_format(FORMAT);
    constexpr int V = P * PARTS, NUM_LINES = 8 / kind.num_scales, BEGIN = HALF * NUM_LINES;
    Ints sums[M][V];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
        // -128 times the activations' sum takes back an offset of 128, a part of it a smaller one.
        Ints start = {};
        if constexpr (kind.num_scales == 2)
            start = splat(input.of_halves[HALF * input.tile + m]);
        else if constexpr (kind.zero != 0)
            start = splat(input.corrections[m] / (128 / kind.zero));
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[m][v] = start;
    }
    dot_lines<kind.bits, BEGIN, BEGIN + NUM_LINES, M, P>(lines, layout.bytes, input, sums);
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) {
        const Floats d = load_scales<FORMAT>(panel, layout.bytes, num_cols, g * kind.num_scales + HALF, v);
        const Floats minimum =
            kind.has_minimum ? load_scales<FORMAT>(panel + layout.mins, layout.bytes, num_cols, g, v) : Floats{};
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            totals[m][v] = multiply_add(d * splat(input.scales[m]), to_floats(sums[m][v]), totals[m][v]);
            if (kind.has_minimum) totals[m][v] = multiply_add(minimum, splat(input.scaled_sums[m]), totals[m][v]);
        }
    }
}

// out[m] = sum over groups of  d * scale[m] * (sum of q a)  +  minimum * (scaled sum of a).
template <int FORMAT, int M, int P>
void multiply_blocks(const uint8_t *panel, int num_cols, const Activations &x, int row, PairOutput *out) {
    constexpr BlockFormat kind = block_format(FORMAT);
    constexpr int V = P * PARTS;
    const PanelLayout layout = panel_layout(FORMAT, num_cols);
    GroupInput input = x.first_group(row);
    Floats totals[M][V];
    clear<M, V>(totals);
    const uint8_t *lines = panel + layout.lines;
    for (int g = 0; g < num_cols / GROUP; g++, lines += group_bytes(kind.bits), input.advance()) {
        for (int p = 0; p < P; p++) fetch(lines + p * layout.bytes, group_bytes(kind.bits));
        add_run<FORMAT, 0, M, P>(panel, layout, num_cols, g, lines, input, totals);
        if constexpr (kind.num_scales == 2)
            add_run<FORMAT, 1, M, P>(panel, layout, num_cols, g, lines, input, totals);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) store(out[m] + v * LANES, totals[m][v]);
}

// out[m] = sum over groups of (sum over the group's k of  w x): short sums first keep rounding errors small.
template <class Element, int M, int P>
void multiply_floats(const uint8_t *panel, int num_cols, const Activations &x, int row, PairOutput *out) {
    constexpr int V = P * PARTS;
    const Element *weights = reinterpret_cast<const Element *>(panel);
    const size_t stride = size_t(num_cols) * PANEL, size = x.size();
    const float *inputs = x.floats(row);
    Floats totals[M][V];
    clear<M, V>(totals);
    for (int g = 0; g < num_cols / GROUP; g++, inputs += GROUP) {
        Floats sums[M][V];
        clear<M, V>(sums);
#pragma GCC unroll 2
        for (int k = 0; k < GROUP; k++, weights += PANEL) {
            for (int p = 0; p < P; p++)
                fetch(reinterpret_cast<const uint8_t *>(weights + p * stride), PANEL * sizeof(Element));
            Floats weight[V];
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) weight[v] = load(weights + v / PARTS * stride + v % PARTS * LANES);
#pragma GCC unroll 16
            for (int m = 0; m < M; m++)
#pragma GCC unroll 4
                for (int v = 0; v < V; v++)
                    sums[m][v] = multiply_add(weight[v], splat(inputs[m * size + k]), sums[m][v]);
        }
#pragma GCC unroll 16
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) totals[m][v] += sums[m][v];
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) store(out[m] + v * LANES, totals[m][v]);
}

template <int M, int P>
void multiply_rows(const mtplx_weight &weight, int panel, const Activations &x, int row, PairOutput *out) {
    const uint8_t *data = panel_of(weight, panel);
    switch (weight.format) {
        case MTPLX_F32: return multiply_floats<float, M, P>(data, weight.num_cols, x, row, out);
        case MTPLX_F16: return multiply_floats<uint16_t, M, P>(data, weight.num_cols, x, row, out);
        case MTPLX_Q4_0: return multiply_blocks<MTPLX_Q4_0, M, P>(data, weight.num_cols, x, row, out);
        case MTPLX_Q4_1: return multiply_blocks<MTPLX_Q4_1, M, P>(data, weight.num_cols, x, row, out);
        case MTPLX_Q5_0: return multiply_blocks<MTPLX_Q5_0, M, P>(data, weight.num_cols, x, row, out);
        case MTPLX_Q5_1: return multiply_blocks<MTPLX_Q5_1, M, P>(data, weight.num_cols, x, row, out);
        case MTPLX_Q4_K: return multiply_blocks<MTPLX_Q4_K, M, P>(data, weight.num_cols, x, row, out);
        case MTPLX_Q5_K: return multiply_blocks<MTPLX_Q5_K, M, P>(data, weight.num_cols, x, row, out);
        case MTPLX_Q6_K: return multiply_blocks<MTPLX_Q6_K, M, P>(data, weight.num_cols, x, row, out);
        default: return multiply_blocks<MTPLX_Q8_0, M, P>(data, weight.num_cols, x, row, out);
    }
}

typedef void (*MultiplyRows)(const mtplx_weight &, int, const Activations &, int, PairOutput *);

template <int P, int... LESS_ONE>
MultiplyRows multiply_rows_of(int count, std::integer_sequence<int, LESS_ONE...>) {
    static constexpr MultiplyRows functions[] = {multiply_rows<LESS_ONE + 1, P>...};
    return functions[count - 1];
}

template <int P>
void multiply_tile(const mtplx_weight &weight, int panel, const Activations &x, int row, int count, PairOutput *out) {
    const int pieces = (count + REGISTER_ROWS - 1) / REGISTER_ROWS;
    for (int piece = 0; piece < pieces; piece++) {
        const int first = count * piece / pieces, rows = count * (piece + 1) / pieces - first;
        const MultiplyRows multiply = multiply_rows_of<P>(rows, std::make_integer_sequence<int, REGISTER_ROWS>());
        multiply(weight, panel, x, row + first, out + first);
    }
}

}  // namespace

void multiply_panels(const mtplx_weight &weight, int panel, int num_panels, const Activations &x, int row, int count,
                     PairOutput *out) {
    if (num_panels == PANELS_AT_ONCE) return multiply_tile<PANELS_AT_ONCE>(weight, panel, x, row, count, out);
    for (int i = 0; i < num_panels; i++)
        multiply_tile<1>(weight, panel + i, x, row, count, reinterpret_cast<PairOutput *>(out[0] + i * PANEL));
}

}  // namespace mtplx
