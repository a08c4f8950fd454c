// Whether top-k, top-p and min-p keep a token, told in one pass, without an order of all of them. Sums are float32's, so
// a close call is left to the caller.
//
//     the token's own weight is 1, every other's exp((logit - own) / temperature)
//     before it            those that come first in the order, and any so near that rounding might say so
//     top-k                there are fewer than k of them
//     top-p                they don't reach top_p of the total, of the k largest where there is a top-k
//     min-p                1 is at least min_p of the largest weight
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "mtplx_native.h"
#include "simd.h"

namespace mtplx {

namespace {

constexpr int PIECE = 1024;      // places whose weights are added in float32
constexpr double SLACK = 1e-3;   // relative; far more than float32 does to weights and sums of a piece
constexpr float NEAR = 1e-4f;    // scores that float64 might find equal are nearer than that

// The k largest of many numbers.
class TopK {
public:
    explicit TopK(size_t k) : k_(k) {}

    void see(const float *values, int count) {
        for (int i = 0; i < count; i++)
            if (values[i] > bar_) kept_.push_back(values[i]);
        if (kept_.size() >= 2 * k_ + PIECE) shrink();
    }

    // In no order; all there are if there are fewer.
    const std::vector<float> &found() {
        if (kept_.size() > k_) shrink();
        return kept_;
    }

private:
    void shrink() {
        std::nth_element(kept_.begin(), kept_.begin() + (k_ - 1), kept_.end(), std::greater<float>());
        kept_.resize(k_);
        bar_ = kept_.back();
    }

    const size_t k_;
    std::vector<float> kept_;
    float bar_ = -HUGE_VALF;
};

struct Weights {
    double total = 0, before = 0;  // the token itself is in both
    int64_t num_before = 0;
    float top = 0;  // the largest score, relative to the token's
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
    Ints num_before = {};
    for (int i = 0; i < count; i += LANES) {
        const Floats score = load(scores + i), weight = exponential(score);
        const Ints is_before = score > splat(-NEAR);
        total += weight;
        before += pick(is_before, weight, Floats{});
        num_before -= is_before;
        top = larger(top, score);
    }
    weights.total += sum_of(total);
    weights.before += sum_of(before);
    weights.num_before += sum_of(num_before);
    weights.top = largest_of(top);
}

double weight_of(const std::vector<float> &scores) {
    double sum = 0;
    for (float score : scores) sum += std::exp(std::min(double(score), 88.0));
    return sum;
}

}  // namespace

}  // namespace mtplx

extern "C" int32_t mtplx_survives(const float *logits, int32_t count, double temperature, int32_t place, int32_t top_k,
                                  double top_p, double min_p) {
    using namespace mtplx;
    alignas(64) float scores[PIECE];
    const bool needs_top = top_k > 0 && top_p < 1;
    TopK top(needs_top ? top_k : 1);
    Weights weights;
    for (int32_t first = 0; first < count; first += PIECE) {
        const int found = score_piece(logits + first, std::min(PIECE, count - first), logits[place],
                                      static_cast<float>(1 / temperature), scores);
        add_piece(scores, found, weights);
        if (needs_top) top.see(scores, found);
    }
    if (top_k > 0 && weights.num_before > top_k) return 0;
    if (top_p < 1) {
        const double reached = weights.before - 1, whole = needs_top ? weight_of(top.found()) : weights.total;
        if (!(reached < top_p * whole * (1 - SLACK))) return 0;
    }
    return min_p == 0 || std::exp(-double(weights.top)) >= min_p * (1 + SLACK);
}
