// N-tuple network value of the heightmap after each placement: one table weight for each patch of cells, indexed by
// the heights in it. Defined by and called from policies/packing/ntuple/values.py.
//
// The bin has a frame of one cell around it, as high as the bin. Heights are counted in levels; those above the bin's
// count as its height.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "lanes.h"

constexpr int most_cells = 9, most_images = 8, lanes = 8;

// One shape of patches, lying one way. Mirrored in policies/packing/ntuple/values.py.
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

typedef int32_t Ints __attribute__((vector_size(lanes * sizeof(int32_t))));
typedef float Floats8 __attribute__((vector_size(lanes * sizeof(float))));

// Heights of neighbouring cells.
INLINE Ints digits(const uint8_t* heights) {
#if defined(__AVX2__)
    return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(heights)));
#else
    Ints found;
    for (int l = 0; l < lanes; l++) found[l] = heights[l];
    return found;
#endif
}

// Weights at `found` where `counts` is −1, and 0 where it is 0, where nothing is read.
INLINE Floats8 weights_at(const float* table, Ints found, Ints counts) {
#if defined(__AVX2__)
    return (Floats8)_mm256_mask_i32gather_ps(_mm256_setzero_ps(), table, (__m256i)found, (__m256)counts, 4);
#else
    Floats8 weights = {};
    for (int l = 0; l < lanes; l++)
        if (counts[l]) weights[l] = table[found[l]];
    return weights;
#endif
}

struct Lying;

// For shapes of `cells` cells: indices into their table of the weights of `lanes` neighbouring patches along y; those
// behind the last patch are valid indices, too.
template <int cells, bool clipped>
inline void entries(const Lying& lying, const uint8_t* heights, int32_t* out);

template <int cells, bool clipped>
void images(const Lying& lying, const uint8_t* heights, int32_t out[most_images][lanes]);

// Sum of the weights of patches [x0, x1] × [y0, y1].
template <int cells, bool clipped>
float sum_of(const Patches& p, const Lying& lying, const uint8_t* heights, int64_t x0, int64_t x1, int64_t y0,
             int64_t y1);

// A shape as it lies in a framed bin: distances between its cells, and the placements that it has there.
struct Lying {
    const Patch* patch;
    int64_t last_x, last_y;
    int64_t away[most_cells];
    int images = 1;  // different ways to turn and mirror it
    void (*entries)(const Lying&, const uint8_t*, int32_t*);
    void (*all_images)(const Lying&, const uint8_t*, int32_t[most_images][lanes]);
    float (*sum)(const Patches&, const Lying&, const uint8_t*, int64_t, int64_t, int64_t, int64_t);

    Lying(const Patches& p, const Patch& shape)
        : patch(&shape), last_x(p.cells_x + 2 - shape.rows), last_y(p.cells_y + 2 - shape.columns) {
        for (int64_t i = 0; i < shape.cells; i++) away[i] = shape.x[i] * p.wide() + shape.y[i];
        while (images < most_images && different(images)) images++;
        bind(std::make_index_sequence<most_cells>());
    }

  private:
    bool different(int image) const {  // those behind the last repeat the first
        for (int64_t i = 0; i < patch->cells; i++)
            if (patch->weight[i][image] != patch->weight[i][0]) return true;
        return false;
    }
    template <size_t... less>
    void bind(std::index_sequence<less...>) {
        ((patch->cells == int64_t(less) + 1 ? take<int(less) + 1>() : void()), ...);
    }
    template <int cells>
    void take() {
        entries = patch->clip < 0 ? ::entries<cells, false> : ::entries<cells, true>;
        all_images = patch->clip < 0 ? ::images<cells, false> : ::images<cells, true>;
        sum = patch->clip < 0 ? sum_of<cells, false> : sum_of<cells, true>;
    }
};

template <int cells, bool clipped>
INLINE Ints found_by(const Lying& lying, const uint8_t* heights) {
    const Patch& patch = *lying.patch;
    const Ints clip = Ints{} + int32_t(patch.clip), first = digits(heights + lying.away[0]);
    Ints found = first * int32_t(patch.weight[0][0]);
#pragma GCC unroll 9
    for (int i = 1; i < cells; i++) {
        Ints digit = digits(heights + lying.away[i]);
        if (clipped) {
            digit -= first;
            digit = digit < -clip ? -clip : digit;
            digit = (digit > clip ? clip : digit) + clip;
        }
        found += digit * int32_t(patch.weight[i][0]);
    }
    return found;
}

template <int cells, bool clipped>
inline void entries(const Lying& lying, const uint8_t* heights, int32_t* out) {
    const Ints found = found_by<cells, clipped>(lying, heights);
    std::memcpy(out, &found, sizeof found);
}

template <int cells, bool clipped>
float sum_of(const Patches& p, const Lying& lying, const uint8_t* heights, int64_t x0, int64_t x1, int64_t y0,
             int64_t y1) {
    const float* table = p.weight + lying.patch->offset;
    Floats8 sum = {};
    for (int64_t y = y0; y <= y1; y += lanes) {
        const int32_t count = int32_t(std::min<int64_t>(lanes, y1 - y + 1));
        const Ints counts = Ints{0, 1, 2, 3, 4, 5, 6, 7} < count;
        for (int64_t x = x0; x <= x1; x++)
            sum += weights_at(table, found_by<cells, clipped>(lying, heights + x * p.wide() + y), counts);
    }
    float all = 0;
    for (int l = 0; l < lanes; l++) all += sum[l];
    return all;
}

// Sum of the weights of all patches of a bin in its frame; `each` is called with every place and its weight.
template <class Each>
double sum_of_bin(const Patches& p, const Lying& lying, const uint8_t* framed, Each each) {
    const float* table = p.weight + lying.patch->offset;
    double sum = 0;
    for (int64_t x = 0; x <= lying.last_x; x++)
        for (int64_t y = 0; y <= lying.last_y; y += lanes) {
            int32_t found[lanes];
            lying.entries(lying, framed + x * p.wide() + y, found);
            for (int64_t l = 0; l < std::min<int64_t>(lanes, lying.last_y - y + 1); l++) {
                sum += table[found[l]];
                each(x, y + l, table[found[l]]);
            }
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

// Index of the first item or orientation with the same placements as v: a square one, turned.
inline int64_t same_before(const int64_t* extent, const uint8_t* top, const uint8_t* legal, int64_t v, int64_t plane) {
    for (int64_t u = 0; u < v; u++)
        if (std::equal(extent + 2 * u, extent + 2 * u + 2, extent + 2 * v) &&
            !std::memcmp(top + u * plane, top + v * plane, plane) &&
            !std::memcmp(legal + u * plane, legal + v * plane, plane))
            return u;
    return v;
}

// N-tuple values of bins after placements; keeps its memory from one bin to the next.
class PlacementValues {
   public:
    explicit PlacementValues(const Patches& p)
        : p_(p), base_(p.framed()), after_(p.framed()), before_(p.shapes * (p.cells_x + 3) * (p.wide() + 1)) {
        for (int64_t s = 0; s < p.shapes; s++) lying_.emplace_back(p, p.patch[s]);
    }

    const Patches& patches() const { return p_; }

    // Values of one bin after every legal placement of V items or orientations, −inf elsewhere. Extents and steps are in
    // cells, of which `pool` × `pool` make one of the bin's; a box raises every one that it touches.
    void all(const uint8_t* heights, const int64_t* extent, const uint8_t* top, const uint8_t* legal, int64_t variants,
             int64_t step, int64_t pool, int64_t grid_x, int64_t grid_y, float* out) {
        const Patches& p = p_;
        const int64_t wide = p.wide() + 1, whole_shape = (p.cells_x + 3) * wide;
        frame(p, heights, base_.data());
        double whole = 0;
        for (int64_t s = 0; s < p.shapes; s++)
            whole += sum_of_bin(p, lying_[s], base_.data(), [&](int64_t x, int64_t y, float here) {
                float* sum = &before_[s * whole_shape + (x + 1) * wide + y + 1];
                *sum = here + sum[-1] + sum[-wide] - sum[-wide - 1];
            });
        const int64_t plane = grid_x * grid_y;
        for (int64_t v = 0; v < variants; v++) {
            const int64_t wide_x = extent[2 * v], wide_y = extent[2 * v + 1];
            if (const int64_t same = same_before(extent, top, legal, v, plane); same < v) {
                std::copy_n(out + same * plane, plane, out + v * plane);
                continue;
            }
            for (int64_t gx = 0; gx < grid_x; gx++)
                for (int64_t gy = 0; gy < grid_y; gy++) {
                    const int64_t at = (v * grid_x + gx) * grid_y + gy;
                    const int64_t left = std::min(gx * step, p.cells_x * pool - wide_x),
                                  below = std::min(gy * step, p.cells_y * pool - wide_y);
                    out[at] = -std::numeric_limits<float>::infinity();
                    if (!legal[at] || wide_x < 1 || wide_y < 1 || left < 0 || below < 0) continue;
                    const int64_t x = left / pool, y = below / pool;
                    const int64_t rows = (left + wide_x - 1) / pool - x + 1, columns = (below + wide_y - 1) / pool - y + 1;
                    out[at] = float(whole) + change(x, y, rows, columns, uint8_t(std::min<int64_t>(top[at], p.levels)));
                }
        }
    }

   private:
    // Change of the value where the cells [x, x + rows) × [y, y + columns) are raised to a level.
    float change(int64_t x, int64_t y, int64_t rows, int64_t columns, uint8_t reached) {
        const Patches& p = p_;
        const int64_t wide = p.wide() + 1, whole_shape = (p.cells_x + 3) * wide;
        std::memcpy(after_.data(), base_.data(), base_.size());
        for (int64_t i = 1; i <= rows; i++) {
            uint8_t* row = &after_[(x + i) * p.wide() + y + 1];
            for (int64_t j = 0; j < columns; j++) row[j] = std::max(row[j], reached);
        }
        float more = 0;
        for (int64_t s = 0; s < p.shapes; s++) {
            const Patch& shape = *lying_[s].patch;
            const int64_t x0 = std::max<int64_t>(0, x + 2 - shape.rows), x1 = std::min(lying_[s].last_x, x + rows),
                          y0 = std::max<int64_t>(0, y + 2 - shape.columns), y1 = std::min(lying_[s].last_y, y + columns);
            const float *from = &before_[s * whole_shape + x0 * wide], *to = from + (x1 + 1 - x0) * wide;
            more += lying_[s].sum(p, lying_[s], after_.data(), x0, x1, y0, y1);
            more -= to[y1 + 1] - to[y0] - from[y1 + 1] + from[y0];
        }
        return more;
    }

    const Patches& p_;
    std::vector<Lying> lying_;
    std::vector<uint8_t> base_, after_;
    std::vector<float> before_;  // of each shape the sum of the patches [0, x) × [0, y)
};

// N-tuple value of one bin.
inline float value_of(const Patches& p, const uint8_t* heights) {
    std::vector<uint8_t> base(p.framed());
    frame(p, heights, base.data());
    double whole = 0;
    for (int64_t s = 0; s < p.shapes; s++)
        whole += sum_of_bin(p, Lying(p, p.patch[s]), base.data(), [](int64_t, int64_t, float) {});
    return float(whole);
}

// Sum of a bin's weights of each shape, as it lies; the sums add up to its value. (S, N), of which this is column n.
inline void shape_values_of(const Patches& p, const uint8_t* heights, int64_t rows, double* out) {
    std::vector<uint8_t> base(p.framed());
    frame(p, heights, base.data());
    for (int64_t s = 0; s < p.shapes; s++)
        out[s * rows] = sum_of_bin(p, Lying(p, p.patch[s]), base.data(), [](int64_t, int64_t, float) {});
}

struct Learnt {
    float* weight;          // (E,)
    float* drift;           // (E,) sum of the mean errors of each weight
    float* path;            // (E,) sum of their absolute values
    int64_t* seen;          // (E, 2) zeros, before and after: sum and number of the errors of the batch
    const int64_t* error;   // (N,) in units of 2^-32
    const uint8_t* counts;  // (N,) 1 for rows to learn from
    int32_t* changed;       // null, or (E,): of each table, from its offset on, the first images that have changed
    int64_t* num_changed;   // (tables,) how many those are
    uint8_t* marked;        // (E,) 1 for weights among them
    double rate;            // of a step, over the number of patches of a bin
};

// Table indices of `lanes` neighbouring patches along y, for each way to turn and mirror them.
template <int cells, bool clipped>
void images(const Lying& lying, const uint8_t* heights, int32_t out[most_images][lanes]) {
    const int32_t clip = int32_t(lying.patch->clip);
    int32_t digit[cells][lanes];
    for (int i = 0; i < cells; i++)
        for (int l = 0; l < lanes; l++) {
            digit[i][l] = heights[lying.away[i] + l];
            if (clipped && i) digit[i][l] = std::min(std::max(digit[i][l] - digit[0][l], -clip), clip) + clip;
        }
    for (int j = 0; j < lying.images; j++) {
        int32_t found[lanes] = {};
        for (int i = 0; i < cells; i++) {
            const int32_t weight = int32_t(lying.patch->weight[i][j]);
            for (int l = 0; l < lanes; l++) found[l] += digit[i][l] * weight;
        }
        std::copy_n(found, lanes, out[j]);
    }
}

// Update of one table by the errors of bins (N, X, Y), each weight's step scaled by its coherence, |drift| / path.
inline void learn_table(const Patches& p, const Learnt& to, int64_t table, const uint8_t* heights, int64_t rows) {
    struct Images {
        int32_t entry[most_images];  // the least first
        int32_t count;
    };
    std::vector<Images> touched;
    std::vector<uint8_t> base(p.framed());
    int64_t offset = 0;
    for (int64_t s = 0; s < p.shapes; s++) {
        if (p.patch[s].table != table) continue;
        const Lying lying(p, p.patch[s]);
        offset = lying.patch->offset;
        for (int64_t n = 0; n < rows; n++) {
            if (!to.counts[n]) continue;
            frame(p, heights + n * p.area(), base.data());
            for (int64_t x = 0; x <= lying.last_x; x++)
                for (int64_t y = 0; y <= lying.last_y; y += lanes) {
                    int32_t found[most_images][lanes], first[lanes];
                    lying.all_images(lying, base.data() + x * p.wide() + y, found);
                    std::copy_n(found[0], lanes, first);
                    for (int j = 1; j < lying.images; j++)
                        for (int l = 0; l < lanes; l++) first[l] = std::min(first[l], found[j][l]);
                    for (int64_t l = 0; l < std::min<int64_t>(lanes, lying.last_y - y + 1); l++) {
                        int64_t* seen = to.seen + 2 * (offset + first[l]);
                        seen[0] += to.error[n];
                        if (seen[1]++) continue;
                        Images at{{first[l]}, 1};
                        for (int j = 0; j < lying.images; j++)
                            if (found[j][l] != first[l]) at.entry[at.count++] = found[j][l];
                        touched.push_back(at);
                    }
                }
        }
    }
    for (const Images& at : touched) {
        const int64_t first = offset + at.entry[0];
        int64_t* seen = to.seen + 2 * first;
        const float mean = float(double(seen[0]) / double(seen[1]) * 0x1p-32);
        seen[0] = seen[1] = 0;
        to.drift[first] += mean;
        to.path[first] += std::fabs(mean);
        const float coherence = to.path[first] > 0 ? std::fabs(to.drift[first]) / to.path[first] : 1.0f;
        const float weight = to.weight[first] + float(to.rate * double(coherence) * double(mean));
        for (int32_t j = 0; j < at.count; j++) to.weight[offset + at.entry[j]] = weight;
        if (!to.changed || to.marked[first]) continue;
        to.marked[first] = 1;
        to.changed[offset + to.num_changed[table]++] = at.entry[0];
    }
}
