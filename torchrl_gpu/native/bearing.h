// The stability rule `load_bearing` of boxes: see kernels/bearing.py. The heightmaps of a problem here are −inf in cells that
// bear no load.
#pragma once

#include <vector>

#include "boxes.h"
#include "stability.h"

// Half a side of the rectangle that the contacts of a box must hold, sixteenths of a cell.
inline int64_t half_side(int64_t margin, const Axis& axis) {
    return std::max<int64_t>(0, std::min(margin, 4 * axis.extent) - 8);
}

// The placements of one box in one bin that are legal, and stable by the rule; planes are (Gx, Gy). Where the grid is that
// of the cells, there must first be contact beyond each side of the rectangle: maxima over two windows of `bin` say so.
class Bearing {
   public:
    Bearing(const Problem& p, int64_t env, const Variant& v, const int64_t* margin, BoxBin& bin)
        : p_(p), v_(v), half_x_(half_side(margin[0], v.x)), half_y_(half_side(margin[1], v.y)),
          heights_(p.heightmap + env * p.area()) {
        if (p.step > 1 || !v.x.fitting || !v.y.fitting) return;
        rows_ = (8 * v.x.extent - half_x_ - 8) / 16 + 1, columns_ = (8 * v.y.extent - half_y_ - 8) / 16 + 1;
        Variant rows = v, columns = v;
        rows.x = Axis(rows_, p.cells_x, p.step, p.grid_x), columns.y = Axis(columns_, p.cells_y, p.step, p.grid_y);
        const int64_t room = p.plane() + Lanes<float>::count;
        of_rows_ = of_rows().at_least(room), of_columns_ = of_columns().at_least(room);
        bin.rest(p, rows, of_rows_);
        bin.rest(p, columns, of_columns_);
    }

    void judge(const float* z, const uint8_t* legal, uint8_t* out) const {
        std::memset(out, 0, p_.plane());
        for (int64_t gx = 0; gx < v_.x.fitting; gx++)
            for (int64_t gy = 0; gy < v_.y.fitting; gy++) {
                const int64_t at = gx * p_.grid_y + gy;
                const float level = z[at] - p_.gap;
                if (!legal[at] || !around(at, level)) continue;
                const float* under = heights_ + v_.x.position(gx, p_.step) * p_.cells_y + v_.y.position(gy, p_.step);
                const Contact contact{p_, v_, under, p_.cells_y, level};
                const int64_t i = v_.x.extent - 1, j = v_.y.extent - 1;
                out[at] = (contact.at(0, 0) && contact.at(0, j) && contact.at(i, 0) && contact.at(i, j)) ||
                          hull_holds<2>(contact, half_x_, half_y_);
            }
    }

   private:
    static Scratch<float>& of_rows() {
        thread_local Scratch<float> map;
        return map;
    }
    static Scratch<float>& of_columns() {
        thread_local Scratch<float> map;
        return map;
    }

    bool around(int64_t at, float level) const {
        if (p_.step > 1) return true;
        return of_rows_[at] >= level && of_rows_[at + (v_.x.extent - rows_) * p_.grid_y] >= level &&
               of_columns_[at] >= level && of_columns_[at + v_.y.extent - columns_] >= level;
    }

    const Problem& p_;
    const Variant& v_;
    const int64_t half_x_, half_y_;
    const float* heights_;
    int64_t rows_ = 0, columns_ = 0;  // of the contacts beyond a side
    float *of_rows_ = nullptr, *of_columns_ = nullptr;
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
