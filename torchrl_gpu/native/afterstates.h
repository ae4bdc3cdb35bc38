// What bins are worth after placements, by tables: one entry for each patch of cells, found by the heights in it. The
// definition is kernels/afterstates.py; called from there.
//
// The bin has a frame of one cell around it, as high as the bin. Heights are counted in levels; what is above the
// bin's counts as its height.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

constexpr int most_cells = 9, most_images = 8, lanes = 8;

// One shape of patches, lying one way. Mirrored in kernels/afterstates.py.
struct Patch {
    int64_t rows, columns, cells;
    int64_t clip;    // −1: found by heights; else by the first cell's and by how the others differ from it, at most so much
    int64_t table;   // which of the tables, and where that begins
    int64_t offset;
    int64_t x[most_cells], y[most_cells];               // of its cells, in the order of the index
    int64_t weight[most_cells][most_images];            // of each cell in the index, for each way to turn and mirror it
};

struct Patches {
    int64_t shapes, tables;
    int64_t cells_x, cells_y, levels, threads;
    const Patch* patch;
    const float* weight;  // (E,)

    int64_t wide() const { return cells_y + 2; }
    int64_t framed() const { return (cells_x + 2) * wide() + lanes; }  // and what is read behind it
    int64_t area() const { return cells_x * cells_y; }
};

// A shape as it lies in a framed bin: distances between its cells, and the placements that it has there.
struct Lying {
    const Patch* patch;
    int64_t last_x, last_y;
    int64_t away[most_cells];

    Lying(const Patches& p, const Patch& shape)
        : patch(&shape), last_x(p.cells_x + 2 - shape.rows), last_y(p.cells_y + 2 - shape.columns) {
        for (int64_t i = 0; i < shape.cells; i++) away[i] = shape.x[i] * p.wide() + shape.y[i];
    }
    int32_t digit(const uint8_t* heights, int64_t cell) const {
        const int32_t height = heights[away[cell]], clip = int32_t(patch->clip);
        if (clip < 0 || cell == 0) return height;
        return std::clamp(height - int32_t(heights[away[0]]), -clip, clip) + clip;
    }
};

// The entries of neighbouring patches along y, `lanes` of them; those behind the last one are entries, too.
inline void entries(const Lying& lying, const uint8_t* heights, int32_t* out) {
    const Patch& patch = *lying.patch;
    const int32_t clip = int32_t(patch.clip);
    int32_t first[lanes];
    for (int l = 0; l < lanes; l++) {
        first[l] = heights[lying.away[0] + l];
        out[l] = int32_t(patch.offset) + first[l] * int32_t(patch.weight[0][0]);
    }
    for (int64_t i = 1; i < patch.cells; i++) {
        const uint8_t* cell = heights + lying.away[i];
        const int32_t weight = int32_t(patch.weight[i][0]);
        if (clip < 0)
            for (int l = 0; l < lanes; l++) out[l] += cell[l] * weight;
        else
            for (int l = 0; l < lanes; l++) out[l] += (std::clamp(cell[l] - first[l], -clip, clip) + clip) * weight;
    }
}

inline int64_t entry(const Lying& lying, const uint8_t* heights) {
    int32_t found[lanes];
    entries(lying, heights, found);
    return found[0];
}

// The sum over patches [x0, x1] × [y0, y1] of their entries, less what is in `before`.
inline float sum_of(const Patches& p, const Lying& lying, const uint8_t* heights, const float* before, int64_t x0,
                    int64_t x1, int64_t y0, int64_t y1) {
    float sum = 0;
    for (int64_t x = x0; x <= x1; x++)
        for (int64_t y = y0; y <= y1; y += lanes) {
            const int64_t at = x * p.wide() + y;
            int32_t found[lanes];
            entries(lying, heights + at, found);
            const int64_t count = std::min<int64_t>(lanes, y1 - y + 1);
            for (int64_t l = 0; l < count; l++) sum += p.weight[found[l]] - before[at + l];
        }
    return sum;
}

// A bin (X, Y) within its frame.
inline void frame(const Patches& p, const uint8_t* heights, uint8_t* out) {
    std::memset(out, int(p.levels), p.framed());
    for (int64_t x = 0; x < p.cells_x; x++)
        for (int64_t y = 0; y < p.cells_y; y++)
            out[(x + 1) * p.wide() + y + 1] = uint8_t(std::min<int64_t>(heights[x * p.cells_y + y], p.levels));
}

// The value of every legal placement of V items or orientations in one bin.
inline void value_placements(const Patches& p, const uint8_t* heights, const int64_t* extent, const uint8_t* top,
                             const uint8_t* legal, int64_t variants, int64_t step, int64_t grid_x, int64_t grid_y,
                             float* out) {
    std::vector<Lying> lying;
    for (int64_t s = 0; s < p.shapes; s++) lying.emplace_back(p, p.patch[s]);
    std::vector<uint8_t> base(p.framed()), after(p.framed());
    std::vector<float> nothing(p.framed()), before(p.shapes * p.framed());
    frame(p, heights, base.data());
    double whole = 0;
    for (int64_t s = 0; s < p.shapes; s++)
        for (int64_t x = 0; x <= lying[s].last_x; x++)
            for (int64_t y = 0; y <= lying[s].last_y; y++) {
                const int64_t at = x * p.wide() + y;
                whole += before[s * p.framed() + at] = p.weight[entry(lying[s], base.data() + at)];
            }
    for (int64_t v = 0; v < variants; v++) {
        const int64_t wide_x = extent[2 * v], wide_y = extent[2 * v + 1];
        for (int64_t gx = 0; gx < grid_x; gx++)
            for (int64_t gy = 0; gy < grid_y; gy++) {
                const int64_t at = (v * grid_x + gx) * grid_y + gy;
                const int64_t x = std::min(gx * step, p.cells_x - wide_x), y = std::min(gy * step, p.cells_y - wide_y);
                const bool there = legal[at] && wide_x > 0 && wide_y > 0 && x >= 0 && y >= 0;
                out[at] = -std::numeric_limits<float>::infinity();
                if (!there) continue;
                std::memcpy(after.data(), base.data(), base.size());
                for (int64_t i = 1; i <= wide_x; i++)
                    std::memset(&after[(x + i) * p.wide() + y + 1], int(std::min<int64_t>(top[at], p.levels)), wide_y);
                float more = 0;
                for (int64_t s = 0; s < p.shapes; s++)
                    more += sum_of(p, lying[s], after.data(), &before[s * p.framed()],
                                   std::max<int64_t>(0, x + 2 - lying[s].patch->rows),
                                   std::min(lying[s].last_x, x + wide_x),
                                   std::max<int64_t>(0, y + 2 - lying[s].patch->columns),
                                   std::min(lying[s].last_y, y + wide_y));
                out[at] = float(whole) + more;
            }
    }
}

// The value of a bin as it is.
inline float value_of(const Patches& p, const uint8_t* heights) {
    std::vector<uint8_t> base(p.framed());
    frame(p, heights, base.data());
    double whole = 0;
    for (int64_t s = 0; s < p.shapes; s++) {
        const Lying lying(p, p.patch[s]);
        for (int64_t x = 0; x <= lying.last_x; x++)
            for (int64_t y = 0; y <= lying.last_y; y++)
                whole += p.weight[entry(lying, base.data() + x * p.wide() + y)];
    }
    return float(whole);
}

struct Learnt {
    float* weight;          // (E,)
    float* drift;           // (E,) sum of the mean errors that an entry has seen
    float* path;            // (E,) sum of their sizes
    int64_t* seen;          // (E, 2) zeros, before and after: the sum of the errors, and how many there are
    const int64_t* error;   // (N,) in units of 2^-32
    const uint8_t* counts;  // (N,) whether a row counts
    double rate;            // of a step, over the number of patches of a bin
};

// A step of all entries of one table towards what (N, X, Y) bins were worth.
inline void learn_table(const Patches& p, const Learnt& to, int64_t table, const uint8_t* heights, int64_t rows) {
    struct Images {
        int32_t entry[most_images];
        int64_t first() const { return *std::min_element(entry, entry + most_images); }
    };
    std::vector<Images> touched;
    std::vector<uint8_t> base(p.framed());
    for (int64_t n = 0; n < rows; n++) {
        if (!to.counts[n]) continue;
        frame(p, heights + n * p.area(), base.data());
        for (int64_t s = 0; s < p.shapes; s++) {
            if (p.patch[s].table != table) continue;
            const Lying lying(p, p.patch[s]);
            int32_t weight[most_cells][most_images];
            for (int64_t i = 0; i < most_cells; i++)
                for (int j = 0; j < most_images; j++) weight[i][j] = int32_t(lying.patch->weight[i][j]);
            for (int64_t x = 0; x <= lying.last_x; x++)
                for (int64_t y = 0; y <= lying.last_y; y++) {
                    const uint8_t* cell = base.data() + x * p.wide() + y;
                    Images at;
                    std::fill(at.entry, at.entry + most_images, int32_t(lying.patch->offset));
                    for (int64_t i = 0; i < lying.patch->cells; i++) {
                        const int32_t digit = lying.digit(cell, i);
                        for (int j = 0; j < most_images; j++) at.entry[j] += digit * weight[i][j];
                    }
                    int64_t* seen = to.seen + 2 * at.first();
                    seen[0] += to.error[n];
                    if (!seen[1]++) touched.push_back(at);
                }
        }
    }
    for (const Images& at : touched) {
        const int64_t first = at.first();
        int64_t* seen = to.seen + 2 * first;
        const float mean = float(double(seen[0]) / double(seen[1]) * 0x1p-32);
        seen[0] = seen[1] = 0;
        to.drift[first] += mean;
        to.path[first] += std::fabs(mean);
        const float coherence = to.path[first] > 0 ? std::fabs(to.drift[first]) / to.path[first] : 1.0f;
        const float weight = to.weight[first] + float(to.rate * double(coherence) * double(mean));
        for (int32_t each : at.entry) to.weight[each] = weight;
    }
}
