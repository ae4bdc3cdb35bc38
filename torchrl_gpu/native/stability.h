// Stability of placements: the rules of reference.py, one placement at a time.
#pragma once

#include "hull.h"
#include "lanes.h"
#include "problem.h"

// Contact of an item at a given place with the pile: the cells at which it touches.
struct Contact {
    const Problem& p;
    const Variant& v;
    const float* heights;  // under the corner of the footprint
    int64_t pitch;         // from one row to the next
    float level;           // contact is at or above it, or lower by the larger of two `drops`, which are null for none
    const float* row_drops = nullptr;
    const float* column_drops = nullptr;

    const float* bottom(int64_t i) const { return p.bottom + (v.row * p.rows + i) * p.columns; }

    bool at(int64_t i, int64_t j) const {
        const float h = heights[i * pitch + j];
        if (row_drops) return h >= level - std::max(row_drops[i], column_drops[j]);
        return (p.flat() ? h : h - bottom(i)[j]) >= level;
    }

    int64_t in_row(int64_t i) const {
        const float* h = heights + i * pitch;
        int32_t count = 0;
        if (p.flat()) {
            for (int64_t j = 0; j < v.y.extent; j++) count += h[j] >= level;
        } else {
            const float* b = bottom(i);
            for (int64_t j = 0; j < v.y.extent; j++) count += h[j] - b[j] >= level;
        }
        return count;
    }

    // The first and the last cell of a row that touch; false for none.
    bool span(int64_t i, int64_t& first, int64_t& last) const {
        const int64_t behind = v.y.extent - Lanes<float>::count;  // where the last vector of the row begins
        if (p.flat() && behind >= 0) {
            int64_t from = 0;
            uint32_t touching;
            while ((touching = vector_at(i, from)) == 0) {
                if (from == behind) return false;
                from = std::min<int64_t>(from + Lanes<float>::count, behind);
            }
            first = from + __builtin_ctz(touching);
            for (from = behind; (touching = vector_at(i, from)) == 0;)
                from = std::max<int64_t>(from - Lanes<float>::count, 0);
            last = from + 31 - __builtin_clz(touching);
            return true;
        }
        first = 0, last = v.y.extent - 1;
        while (first <= last && !at(i, first)) first++;
        while (first < last && !at(i, last)) last--;
        return first <= last;
    }

    // Bits of the cells of a box from cell (i, j) on that touch, as many as a vector holds.
    uint32_t vector_at(int64_t i, int64_t j) const {
        using L = Lanes<float>;
        const Vector<float> here = L::load(heights + i * pitch + j);
        if (!row_drops) return bits_of(here >= L::all(level));
        const Vector<float> row = L::all(row_drops[i]), column = L::load(column_drops + j);
        return bits_of(here >= L::all(level) - (row > column ? row : column));
    }

    int64_t count() const {
        int64_t total = 0;
        for (int64_t i = 0; i < v.x.extent; i++) total += in_row(i);
        return total;
    }
};

// True if the convex hull of the contact cells' centres holds a rectangle around the centre of the footprint; half sides
// in sixteenths of a cell. On the rectangle's first and last row, two EDGES, or its only one, the hull reaches as far.
template <int EDGES>
bool hull_holds(const Contact& c, int64_t half_x, int64_t half_y) {
    constexpr int reaches = 2 * EDGES;
    Steepest before[reaches], behind[reaches];  // towards the end of the row, towards its start, for each edge
    bool held[reaches] = {};
    for (int64_t i = 0; i < c.v.x.extent; i++) {
        int64_t first, last;
        if (!c.span(i, first, last)) continue;
        const int64_t end = 16 * last + 8 - (8 * c.v.y.extent + half_y), start = 8 * c.v.y.extent - half_y - 16 * first - 8;
        for (int k = 0; k < reaches; k++) {
            const int64_t edge = 8 * c.v.x.extent + (k < 2 ? -half_x : half_x), ahead = 16 * i + 8 - edge;
            const int64_t reach = k % 2 ? start : end;
            if (ahead == 0) held[k] |= reach >= 0;
            if (ahead < 0) before[k].take(reach, -ahead);
            if (ahead > 0) behind[k].take(reach, ahead);
        }
    }
    bool all = true;
    for (int k = 0; k < reaches; k++) all &= held[k] || before[k].meets(behind[k]);
    return all;
}

inline bool centre_in_hull(const Contact& c) { return hull_holds<1>(c, 0, 0); }

// True if the centre of the footprint lies in the square of a contact cell: of one, two or four around it.
inline bool centre_in_square(const Contact& c) {
    bool held = false;
    for (int64_t i = (c.v.x.extent - 1) / 2; i <= c.v.x.extent / 2; i++)
        for (int64_t j = (c.v.y.extent - 1) / 2; j <= c.v.y.extent / 2; j++) held |= c.at(i, j);
    return held;
}

// Share of the material that touches, decided on counts: more than 95, 85 and 50 % of the cells.
struct Shares {
    int64_t nearly_all, most, half;

    explicit Shares(int64_t cells) : nearly_all(at_most(cells, 0.95)), most(at_most(cells, 0.85)), half(cells / 2) {}
    bool enough(int64_t count, int corners) const {
        return count > nearly_all || (corners == 3 && count > most) || (corners == 4 && count > half);
    }

   private:
    static int64_t at_most(int64_t cells, double share) {  // the largest count that is not more than the share
        int64_t count = int64_t(share * double(cells)) + 1;
        while (double(count) / double(cells) > share) count--;
        return count;
    }
};

static_assert(NUM_RULES == 4, "`stands` and `judge` know none, corners, support and com");
inline bool stands(const Contact& c, const Shares& shares) {
    if (c.p.rule == Rule::com) return centre_in_square(c) || centre_in_hull(c);
    const int64_t count = c.count();
    if (c.p.rule == Rule::support) return count > shares.half || (count >= 2 && centre_in_hull(c));
    if (count <= shares.half) return false;
    const int64_t i = c.v.x.extent - 1, j = c.v.y.extent - 1;
    return shares.enough(count, c.at(0, 0) + c.at(0, j) + c.at(i, 0) + c.at(i, j));
}

// Cells with material of one irregular item.
inline int64_t material_cells(const Problem& p, const Variant& v) {
    int64_t count = 0;
    for (int64_t i = 0; i < v.x.extent; i++)
        for (int64_t j = 0; j < v.y.extent; j++)
            count += p.bottom[(v.row * p.rows + i) * p.columns + j] < std::numeric_limits<float>::infinity();
    return std::max<int64_t>(count, 1);
}

// Fills `legal` of the placements of `region` of an irregular item from their rest heights, but for `com`; planes are
// (Gx, Gy).
inline void judge(const Problem& p, int64_t env, const Variant& v, Region region, const float* z, uint8_t* legal) {
    const float limit = p.ceiling + p.tolerance;
    const float* heights = p.heightmap + env * p.area();
    const bool judged = p.rule == Rule::corners || p.rule == Rule::support;
    const Shares shares(judged ? material_cells(p, v) : 1);
    for (int64_t gx = region.x0; gx < region.x1; gx++) {
        const float* z_row = z + gx * p.grid_y;
        uint8_t* row = legal + gx * p.grid_y;
        for (int64_t gy = region.y0; gy < region.y1; gy++) row[gy] = z_row[gy] + v.height <= limit;
        if (!judged) continue;
        const float* line = heights + v.x.position(gx, p.step) * p.cells_y;
        for (int64_t gy = region.y0; gy < region.y1; gy++)
            if (row[gy] && z_row[gy] > p.tolerance)  // too tall is out; every item is stable on the floor
                row[gy] = stands({p, v, line + v.y.position(gy, p.step), p.cells_y, z_row[gy] - p.gap}, shares);
    }
}
