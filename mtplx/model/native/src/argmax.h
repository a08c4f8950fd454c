// Where the largest of many numbers is, found by several threads that each see a part, in pieces and in any order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace mtplx {

// Aligned so that two threads never write to the same cache line.
class alignas(64) Largest {
public:
    // `values` are those of the indices begin, begin + 1, ..
    void see(const float *values, int32_t begin, int32_t count) {
        int32_t is_news = 0;
        for (int32_t i = 0; i < count; i++) is_news |= !(values[i] < value_);  // NaN too
        if (!is_news) return;
        for (int32_t i = 0; i < count; i++) add(values[i], begin + i);
    }

    void join(const Largest &other) {
        has_nan_ |= other.has_nan_;
        add(other.value_, other.index_);
    }

    // The first index of the largest value; -1 where there is a NaN or no finite largest one.
    int32_t index() const { return has_nan_ || !std::isfinite(value_) ? -1 : index_; }

private:
    void add(float value, int32_t index) {
        if (std::isnan(value)) has_nan_ = true;
        if (value > value_ || (value == value_ && index < index_)) {
            value_ = value;
            index_ = index;
        }
    }

    float value_ = -std::numeric_limits<float>::infinity();
    int32_t index_ = std::numeric_limits<int32_t>::max();
    bool has_nan_ = false;
};

}  // namespace mtplx
