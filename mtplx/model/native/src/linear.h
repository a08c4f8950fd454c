// y = x W^T, one or two panels of 16 outputs for up to 16 rows at a time.
//
// Per output the order of additions is fixed: within a group of 32 inputs from first to last (as integers, exactly, for
// block formats), then group after group in float32. A tile of rows reads a panel once; how rows are cut into tiles
// shows in no result, because rows have nothing in common but the weights in registers.
#pragma once

#include "activations.h"
#include "panel.h"

namespace mtplx {

typedef float PairOutput[2 * PANEL];

// out[i] = the outputs of `num_panels` panels, 1 or 2, for row `row + i`, 0 <= i < count. All rows belong to one tile
// of activations.
void multiply_panels(const mtplx_weight &weight, int panel, int num_panels, const Activations &x, int row, int count,
                     PairOutput *out);

// Calls body(first, count) for the tiles of [0, num_rows).
template <class Body>
void for_tiles(int num_rows, const Body &body) {
    for (int first = 0; first < num_rows; first += TILE) body(first, num_rows - first < TILE ? num_rows - first : TILE);
}

}  // namespace mtplx
