// The hull test of the rules, in whole numbers: see stability/hulls.py.
//
// How far does the hull of contacts reach along a row, towards one end of it? As far as the row's own furthest contact, or
// to where the furthest line between a contact before the row and one behind it crosses the row. `crossing` says where
// that is; it takes single numbers and vectors of them alike.
#pragma once

#include <cstdint>
#include <vector>

// Where a line between two rows crosses a row between them, times the distance of the two. `before` and `behind` are places
// along the two rows, the runs their distances from the crossed one.
template <class Number, class Distance>
inline auto crossing(Number before, Distance before_run, Number behind, Distance behind_run) {
    return before * behind_run + behind * before_run;
}

// The largest slope at which contacts rise, from a point's row, to one side; exact fractions of small integers.
struct Steepest {
    int64_t rise = 0, run = 0;

    void take(int64_t new_rise, int64_t new_run) {
        if (run == 0 || crossing(rise, run, new_rise, -new_run) > 0) rise = new_rise, run = new_run;
    }
    // True if the line from one side's best contact to the other's passes the point or goes through it.
    bool meets(const Steepest& other) const {
        return run && other.run && crossing(rise, run, other.rise, other.run) >= 0;
    }
};

// One end of each row inside the convex hull of contacts: `furthest` (rows,) is 1 + the furthest contact towards that end,
// 0 for none, and becomes 1 + the furthest cell.
inline void fill_hull(std::vector<int64_t>& furthest) {
    std::vector<int64_t> corners;  // rows of the hull's corners, in order
    for (int64_t i = 0; i < int64_t(furthest.size()); i++) {
        if (!furthest[i]) continue;
        // The last corner is none if it lies on or inside the line past it.
        while (corners.size() > 1) {
            const int64_t a = corners[corners.size() - 2], b = corners.back();
            if (furthest[b] * (i - a) > crossing(furthest[a], b - a, furthest[i], i - b)) break;
            corners.pop_back();
        }
        corners.push_back(i);
    }
    for (size_t k = 0; k + 1 < corners.size(); k++) {
        const int64_t a = corners[k], b = corners[k + 1];
        // Both are positive: the division rounds down.
        for (int64_t i = a + 1; i < b; i++)
            furthest[i] = crossing(furthest[a], i - a, furthest[b], b - i) / (b - a);
    }
}
