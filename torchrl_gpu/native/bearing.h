// The stability rule `load_bearing` of boxes: see stability/load_bearing.py. The heightmaps of a problem here are −inf in cells that
// bear no load.
#pragma once

#include <vector>

#include "boxes.h"
#include "hull.h"
#include "stability.h"

// Half a side of the rectangle that the contacts of a box must hold, sixteenths of a cell.
inline int64_t half_side(int64_t margin, const Axis& axis) {
    return std::max<int64_t>(0, std::min(margin, 4 * axis.extent) - 8);
}

// Metres by which contact with a box may lie lower, of each row and column: see `drops` and `bearing_drops` of
// stability/margins.py. Null where it may not.
class Drops {
   public:
    // Of what holds a box.
    static Drops holding(const Problem& p, const Variant& v) { return Drops(v, p.drop_x, p.drop_y); }
    // Of what a box passes load on to.
    static Drops bearing(const Problem& p, const Variant& v) {
        const Drops made(v, p.bearing_drop_x, p.bearing_drop_y);
        if (made.rows) {
            bound(made.rows, v.x.extent, p.drop_x, p.bearing_slack);
            bound(made.columns, v.y.extent, p.drop_y, p.bearing_slack);
        }
        return made;
    }
    // Of one cell; 0 where contact may not lie lower.
    float at(int64_t row, int64_t column) const { return rows ? std::max(rows[row], columns[column]) : 0.0f; }

    float *rows = nullptr, *columns = nullptr;

   private:
    Drops(const Variant& v, float drop_x, float drop_y) {
        if (drop_x == 0 && drop_y == 0) return;
        thread_local Scratch<float> made[2];
        rows = fill(made[0].at_least(v.x.extent), v.x.extent, drop_x);
        columns = fill(made[1].at_least(v.y.extent), v.y.extent, drop_y);
    }
    static float from_middle(int64_t i, int64_t cells) { return float(std::abs(2 * i + 1 - cells)); }
    static float* fill(float* out, int64_t cells, float drop) {
        for (int64_t i = 0; i < cells; i++) out[i] = from_middle(i, cells) * drop;
        return out;
    }
    static void bound(float* out, int64_t cells, float drop, float slack) {
        for (int64_t i = 0; i < cells; i++) out[i] = std::min(out[i], from_middle(i, cells) * drop + slack);
    }
};

// The placements of one box in one bin that are legal, and stable by the rule; planes are (Gx, Gy). Where the grid is that
// of the cells, maxima over windows of `bin` decide most of them: contact beyond each corner of the rectangle suffices,
// and contact beyond each of its sides is needed.
class Bearing {
   public:
    Bearing(const Problem& p, int64_t env, const Variant& v, const int64_t* margin, BoxBin& bin)
        : p_(p), v_(v), half_x_(half_side(margin[0], v.x)), half_y_(half_side(margin[1], v.y)), drops_(Drops::holding(p, v)),
          heights_(p.heightmap + env * p.area()), windows_(p.step == 1 && v.x.fitting && v.y.fitting) {
        if (!windows_) return;
        const int64_t rows = (8 * v.x.extent - half_x_ - 8) / 16 + 1, columns = (8 * v.y.extent - half_y_ - 8) / 16 + 1;
        of_rows_ = highest(bin, 0, rows, v.y.extent);
        of_columns_ = highest(bin, 1, v.x.extent, columns);
        of_corners_ = highest(bin, 2, rows, columns);
        far_x_ = (v.x.extent - rows) * p.grid_y, far_y_ = v.y.extent - columns;
        least_drop_ = 2 * rows <= v.x.extent && 2 * columns <= v.y.extent ? drops_.at(rows - 1, columns - 1) : 0;
        most_drop_ = drops_.at(0, 0);
    }

    void judge(const float* z, const uint8_t* legal, uint8_t* out) const {
        std::memset(out, 0, p_.plane());
        for (int64_t gx = 0; gx < v_.x.fitting; gx++) {
            const int64_t row = gx * p_.grid_y;
            if (windows_) beyond_corners(row, z, legal, out);
            for (int64_t at = row; at < row + v_.y.fitting; at++)
                if (legal[at] && !out[at]) out[at] = by_hull(gx, at - row, z[at] - p_.gap);
        }
    }

   private:
    // Maxima over windows at each cell, in one of three maps.
    const float* highest(BoxBin& bin, int map, int64_t rows, int64_t columns) const {
        thread_local Scratch<float> maps[3];
        Variant window = v_;
        window.x = Axis(rows, p_.cells_x, p_.step, p_.grid_x), window.y = Axis(columns, p_.cells_y, p_.step, p_.grid_y);
        float* made = maps[map].at_least(p_.plane() + Lanes<float>::count);
        bin.rest(p_, window, made);
        return made;
    }

    void beyond_corners(int64_t row, const float* __restrict z, const uint8_t* __restrict legal,
                        uint8_t* __restrict out) const {
        const float gap = p_.gap, drop = least_drop_, *near = of_corners_, *far = of_corners_ + far_x_;
        const int64_t end = row + v_.y.fitting, far_y = far_y_;
        for (int64_t at = row; at < end; at++) {
            const float level = z[at] - gap - drop;
            out[at] = (legal[at] != 0) & (near[at] >= level) & (near[at + far_y] >= level) & (far[at] >= level) &
                      (far[at + far_y] >= level);
        }
    }

    bool by_hull(int64_t gx, int64_t gy, float level) const {
        const int64_t at = gx * p_.grid_y + gy, i = v_.x.extent - 1, j = v_.y.extent - 1;
        const float lowest = level - most_drop_;
        if (windows_ && !(of_rows_[at] >= lowest && of_rows_[at + far_x_] >= lowest && of_columns_[at] >= lowest &&
                          of_columns_[at + far_y_] >= lowest))
            return false;
        const float* under = heights_ + v_.x.position(gx, p_.step) * p_.cells_y + v_.y.position(gy, p_.step);
        const Contact contact{p_, v_, under, p_.cells_y, level, drops_.rows, drops_.columns};
        if (!windows_ && contact.at(0, 0) && contact.at(0, j) && contact.at(i, 0) && contact.at(i, j)) return true;
        return hull_holds<2>(contact, half_x_, half_y_);
    }

    const Problem& p_;
    const Variant& v_;
    const int64_t half_x_, half_y_;
    const Drops drops_;
    const float* heights_;
    const bool windows_;
    int64_t far_x_ = 0, far_y_ = 0;           // from a window at one end to the one at the other
    float least_drop_ = 0, most_drop_ = 0;    // of the cells beyond a corner, and of all
    const float *of_rows_ = nullptr, *of_columns_ = nullptr, *of_corners_ = nullptr;
};

// Marks the cells under a box that is placed at (x, y, z) by whether its top bears load there.
inline void mark_bearing(const Problem& p, const Variant& v, int64_t x, int64_t y, float z, const float* heights,
                         uint8_t* bears) {
    const int64_t width = v.y.extent;
    std::vector<int64_t> end(v.x.extent), start(v.x.extent);
    const Drops drops = Drops::bearing(p, v);
    const float level = z - p.bearing_gap;
    const Contact contact{p, v, heights + x * p.cells_y + y, p.cells_y, level, drops.rows, drops.columns};
    for (int64_t i = 0; i < v.x.extent; i++) {
        int64_t first, last;
        if (contact.span(i, first, last)) end[i] = last + 1, start[i] = width - first;
    }
    fill_hull(end);
    fill_hull(start);
    for (int64_t i = 0; i < v.x.extent; i++)
        for (int64_t j = 0; j < width; j++) bears[(x + i) * p.cells_y + y + j] = j < end[i] && width - j <= start[i];
}
