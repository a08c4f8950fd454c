// Whether top-p and min-p keep a token, told in one pass, without an order of all of them. Sums are float32's, so a
// close call is left to the caller.
//
//     the token's own weight is 1, every other's exp((logit - own) / temperature)
//     before it            those that come first in the order, and any so near that rounding might say so
//     top-p                they don't reach top_p of the total
//     min-p                1 is at least min_p of the largest weight
#include <algorithm>
#include <cmath>

#include "mtplx_native.h"
#include "simd.h"

namespace mtplx {

namespace {

constexpr int PIECE = 1024;     // places whose weights are added in float32
constexpr double SLACK = 1e-3;  // relative; far more than float32 does to weights and sums of a piece
constexpr float NEAR = 1e-4f;   // scores that float64 might find equal are nearer than that

struct Weights {
    double total = 0, before = 0;  // the token itself is in both
    float top = 0;                 // the largest score, relative to the token's
};

// A piece's scores relative to the token's, filled up with nothing to a whole number of vectors; returns their number.
int score_piece(const float *logits, int count, float own, float factor, float *scores) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(scores + i, (load(logits + i) - splat(own)) * splat(factor));
    for (; i < count; i++) scores[i] = (logits[i] - own) * factor;
    for (; i % LANES; i++) scores[i] = -HUGE_VALF;
    return i;
}

void add_piece(const float *scores, int count, Weights &weights) {
    Floats total = {}, before = {}, top = splat(weights.top);
    for (int i = 0; i < count; i += LANES) {
        const Floats score = load(scores + i), weight = exponential(score);
        total += weight;
        before += pick(score > splat(-NEAR), weight, Floats{});
        top = larger(top, score);
    }
    weights.total += sum_of(total);
    weights.before += sum_of(before);
    weights.top = largest_of(top);
}

}  // namespace

}  // namespace mtplx

extern "C" int32_t mtplx_survives(const float *logits, int32_t count, double temperature, int32_t place, double top_p,
                                  double min_p) {
    using namespace mtplx;
    alignas(64) float scores[PIECE];
    Weights weights;
    for (int32_t first = 0; first < count; first += PIECE) {
        const int found = score_piece(logits + first, std::min(PIECE, count - first), logits[place],
                                      static_cast<float>(1 / temperature), scores);
        add_piece(scores, found, weights);
    }
    if (top_p < 1 && !(weights.before - 1 < top_p * weights.total * (1 - SLACK))) return 0;
    return min_p == 0 || std::exp(-double(weights.top)) >= min_p * (1 + SLACK);
}
