// Where boxes come to rest: the maximum of the heightmap under each, from windows of a power of two.
#pragma once

#include "lanes.h"
#include "problem.h"

// One bin with the maxima over 1, 2, 4, … rows from each row on: whatever a box's length, two of them cover it.
class BoxBin {
   public:
    using L = Lanes<float>;

    void take(const Problem& p, int64_t env, uint64_t call) {
        if (env == env_ && call == call_) return;
        env_ = env, call_ = call;
        vectors_ = (p.cells_y + L::count - 1) / L::count;
        pitch_ = (vectors_ + 1) * L::count + p.columns;  // what a shifted vector reads past the end of a row
        int levels = 1;
        while ((int64_t(1) << levels) <= std::min(p.rows, p.cells_x)) levels++;
        levels_.at_least(levels * p.cells_x * pitch_);
        width_.at_least(p.grid_x * pitch_);
        made_ = 1;
        for (int64_t x = 0; x < p.cells_x; x++) {
            float* row = levels_.data() + x * pitch_;
            std::memcpy(row, p.heightmap + env * p.area() + x * p.cells_y, p.cells_y * sizeof(float));
            std::memset(row + p.cells_y, 0, (pitch_ - p.cells_y) * sizeof(float));
        }
    }

    // Rest heights of the placements that fit; rows of `out` are Gy apart, and a vector beyond the last is overwritten.
    void rest(const Problem& p, const Variant& v, float* out) {
        int level = 0;
        while ((int64_t(2) << level) <= v.x.extent) level++;
        make_levels(p, level);
        const int64_t rest = v.x.extent - (int64_t(1) << level);
        const float* from = levels_.data() + level * p.cells_x * pitch_;
        for (int64_t g = 0; g < v.x.fitting; g++) {
            const float* near = from + v.x.position(g, p.step) * pitch_;
            highest(near, near + rest * pitch_, width_.data() + g * pitch_);
        }
        int64_t length = 1;
        for (; 2 * length <= v.y.extent; length *= 2)
            for (int64_t g = 0; g < v.x.fitting; g++) widen(g, length);
        if (v.y.extent > length)
            for (int64_t g = 0; g < v.x.fitting; g++) widen(g, v.y.extent - length);
        for (int64_t g = 0; g < v.x.fitting; g++) pick(p, v, width_.data() + g * pitch_, out + g * p.grid_y);
    }

   private:
    static INLINE Vector<float> higher(Vector<float> a, Vector<float> b) { return a > b ? a : b; }

    INLINE void highest(const float* a, const float* b, float* out) const {
        for (int64_t c = 0; c < vectors_; c++)
            L::store(out + c * L::count, higher(L::load(a + c * L::count), L::load(b + c * L::count)));
    }

    INLINE void widen(int64_t g, int64_t shift) {
        float* row = width_.data() + g * pitch_;
        highest(row, row + shift, row);
    }

    void make_levels(const Problem& p, int level) {
        for (; made_ <= level; made_++) {
            const int64_t half = int64_t(1) << (made_ - 1);
            const float* from = levels_.data() + (made_ - 1) * p.cells_x * pitch_;
            float* to = levels_.data() + made_ * p.cells_x * pitch_;
            for (int64_t x = 0; x + 2 * half <= p.cells_x; x++) {
                highest(from + x * pitch_, from + (x + half) * pitch_, to + x * pitch_);
                std::memset(to + x * pitch_ + vectors_ * L::count, 0, (pitch_ - vectors_ * L::count) * sizeof(float));
            }
        }
    }

    INLINE void pick(const Problem& p, const Variant& v, const float* row, float* out) const {
        if (p.step == 1) {
            for (int64_t y = 0; y < v.y.fitting; y += L::count) L::store(out + y, L::load(row + y));
        } else {
            for (int64_t g = 0; g < v.y.fitting; g++) out[g] = row[v.y.position(g, p.step)];
        }
    }

    int64_t env_ = -1, vectors_ = 0, pitch_ = 0;
    uint64_t call_ = 0;
    int made_ = 0;
    Scratch<float> levels_, width_;
};
