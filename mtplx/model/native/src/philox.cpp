// Drawing a token from a whole vocabulary: whose score + noise is largest, where all but a few can be told to lose
// without a logarithm. Those few go back to the caller, who computes their noise as he would for all.
//
// The noise of an id is g = -log(-log u), u = (k + 0.5) * 2^-52, with k the first 52 bits of words 0 and 1 (even ids)
// or 2 and 3 (odd ids) of Philox4x32-10, counter = (id / 2, position, choice, 0).
//
//     scores, 64 at a time      too low for any noise?             next 64
//     first words of their ids  too low for a bound of the noise?  next 64
//     the few that are left     score + noise against the best so far
//
// Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#include <algorithm>
#include <cmath>

#include "argmax.h"
#include "mtplx_native.h"
#include "simd.h"

namespace mtplx {

namespace {

constexpr int CHUNK = 64;
constexpr float MOST_NOISE = 37.0f;  // 53 log 2, rounded up
constexpr double LEAST_BEST = -4.0;  // some score is 0, and the least noise is -log(53 log 2) = -3.6
constexpr double MARGIN = 1e-3;      // over all rounding errors here, those of float32 numbers below 128

struct Key {
    uint64_t seed;
    uint32_t position, choice;
};

// Whose scores they are: NULL means 0, 1, 2, ...
inline int32_t id_at(const int32_t *token_ids, int32_t place) { return token_ids ? token_ids[place] : place; }

// words[0..3] of the counters (pairs, position, choice, 0), for one pair of ids or a vector of them.
template <class Pairs>
inline void philox(const Key &key, Pairs pairs, Pairs *words) {
    const Pairs zero = {};
    const Pairs first_multiplier = zero + uint64_t(0xd2511f53), second_multiplier = zero + uint64_t(0xcd9e8d57);
    Pairs a = pairs, b = zero + key.position, c = zero + key.choice, d = zero;
    uint32_t first_key = static_cast<uint32_t>(key.seed), second_key = static_cast<uint32_t>(key.seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {  // upper halves fill up with what no product reads
        const Pairs first = multiply_halves(a, first_multiplier), second = multiply_halves(c, second_multiplier);
        a = (second >> 32) ^ b ^ uint64_t(first_key);
        b = second;
        c = (first >> 32) ^ d ^ uint64_t(second_key);
        d = first;
        first_key += 0x9e3779b9;
        second_key += 0xbb67ae85;
    }
    for (Pairs *word : {&a, &b, &c, &d}) *words++ = *word & uint64_t(0xffffffff);
}

// The first words of LANES ids, in their order: those from an even one on, or any.
inline Ints first_words_from(const Key &key, int32_t id) {
    Longs pairs, words[4];
    for (int i = 0; i < LANES / 2; i++) pairs[i] = id / 2 + i;
    philox(key, pairs, words);
    return (Ints)(words[0] | words[2] << 32);
}

inline Ints first_words_of(const Key &key, const int32_t *ids) {
    Ints found;
    for (int half = 0; half < LANES; half += LANES / 2) {
        Longs pairs, words[4];
        for (int i = 0; i < LANES / 2; i++) pairs[i] = ids[half + i] / 2;
        philox(key, pairs, words);
        for (int i = 0; i < LANES / 2; i++) found[half + i] = int32_t(words[ids[half + i] % 2 * 2][i]);
    }
    return found;
}

// At least the noise of those ids. With c the upper 24 bits of the first word's complement:
//
//     -log(-log u) <= -log(1 - u), since -log u >= 1 - u;   1 - u > c / 2^24;   log2 c >= bits of float(c) / 2^23 - 127
//
// The bits of a float, read as a number, are its logarithm with a straight line from one power of two to the next. For
// c = 0 they say -127, which is low enough.
inline Floats noise_bounds(Ints first_words) {
    const Floats complement = to_floats((~first_words >> 8) & 0xffffff);
    const float log_2 = 0.693147181f;
    return multiply_add(to_floats((Ints)complement), splat(-log_2 / 8388608), splat((24 + 127) * log_2));
}

// The places that could win, ascending, in the caller's arrays.
class Candidates {
public:
    Candidates(const Key &key, int32_t *places, uint64_t *bits) : key_(key), places_(places), bits_(bits) {}

    // What is below loses.
    double bar() const { return bar_; }
    int32_t count() const { return count_; }

    void consider(int32_t place, int32_t id, double score) {
        uint64_t words[4];
        philox(key_, uint64_t(id / 2), words);
        const uint64_t bits = words[id % 2 * 2] << 20 | words[id % 2 * 2 + 1] >> 12;
        const double value = score - std::log(-std::log((static_cast<double>(bits) + 0.5) * 0x1p-52));
        if (value < bar_) return;
        places_[count_] = place;
        bits_[count_++] = bits;
        bar_ = std::max(bar_, value - MARGIN);
    }

private:
    const Key key_;
    int32_t *places_;
    uint64_t *bits_;
    int32_t count_ = 0;
    double bar_ = LEAST_BEST;
};

// Scores as they are given, and those that logits come to.
struct GivenScores {
    const double *scores;

    double at(int32_t place) const { return scores[place]; }
    Floats about(int32_t place) const { return load(scores + place); }  // of LANES places
};

struct LogitScores {
    const float *logits;
    float largest;
    double temperature;

    double at(int32_t place) const { return (double(logits[place]) - double(largest)) / temperature; }
    Floats about(int32_t place) const { return (load(logits + place) - splat(largest)) * splat(float(1 / temperature)); }
};

// Places [first, end), a multiple of LANES of them.
template <class Scores>
void consider_chunk(const Key &key, const Scores &scores, const int32_t *token_ids, int32_t first, int32_t end,
                    Candidates &candidates) {
    alignas(64) float bounds[CHUNK];
    Floats top = splat(-HUGE_VALF);
    for (int32_t place = first; place < end; place += LANES) {
        const Floats score = scores.about(place);
        store(bounds + place - first, score);
        top = larger(top, score);
    }
    if (largest_of(top) + MOST_NOISE < candidates.bar()) return;
    top = splat(-HUGE_VALF);
    for (int32_t place = first; place < end; place += LANES) {
        const Ints words = token_ids ? first_words_of(key, token_ids + place) : first_words_from(key, place);
        const Floats bound = load(bounds + place - first) + noise_bounds(words);
        store(bounds + place - first, bound);
        top = larger(top, bound);
    }
    if (largest_of(top) < candidates.bar()) return;
    for (int32_t place = first; place < end; place++)
        if (bounds[place - first] >= candidates.bar())
            candidates.consider(place, id_at(token_ids, place), scores.at(place));
}

template <class Scores>
void consider_all(const Key &key, const Scores &scores, int32_t count, const int32_t *token_ids,
                  Candidates &candidates) {
    const int32_t whole = count / LANES * LANES;
    for (int32_t first = 0; first < whole; first += CHUNK)
        consider_chunk(key, scores, token_ids, first, std::min(first + CHUNK, whole), candidates);
    for (int32_t place = whole; place < count; place++)
        if (scores.at(place) + MOST_NOISE >= candidates.bar())
            candidates.consider(place, id_at(token_ids, place), scores.at(place));
}

}  // namespace

}  // namespace mtplx

extern "C" int32_t mtplx_draw_candidates(const double *scores, int32_t count, const int32_t *token_ids, uint64_t seed,
                                         uint32_t position, uint32_t choice, int32_t *places, uint64_t *bits) {
    using namespace mtplx;
    const Key key = {seed, position, choice};
    Candidates candidates(key, places, bits);
    consider_all(key, GivenScores{scores}, count, token_ids, candidates);
    return candidates.count();
}

extern "C" int32_t mtplx_draw_candidates_of_logits(const float *logits, int32_t count, double temperature,
                                                   const int32_t *token_ids, uint64_t seed, uint32_t position,
                                                   uint32_t choice, int32_t *places, uint64_t *bits, double *scores) {
    using namespace mtplx;
    Largest largest;
    for (int32_t first = 0; first < count; first += CHUNK)
        largest.see(logits + first, first, std::min(CHUNK, count - first));
    if (largest.index() < 0) return 0;
    const LogitScores found = {logits, logits[largest.index()], temperature};
    const Key key = {seed, position, choice};
    Candidates candidates(key, places, bits);
    consider_all(key, found, count, token_ids, candidates);
    for (int32_t i = 0; i < candidates.count(); i++) scores[i] = found.at(places[i]);
    return candidates.count();
}
