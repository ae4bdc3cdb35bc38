// Rest height and stability of boxes: the maximum of the heightmap under each, from power-of-two windows, and the
// contact with the pile for as many neighbouring placements as a vector holds.
#pragma once

#include "lanes.h"
#include "problem.h"
#include "stability.h"

// One bin with the maxima over 1, 2, 4, … rows from each row on: two of them cover a box of any length.
class BoxBin {
   public:
    using L = Lanes<float>;
    using Floats = Vector<float>;

    void take(const Problem& p, int64_t env, uint64_t call) {
        if (env == env_ && call == call_) return;
        env_ = env, call_ = call;
        vectors_ = (p.cells_y + L::count - 1) / L::count;
        pitch_ = (vectors_ + 1) * L::count + p.columns;  // a shifted vector reads past the end of a row
        made_ = 1;
        heights_ = p.heightmap + env * p.area();
        heights_pitch_ = p.cells_y;
        if ((p.envs - env - 1) * p.area() >= L::count + p.columns) return;
        float* copy = heights_copy_.at_least(p.area() + L::count + p.columns);  // … and past the end of the last bin
        std::memset(copy + p.area(), 0, (L::count + p.columns) * sizeof(float));
        std::memcpy(copy, heights_, p.area() * sizeof(float));
        heights_ = copy;
    }

    // Rest heights, (Gx, Gy), +inf where the box does not fit; a vector behind the last is overwritten.
    void rest(const Problem& p, const Variant& v, float* out) {
        const int64_t lines = v.y.fitting ? v.x.fitting : 0;  // what does not fit, no window here holds either
        const int64_t length = std::min(v.x.extent, p.cells_x);
        int level = 0;
        while ((int64_t(2) << level) <= length) level++;
        make_levels(p, level);
        const int64_t second = (length - (int64_t(1) << level)) * pitch(level);
        const float* from = rows(p, level);
        for (int64_t g = 0; g < lines; g++) {
            const float* near = from + v.x.position(g, p.step) * pitch(level);
            if (vectors_ == 1)
                narrow(p, v, highest(near, near + second), out + g * p.grid_y);
            else
                wide(p, v, near, near + second, out + g * p.grid_y);
        }
        std::fill(out + lines * p.grid_y, out + p.plane(), INFINITY);
    }

    // Removes from `legal` the placements that are not stable; `z` is the result of `rest`.
    void judge(const Problem& p, const Variant& v, const float* z, uint8_t* legal) {
        const Shares shares(v.x.extent * v.y.extent);
        for (int64_t gx = 0; gx < v.x.fitting; gx++) {
            const float* line = heights_ + v.x.position(gx, p.step) * heights_pitch_;
            const float* z_row = z + gx * p.grid_y;
            uint8_t* row = legal + gx * p.grid_y;
            if (p.step == 1)
                judge_row(p, v, shares, line, z_row, row);
            else
                for (int64_t gy = 0; gy < v.y.fitting; gy++)
                    if (row[gy] && z_row[gy] > p.tolerance)
                        row[gy] = stands(contact(p, v, line + v.y.position(gy, p.step), z_row[gy]), shares);
        }
    }

   private:
    typedef int32_t Counts __attribute__((vector_size(VECTOR_BYTES)));

    static INLINE Floats higher(Floats a, Floats b) { return a > b ? a : b; }
    static INLINE Floats highest(const float* a, const float* b) { return higher(L::load(a), L::load(b)); }

    Contact contact(const Problem& p, const Variant& v, const float* under, float z) const {
        return {p, v, under, heights_pitch_, z - p.gap};
    }

    int64_t pitch(int level) const { return level ? pitch_ : heights_pitch_; }
    const float* rows(const Problem& p, int level) const {
        return level ? levels_.data() + (level - 1) * p.cells_x * pitch_ : heights_;
    }

    void make_levels(const Problem& p, int level) {
        int most = 0;
        while ((int64_t(2) << most) <= std::min(p.rows, p.cells_x)) most++;
        levels_.at_least(most * p.cells_x * pitch_ + pitch_);
        for (; made_ <= level; made_++) {
            const int64_t half = int64_t(1) << (made_ - 1);
            const float* from = rows(p, made_ - 1);
            float* to = levels_.data() + (made_ - 1) * p.cells_x * pitch_;
            for (int64_t x = 0; x + 2 * half <= p.cells_x; x++)
                for (int64_t c = 0; c < vectors_ * L::count; c += L::count) {
                    const float* near = from + x * pitch(made_ - 1) + c;
                    L::store(to + x * pitch_ + c, highest(near, near + half * pitch(made_ - 1)));
                }
        }
    }

    // A row that fits into one vector: shifts stay in registers.
    INLINE void narrow(const Problem& p, const Variant& v, Floats row, float* out) {
        int64_t length = 1;
        for (; 2 * length <= v.y.extent; length *= 2) row = higher(row, ahead(row, length));
        if (v.y.extent > length) row = higher(row, ahead(row, v.y.extent - length));
        put(p, v, out, [&](int64_t) { return row; });
    }

    void wide(const Problem& p, const Variant& v, const float* near, const float* far, float* out) {
        float* row = width_.at_least(pitch_);
        for (int64_t c = 0; c < vectors_ * L::count; c += L::count) L::store(row + c, highest(near + c, far + c));
        int64_t length = 1;
        for (; 2 * length <= v.y.extent; length *= 2) widen(row, length);
        if (v.y.extent > length) widen(row, v.y.extent - length);
        put(p, v, out, [&](int64_t c) { return L::load(row + c); });
    }

    INLINE void widen(float* row, int64_t shift) {
        for (int64_t c = 0; c < vectors_ * L::count; c += L::count) L::store(row + c, highest(row + c, row + c + shift));
    }

    // Picks the placements out of a row of cells, +inf behind those that fit.
    template <class Row>
    INLINE void put(const Problem& p, const Variant& v, float* out, const Row& row) {
        if (p.step == 1) {
            Counts lane;
            for (int i = 0; i < L::count; i++) lane[i] = i;
            for (int64_t c = 0; c < p.grid_y; c += L::count) {
                const Floats nothing = L::all(INFINITY);
                L::store(out + c, lane + int32_t(c) < int32_t(v.y.fitting) ? row(c) : nothing);
            }
            return;
        }
        float* cells = picked_.at_least(pitch_);
        for (int64_t c = 0; c < vectors_ * L::count; c += L::count) L::store(cells + c, row(c));
        for (int64_t g = 0; g < v.y.fitting; g++) out[g] = cells[v.y.position(g, p.step)];
        std::fill(out + v.y.fitting, out + p.grid_y, INFINITY);
    }

    // Lane i of the result is lane i + shift; the last ones mean nothing.
    static INLINE Floats ahead(Floats row, int64_t shift) {
#if defined(__AVX512F__)
        const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return (Floats)_mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(int(shift))), (__m512)row);
#elif defined(__AVX2__)
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return (Floats)_mm256_permutevar8x32_ps((__m256)row, _mm256_add_epi32(lanes, _mm256_set1_epi32(int(shift))));
#else
        float cells[2 * L::count] = {};
        L::store(cells, row);
        return L::load(cells + shift % L::count);
#endif
    }

    // The placements of one row, a vector of neighbours at a time.
    void judge_row(const Problem& p, const Variant& v, const Shares& shares, const float* line, const float* z,
                   uint8_t* legal) const {
        for (int64_t c = 0; c < v.y.fitting; c += L::count) {
            const int64_t end = std::min<int64_t>(L::count, v.y.fitting - c);
            bool open = false;
            for (int64_t lane = 0; lane < end; lane++) open |= legal[c + lane] && z[c + lane] > p.tolerance;
            if (!open) continue;
            const Floats level = L::load(z + c) - p.gap;
            Counts count = {};
            for (int64_t i = 0; p.rule != Rule::com && i < v.x.extent; i++) {
                const float* cell = line + i * heights_pitch_ + c;
                for (int64_t j = 0; j < v.y.extent; j++) count -= L::load(cell + j) >= level;
            }
            const float* last = line + (v.x.extent - 1) * heights_pitch_ + c;
            const int64_t j = v.y.extent - 1;
            const Counts held[4] = {L::load(line + c) >= level, L::load(last + j) >= level,
                                    L::load(line + c + j) >= level, L::load(last) >= level};
            const Counts corners = -(held[0] + held[1] + held[2] + held[3]);
            const Counts diagonal = (held[0] & held[1]) | (held[2] & held[3]);  // the centre is on it
            for (int64_t lane = 0; lane < end; lane++) {
                if (!legal[c + lane] || z[c + lane] <= p.tolerance) continue;
                static_assert(NUM_RULES == 4, "a row of boxes is judged by corners, com and support");
                if (p.rule == Rule::corners)
                    legal[c + lane] = shares.enough(count[lane], corners[lane]);
                else if (p.rule == Rule::com)
                    legal[c + lane] = diagonal[lane] || stands(contact(p, v, line + c + lane, z[c + lane]), shares);
                else
                    legal[c + lane] = count[lane] > shares.half ||
                                      (count[lane] >= 2 &&
                                       (diagonal[lane] || centre_in_hull(contact(p, v, line + c + lane, z[c + lane]))));
            }
        }
    }

    int64_t env_ = -1, vectors_ = 0, pitch_ = 0, heights_pitch_ = 0;
    uint64_t call_ = 0;
    int made_ = 0;
    const float* heights_ = nullptr;
    Scratch<float> heights_copy_, levels_, width_, picked_;
};

// Rest heights and legal placements of one variant in a bin that `bin` has taken, (Gx, Gy) each.
inline void drop_box(const Problem& p, const Variant& v, BoxBin& bin, Scratch<float>& plane, float* __restrict z,
                     uint8_t* __restrict legal) {
    float* __restrict rest = plane.at_least(p.plane() + 2 * Lanes<float>::count);
    bin.rest(p, v, rest);
    const float limit = p.ceiling + p.tolerance, ceiling = p.ceiling, height = v.height;
    const int64_t plane_size = p.plane();
    for (int64_t i = 0; i < plane_size; i++) z[i] = rest[i] < INFINITY ? rest[i] : ceiling;
    for (int64_t i = 0; i < plane_size; i++) legal[i] = rest[i] + height <= limit;
    if (p.rule != Rule::none) bin.judge(p, v, rest, legal);
}
