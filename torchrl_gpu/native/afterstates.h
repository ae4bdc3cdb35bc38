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
constexpr int BATCH = 16;  // placements that are worked on together

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

// Numbers of two rows where a vector holds them, else of one.
#if defined(__AVX512F__)
constexpr int rows_at_once = 2;
#else
constexpr int rows_at_once = 1;
#endif
typedef int32_t Rows __attribute__((vector_size(rows_at_once * lanes * sizeof(int32_t))));
typedef uint8_t Bytes __attribute__((vector_size(lanes)));

// Cells, or places of patches, [x0, x1) × [y0, y1).
struct Cells {
    int64_t x0, x1, y0, y1;
    bool empty() const { return x0 >= x1 || y0 >= y1; }
};

// The least rectangle of cells that holds all differences of two bins.
inline Cells differing_cells(const Patches& p, const uint8_t* one, const uint8_t* other) {
    Cells found = {p.cells_x, 0, p.cells_y, 0};
    for (int64_t x = 0; x < p.cells_x; x++) {
        const uint8_t *a = one + x * p.cells_y, *b = other + x * p.cells_y;
        if (!std::memcmp(a, b, p.cells_y)) continue;
        int64_t first = 0, last = p.cells_y - 1;
        while (a[first] == b[first]) first++;
        while (a[last] == b[last]) last--;
        found = {std::min(found.x0, x), x + 1, std::min(found.y0, first), std::max(found.y1, last + 1)};
    }
    return found;
}

// Heights of neighbouring cells, in one row or in two, which are `pitch` cells apart.
template <class Numbers>
INLINE Numbers digits(const uint8_t* heights, int64_t pitch) {
    Numbers found;
    for (int l = 0; l < int(sizeof(Numbers) / sizeof(int32_t)); l++) found[l] = heights[l / lanes * pitch + l % lanes];
    return found;
}
#if defined(__AVX2__)
template <>
INLINE Ints digits<Ints>(const uint8_t* heights, int64_t) {
    return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(heights)));
}
#endif
#if defined(__AVX512F__)
template <>
INLINE Rows digits<Rows>(const uint8_t* heights, int64_t pitch) {
    const __m128i row = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(heights)),
                  next = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(heights + pitch));
    return (Rows)_mm512_cvtepu8_epi32(_mm_unpacklo_epi64(row, next));
}
#endif

struct Lying;

// For shapes of `cells` cells: indices into their table of the weights of `lanes` neighbouring patches along y; those
// behind the last patch are valid indices, too.
template <int cells, bool clipped>
inline void entries(const Lying& lying, const uint8_t* heights, int32_t* out);

template <int cells, bool clipped>
void images(const Lying& lying, const uint8_t* heights, int32_t out[most_images][lanes]);

// The same of `rows` rows, which are `pitch` cells apart; (rows, lanes).
template <int cells, bool clipped>
void entries_of_rows(const Lying& lying, const uint8_t* heights, int64_t pitch, int64_t rows, int32_t* out);

// A shape as it lies in a framed bin: distances between its cells, and the placements that it has there.
struct Lying {
    const Patch* patch;
    int64_t last_x, last_y;
    int64_t away[most_cells];
    int images = 1;  // different ways to turn and mirror it
    void (*entries)(const Lying&, const uint8_t*, int32_t*);
    void (*all_images)(const Lying&, const uint8_t*, int32_t[most_images][lanes]);
    void (*rows_of_entries)(const Lying&, const uint8_t*, int64_t, int64_t, int32_t*);

    Lying(const Patches& p, const Patch& shape)
        : patch(&shape), last_x(p.cells_x + 2 - shape.rows), last_y(p.cells_y + 2 - shape.columns) {
        for (int64_t i = 0; i < shape.cells; i++) away[i] = shape.x[i] * p.wide() + shape.y[i];
        while (images < most_images && different(images)) images++;
        bind(std::make_index_sequence<most_cells>());
    }

    // Places of the patches that touch some cells.
    Cells touching(const Cells& cells) const {
        return {std::max<int64_t>(0, cells.x0 + 2 - patch->rows), std::min(last_x, cells.x1) + 1,
                std::max<int64_t>(0, cells.y0 + 2 - patch->columns), std::min(last_y, cells.y1) + 1};
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
        rows_of_entries = patch->clip < 0 ? ::entries_of_rows<cells, false> : ::entries_of_rows<cells, true>;
    }
};

// Indices of `lanes` neighbouring patches, or of those of two rows, which are `pitch` cells apart.
template <class Numbers, int cells, bool clipped>
INLINE Numbers found_by(const Lying& lying, const uint8_t* heights, int64_t pitch) {
    const Patch& patch = *lying.patch;
    const Numbers clip = Numbers{} + int32_t(patch.clip), first = digits<Numbers>(heights + lying.away[0], pitch);
    Numbers found = first * int32_t(patch.weight[0][0]);
#pragma GCC unroll 9
    for (int i = 1; i < cells; i++) {
        Numbers digit = digits<Numbers>(heights + lying.away[i], pitch);
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
    const Ints found = found_by<Ints, cells, clipped>(lying, heights, 0);
    std::memcpy(out, &found, sizeof found);
}

template <int cells, bool clipped>
void entries_of_rows(const Lying& lying, const uint8_t* heights, int64_t pitch, int64_t rows, int32_t* out) {
    for (int64_t x = 0; x < rows; x += rows_at_once) {  // at the end perhaps one too many
        const Rows found = found_by<Rows, cells, clipped>(lying, heights + x * pitch, pitch);
        std::memcpy(out + x * lanes, &found, sizeof found);
    }
}

// Adds to each of the first `count` lanes, `BATCH` numbers apart, the weights of its entries, (rows, lanes), one after
// the other. Number by number: the instruction that gathers a vector of weights takes several times as long as their
// loads.
template <int count>
NO_VECTORS void add_lanes(const float* table, const int32_t* entry, int64_t rows, float* lane) {
    float sum[count];
#pragma GCC unroll 8
    for (int l = 0; l < count; l++) sum[l] = lane[l * BATCH];
    for (int64_t x = 0; x < rows; x++, entry += lanes)
#pragma GCC unroll 8
        for (int l = 0; l < count; l++) sum[l] += table[entry[l]];
#pragma GCC unroll 8
    for (int l = 0; l < count; l++) lane[l * BATCH] = sum[l];
}

INLINE void add_lanes(const float* table, const int32_t* entry, int64_t rows, int64_t count, float* lane) {
    static_assert(lanes == 8, "a case for each count");
    switch (count) {
        case 1: return add_lanes<1>(table, entry, rows, lane);
        case 2: return add_lanes<2>(table, entry, rows, lane);
        case 3: return add_lanes<3>(table, entry, rows, lane);
        case 4: return add_lanes<4>(table, entry, rows, lane);
        case 5: return add_lanes<5>(table, entry, rows, lane);
        case 6: return add_lanes<6>(table, entry, rows, lane);
        case 7: return add_lanes<7>(table, entry, rows, lane);
        default: return add_lanes<8>(table, entry, rows, lane);
    }
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
        : p_(p), base_(p.framed()), after_(BATCH * p.framed() + p.wide()), pitch_(pitch_of(p.shapes)), heights_(p.area()),
          here_((p.cells_x + 2) * p.wide() * pitch_),
          before_((p.cells_x + 3) * (p.wide() + 1) * pitch_), entry_((p.cells_x + 3) * lanes), lane_(lanes * BATCH) {
        for (int64_t s = 0; s < p.shapes; s++) lying_.emplace_back(p, p.patch[s]);
    }

    const Patches& patches() const { return p_; }

    // Values of one bin after every legal placement of V items or orientations, −inf elsewhere. Extents and steps are in
    // cells, of which `pool` × `pool` make one of the bin's; a box raises every one that it touches.
    void all(const uint8_t* heights, const int64_t* extent, const uint8_t* top, const uint8_t* legal, int64_t variants,
             int64_t step, int64_t pool, int64_t grid_x, int64_t grid_y, float* out) {
        const Patches& p = p_;
        take(heights);
        const float whole = float(whole_);
        const int64_t plane = grid_x * grid_y;
        for (int64_t v = 0; v < variants; v++) {
            const int64_t wide_x = extent[2 * v], wide_y = extent[2 * v + 1];
            if (const int64_t same = same_before(extent, top, legal, v, plane); same < v) {
                std::copy_n(out + same * plane, plane, out + v * plane);
                continue;
            }
            Raised batch[BATCH];
            int number = 0;
            for (int64_t gx = 0; gx < grid_x; gx++)
                for (int64_t gy = 0; gy < grid_y; gy++) {
                    const int64_t at = (v * grid_x + gx) * grid_y + gy;
                    const int64_t left = std::min(gx * step, p.cells_x * pool - wide_x),
                                  below = std::min(gy * step, p.cells_y * pool - wide_y);
                    out[at] = -std::numeric_limits<float>::infinity();
                    if (!legal[at] || wide_x < 1 || wide_y < 1 || left < 0 || below < 0) continue;
                    const int64_t x = left / pool, y = below / pool;
                    batch[number++] = {{x, x + (left % pool + wide_x - 1) / pool + 1, y,
                                        y + (below % pool + wide_y - 1) / pool + 1},
                                       uint8_t(std::min<int64_t>(top[at], p.levels)), out + at};
                    if (number < BATCH) continue;
                    value(whole, batch, number);
                    number = 0;
                }
            if (number) value(whole, batch, number);
        }
    }

   private:
    // Takes a bin: only the weights of patches around cells that differ from the bin before are looked up.
    void take(const uint8_t* heights) {
        Cells changed = {-1, p_.cells_x + 1, -1, p_.cells_y + 1};  // the frame as well, where patches lie, too
        if (taken_) changed = differing_cells(p_, heights, heights_.data());
        taken_ = true;
        if (changed.empty()) return;
        std::copy_n(heights, p_.area(), heights_.begin());
        frame(p_, heights, base_.data());
        for (int64_t s = 0; s < p_.shapes; s++) {
            const Lying& lying = lying_[s];
            const float* table = p_.weight + lying.patch->offset;
            const Cells at = lying.touching(changed);
            for (int64_t x = at.x0; x < at.x1; x++)
                for (int64_t y = at.y0; y < at.y1; y += lanes) {
                    int32_t found[lanes];
                    lying.entries(lying, &base_[x * p_.wide() + y], found);
                    float* here = &here_[(x * p_.wide() + y) * pitch_ + s];
                    for (int64_t l = 0; l < std::min<int64_t>(lanes, at.y1 - y); l++) here[l * pitch_] = table[found[l]];
                }
        }
        switch (pitch_) {
            case 1: whole_ = sum_base<1>(); break;
            case 8: whole_ = sum_base<8>(); break;
            default: whole_ = sum_base<16>();
        }
    }

    // Numbers from one place to the next: the shapes, rounded up to whole vectors. A single shape has no other beside it.
    static int64_t pitch_of(int64_t shapes) {
        if (shapes == 1) return 1;
        return shapes <= 8 ? 8 : (shapes + 15) / 16 * 16;
    }

    // The value of the bin, and the sums `before_`: of all shapes together, since a sum waits for the one beside it.
    template <int GROUP>
    double sum_base() {
        const int64_t wide = p_.wide();
        double whole = 0;
        for (int64_t first = 0; first < p_.shapes; first += GROUP) {
            double sums[GROUP] = {};
            for (int64_t x = 0; x < p_.cells_x + 2; x++)
                for (int64_t y = 0; y < wide; y++) {
                    const float* here = &here_[(x * wide + y) * pitch_ + first];
                    float* sum = &before_[((x + 1) * (wide + 1) + y + 1) * pitch_ + first];
                    const float *left = sum - pitch_, *up = sum - (wide + 1) * pitch_, *both = up - pitch_;
                    for (int i = 0; i < GROUP; i++) sum[i] = here[i] + left[i] + up[i] - both[i];
                    for (int i = 0; i < GROUP; i++) sums[i] += here[i];
                }
            for (int64_t i = 0; i < std::min<int64_t>(GROUP, p_.shapes - first); i++) whole += sums[i];
        }
        return whole;
    }

    // Cells that are raised to a level, and where the value of the bin is written that they make.
    struct Raised {
        Cells cells;
        uint8_t level;
        float* out;
    };

    // Values of the bin after some placements each by itself, given that of the bin before. The work on one of them is a
    // chain of waits, so that they go side by side: first all bins, then all look-ups of a shape, then all sums.
    void value(float whole, const Raised* batch, int number) {
        for (int i = 0; i < number; i++) raise(batch[i], &after_[i * p_.framed()]);
        float change[BATCH] = {};
        for (int64_t s = 0; s < p_.shapes; s++) {
            float before[BATCH] = {};
            for (int i = 0; i < number; i++) before[i] = look_up(s, batch[i], &after_[i * p_.framed()], &lane_[i]);
            float sum[BATCH] = {};
            for (int l = 0; l < lanes; l++)
                for (int i = 0; i < BATCH; i++) sum[i] += lane_[l * BATCH + i], lane_[l * BATCH + i] = 0.0f;
            for (int i = 0; i < BATCH; i++) change[i] += sum[i];
            for (int i = 0; i < BATCH; i++) change[i] -= before[i];
        }
        for (int i = 0; i < number; i++) *batch[i].out = whole + change[i];
    }

    // The bin with a placement.
    void raise(const Raised& raised, uint8_t* after) const {
        std::memcpy(after, base_.data(), base_.size());
        const Cells& cells = raised.cells;
        for (int64_t y = cells.y0; y < cells.y1; y += lanes) {
            const Bytes within = Bytes{0, 1, 2, 3, 4, 5, 6, 7} < uint8_t(std::min<int64_t>(lanes, cells.y1 - y));
            const Bytes level = within & raised.level;
            for (int64_t x = cells.x0; x < cells.x1; x++) {
                uint8_t* row = after + (x + 1) * p_.wide() + y + 1;
                Bytes heights;
                std::memcpy(&heights, row, sizeof heights);
                heights = heights > level ? heights : level;
                std::memcpy(row, &heights, sizeof heights);
            }
        }
    }

    // Sums of a shape's weights in a bin with a placement, by lane; returns the sum of the same patches in the bin before.
    float look_up(int64_t s, const Raised& raised, const uint8_t* after, float* lane) {
        const Lying& lying = lying_[s];
        const Cells at = lying.touching(raised.cells);
        for (int64_t y = at.y0; y < at.y1; y += lanes) {
            lying.rows_of_entries(lying, after + at.x0 * p_.wide() + y, p_.wide(), at.x1 - at.x0, entry_.data());
            const int64_t count = std::min<int64_t>(lanes, at.y1 - y);
            add_lanes(p_.weight + lying.patch->offset, entry_.data(), at.x1 - at.x0, count, lane);
        }
        const int64_t wide = p_.wide() + 1;
        const float* from = &before_[at.x0 * wide * pitch_ + s];
        const float* to = &before_[at.x1 * wide * pitch_ + s];
        return to[at.y1 * pitch_] - to[at.y0 * pitch_] - from[at.y1 * pitch_] + from[at.y0 * pitch_];
    }

    const Patches& p_;
    std::vector<Lying> lying_;
    std::vector<uint8_t> base_, after_;
    const int64_t pitch_;           // of `here_` and `before_`
    bool taken_ = false;
    std::vector<uint8_t> heights_;  // of the bin that is taken
    double whole_ = 0;              // its value
    std::vector<float> here_;     // weights of its patches, by place and shape; 0 where a shape has none
    std::vector<float> before_;   // sums of the patches [0, x) × [0, y), by place and shape
    std::vector<int32_t> entry_;  // of rows of patches, (rows, lanes)
    std::vector<float> lane_;     // sums of weights of each placement of a batch, (lanes, BATCH)
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

struct Learnt {
    float* weight;          // (E,)
    float* drift;           // (E,) sum of the mean errors of each weight
    float* path;            // (E,) sum of their absolute values
    int64_t* seen;          // (E, 2) zeros, before and after: sum and number of the errors of the batch
    const int64_t* error;   // (N,) in units of 2^-32
    const uint8_t* counts;  // (N,) 1 for rows to learn from
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
    }
}
