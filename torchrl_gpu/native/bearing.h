// The stability rule `load_bearing` of boxes: see kernels/bearing.py. The heightmaps of a problem here are −inf in cells that
// bear no load.
#pragma once

#include <vector>

#include "lanes.h"
#include "stability.h"

// Half a side of the rectangle that the contacts of a box must hold, sixteenths of a cell.
inline int64_t half_side(int64_t margin, const Axis& axis) {
    return std::max<int64_t>(0, std::min(margin, 4 * axis.extent) - 8);
}

// Placements of one box in one bin, by the rule.
class Bearing {
   public:
    Bearing(const Problem& p, int64_t env, const Variant& v, const int64_t* margin)
        : p_(p), v_(v), half_x_(half_side(margin[0], v.x)), half_y_(half_side(margin[1], v.y)) {
        // Vectors of neighbouring placements read past the end of a row, and of the bin.
        thread_local std::vector<float> copy;
        copy.assign(p.heightmap + env * p.area(), p.heightmap + (env + 1) * p.area());
        copy.resize(p.area() + v.y.extent + L::count, -INFINITY);
        heights_ = copy.data();
    }

    // Those that are legal, and stable; planes are (Gx, Gy).
    void judge(const float* z, const uint8_t* legal, uint8_t* out) const {
        std::memset(out, 0, p_.plane());
        for (int64_t gx = 0; gx < v_.x.fitting && v_.y.fitting; gx++) {
            const float* line = heights_ + v_.x.position(gx, p_.step) * p_.cells_y;
            for (int64_t gy = 0; gy < v_.y.fitting; gy += L::count) {
                const int64_t at = gx * p_.grid_y + gy, lanes = std::min<int64_t>(L::count, v_.y.fitting - gy);
                Flags around = Flags{} - 1, corners{};
                if (p_.step == 1) look_around(line + gy, z + at, lanes, around, corners);
                for (int64_t lane = 0; lane < lanes; lane++) {
                    if (!legal[at + lane] || !around[lane]) continue;
                    const float* under = line + v_.y.position(gy + lane, p_.step);
                    const Contact contact{p_, v_, under, p_.cells_y, z[at + lane] - p_.gap};
                    out[at + lane] = corners[lane] || hull_holds<2>(contact, half_x_, half_y_);
                }
            }
        }
    }

   private:
    using L = Lanes<float>;
    typedef int32_t Flags __attribute__((vector_size(VECTOR_BYTES)));

    // For neighbouring placements: whether there is contact beyond each side of the rectangle, as there must be; and
    // whether all corners of the box are in contact, which is enough.
    void look_around(const float* cells, const float* z, int64_t lanes, Flags& around, Flags& corners) const {
        float levels[L::count];
        for (int64_t i = 0; i < L::count; i++) levels[i] = z[std::min(i, lanes - 1)] - p_.gap;
        const Vector<float> level = L::load(levels);
        const int64_t rows = v_.x.extent, columns = v_.y.extent;
        const int64_t outer = (8 * rows - half_x_ - 8) / 16 + 1, side = (8 * columns - half_y_ - 8) / 16 + 1;
        Flags above{}, below{}, left{}, right{};
        for (int64_t i = 0; i < rows; i++) {
            const float* row = cells + i * p_.cells_y;
            const bool is_above = i < outer, is_below = i >= rows - outer;
            Flags near{}, middle{}, far{};
            for (int64_t j = 0; j < side; j++) near |= L::load(row + j) >= level;
            for (int64_t j = side; j < columns - side && (is_above || is_below); j++) middle |= L::load(row + j) >= level;
            for (int64_t j = columns - side; j < columns; j++) far |= L::load(row + j) >= level;
            left |= near, right |= far;
            if (is_above) above |= near | middle | far;
            if (is_below) below |= near | middle | far;
        }
        around = above & below & left & right;
        const float* last = cells + (rows - 1) * p_.cells_y;
        corners = (L::load(cells) >= level) & (L::load(cells + columns - 1) >= level) & (L::load(last) >= level) &
                  (L::load(last + columns - 1) >= level);
    }

    const Problem& p_;
    const Variant& v_;
    const int64_t half_x_, half_y_;
    const float* heights_;
};

// One end of each row inside the convex hull of contacts: `furthest` (rows,) is 1 + the furthest contact towards that end,
// 0 for none, and becomes 1 + the furthest cell.
inline void fill_hull(std::vector<int64_t>& furthest) {
    std::vector<int64_t> corners;  // rows of the hull's corners, in order
    for (int64_t i = 0; i < int64_t(furthest.size()); i++) {
        if (!furthest[i]) continue;
        while (corners.size() > 1) {  // the last one is none if it lies on or inside the line past it
            const int64_t a = corners[corners.size() - 2], b = corners.back();
            if ((furthest[b] - furthest[a]) * (i - a) > (furthest[i] - furthest[a]) * (b - a)) break;
            corners.pop_back();
        }
        corners.push_back(i);
    }
    for (size_t k = 0; k + 1 < corners.size(); k++) {
        const int64_t a = corners[k], b = corners[k + 1];
        for (int64_t i = a + 1; i < b; i++)  // both are positive: the division rounds down
            furthest[i] = (furthest[a] * (b - i) + furthest[b] * (i - a)) / (b - a);
    }
}

// Marks the cells under a box that is placed at (x, y, z) by whether its top bears load there.
inline void mark_bearing(const Problem& p, const Variant& v, int64_t x, int64_t y, float z, const float* heights,
                         uint8_t* bears) {
    const int64_t width = v.y.extent;
    std::vector<int64_t> end(v.x.extent), start(v.x.extent);
    const Contact contact{p, v, heights + x * p.cells_y + y, p.cells_y, z - p.gap};
    for (int64_t i = 0; i < v.x.extent; i++) {
        int64_t first, last;
        if (contact.span(i, first, last)) end[i] = last + 1, start[i] = width - first;
    }
    fill_hull(end);
    fill_hull(start);
    for (int64_t i = 0; i < v.x.extent; i++)
        for (int64_t j = 0; j < width; j++) bears[(x + i) * p.cells_y + y + j] = j < end[i] && width - j <= start[i];
}
