// Arguments shared by all kernels: a catalogue, a bin and a batch, as plain pointers. Mirrored in compiled.py.
//
// Types, shapes and devices are checked before a call; values are not, since that would read them twice. So any index
// or count read from a tensor is clamped to its range here, or ignored.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

// The stability rules of reference.py. Python asks for their numbers by name, see `stability_rule`.
enum class Rule : int64_t { none, corners, support, com };
constexpr const char* RULES[] = {"none", "corners", "support", "com"};
constexpr int64_t NUM_RULES = sizeof RULES / sizeof *RULES;
static_assert(NUM_RULES == int64_t(Rule::com) + 1, "every rule has a name, in their order");

struct Problem {
    int64_t envs, slots, orientations;        // N, K, O
    int64_t items;                            // M
    int64_t cells_x, cells_y, step;           // X, Y
    int64_t grid_x, grid_y;                   // Gx, Gy
    int64_t rows, columns;                    // P, Q that the maps are padded to
    const int64_t* item;                      // (N, K); what is no row of the catalogue is an empty slot
    const float* heightmap;                   // (N, X, Y)
    const int64_t* extent;                    // (M, O, 2), from 1 to P and Q: checked where a catalogue is made
    const float* height;                      // (M, O)
    const float* top;                         // (M, O, P, Q); null for boxes
    const float* bottom;                      // (M, O, P, Q); null for boxes
    const int32_t* centre_16ths;              // (M, O, 2), centres of mass in sixteenths of a cell; null for the middle
    const uint8_t* stable_on_floor;           // (M, O), 1 where stable on the floor by `com`; null where not known
    const void* counted;                      // (M, O, Q, P), bottoms in units; null where heights are not counted
    const int16_t* material;                  // (M, O, Q, 2), first and last + 1 cell of each column; null likewise
    int64_t count_bytes;                      // of one counted cell: 1 or 2
    float unit;                               // metres of one count
    int64_t counted_gap;                      // units of a gap that still carries, under the bin's rule
    float ceiling, tolerance, gap;            // height of the bin; heights closer than this are the same; as before, metres
    float drop_x, drop_y;                     // `Bin.drops`
    float bearing_gap, bearing_slack;         // `Bin.bearing_tolerance` and `Bin.bearing_slack`, metres
    float bearing_drop_x, bearing_drop_y;     // `Bin.bearing_drops`
    Rule rule;
    int64_t threads;

    bool flat() const { return bottom == nullptr; }
    bool has(int64_t item) const { return uint64_t(item) < uint64_t(items); }
    bool fits(int64_t item, int64_t orientation) const {
        const int64_t* side = extent + 2 * (item * orientations + orientation);
        return side[0] <= cells_x && side[1] <= cells_y;
    }
    int64_t variants() const { return slots * orientations; }
    int64_t plane() const { return grid_x * grid_y; }
    int64_t area() const { return cells_x * cells_y; }
};

// The placements of one footprint along one axis.
struct Axis {
    int64_t extent, last, on_grid, fitting;  // fitting: those on the grid, and one flush with the wall where it is not

    Axis(int64_t extent, int64_t cells, int64_t step, int64_t grid) : extent(extent), last(cells - extent) {
        on_grid = last < 0 ? 0 : std::min(grid, last / step + 1);
        fitting = last < 0 ? 0 : std::min(grid, on_grid + (last % step != 0));
    }
    bool holds(int64_t first) const { return 0 <= first && first <= last; }  // true if a footprint there is inside
    int64_t position(int64_t g, int64_t step) const { return std::min(g * step, last); }
};

// One item of the catalogue in one orientation.
struct Variant {
    int64_t row;  // of the catalogue: item · O + orientation
    Axis x, y;
    float height;

    Variant(const Problem& p, int64_t item, int64_t orientation)
        : row(item * p.orientations + orientation),
          x(p.extent[2 * row], p.cells_x, p.step, p.grid_x),
          y(p.extent[2 * row + 1], p.cells_y, p.step, p.grid_y),
          height(p.height[row]) {}
};

// A count from a tensor, and more: a sum that wraps around where it must.
inline int64_t plus(int64_t count, int64_t more) { return int64_t(uint64_t(count) + uint64_t(more)); }

// Placements [x0, x1) × [y0, y1) of the grid.
struct Region {
    int64_t x0, x1, y0, y1;
    bool empty() const { return x0 >= x1 || y0 >= y1; }
};
