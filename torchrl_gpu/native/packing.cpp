// Kernels for CPUs, of packing as reference.py defines them, and of marine navigation; called from both compiled.py.
#include <atomic>
#include <limits>
#include <vector>

#include "afterstates.h"
#include "balance.h"
#include "bearing.h"
#include "boxes.h"
#include "ceiling.h"
#include "cuts.h"
#include "growth.h"
#include "problem.h"
#include "rollout.h"
#include "sailing.h"
#include "solids.h"
#include "stability.h"
#include "sweep.h"
#include "threads.h"
#include "transition.h"

struct Maps {
    float* z;        // (N, K, O, Gx, Gy)
    uint8_t* legal;  // likewise
    const float* kept_z;
    const uint8_t* kept_legal;
    const int64_t* kept_slot;  // (N, K); of what is no slot nothing is kept; null where of none
    const int64_t* changed;    // (N, 4); cells outside the bin do not count
};

namespace {

std::atomic<uint64_t> calls{0};

// Runs `work(first, end)` over runs of environments, one for each thread or a few.
template <class Work>
void spread_envs(const Problem& p, int64_t bytes_per_env, const Work& work) {
    const int64_t threads = p.envs * bytes_per_env < (1 << 16) ? 1 : p.threads;  // waking a thread takes microseconds
    const int64_t parts = std::min(p.envs, 4 * threads), size = parts ? (p.envs + parts - 1) / parts : 1;
    spread(threads == 1 ? (p.envs > 0) : parts, threads, [&](int64_t part) {
        if (threads == 1) return work(0, p.envs);
        work(std::min(part * size, p.envs), std::min((part + 1) * size, p.envs));
    });
}

// Tasks that rows are split into: some for each thread, so that one that waits for a core leaves few to the others.
int64_t parts_of(int64_t rows, int64_t threads) { return std::min(rows, threads == 1 ? 1 : 8 * threads); }

// Bottoms of one variant as the kernel reads them: a column of the footprint is a line.
template <class T>
struct Columns {
    Scratch<T> cells_;
    Scratch<int16_t> material_;
    const T* cells = nullptr;
    const int16_t* material = nullptr;

    void take(const Problem& p, const Variant& v) {
        if constexpr (Lanes<T>::integer) {
            cells = static_cast<const T*>(p.counted) + v.row * p.rows * p.columns;
            material = p.material + v.row * p.columns * 2;
        } else {
            copy(p, v);
        }
    }

    void copy(const Problem& p, const Variant& v) {
        T* to = cells_.at_least(p.rows * p.columns);
        int16_t* range = material_.at_least(2 * p.columns);
        const float* bottom = p.bottom + v.row * p.rows * p.columns;
        for (int64_t j = 0; j < v.y.extent; j++) {
            int64_t first = v.x.extent, end = 0;
            for (int64_t i = 0; i < v.x.extent; i++) {
                const float b = bottom[i * p.columns + j];
                to[j * p.rows + i] = b;
                if (b < std::numeric_limits<float>::infinity()) first = std::min(first, i), end = i + 1;
            }
            range[2 * j] = first, range[2 * j + 1] = end;
        }
        cells = to, material = range;
    }
};

// Rest heights, legality and stability; those before the cells `risen` rose are in `z`, if it is not null.
template <class T>
void drop_solid(const Problem& p, int64_t env, const Variant& v, SolidBin<T>& bin, Region region,
                const Region* risen, float* z, uint8_t* legal) {
    thread_local Columns<T> columns;
    thread_local Scratch<T> turned;
    columns.take(p, v);
    const int64_t pitch = p.grid_y + 5 * Lanes<T>::count;
    T* out = turned.at_least(p.grid_x * pitch);
    if (risen && bin.raise(p, v, columns.cells, columns.material, region, *risen, z)) {
        for (int64_t gx = region.x0; p.rule == Rule::com && gx < region.x1; gx++)
            for (int64_t gy = region.y0; gy < region.y1; gy++)
                out[gx * pitch + gy] = SolidBin<T>::turned(p, z[gx * p.grid_y + gy]);
    } else {
        bin.rest(p, v, columns.cells, columns.material, region, out, pitch);
        for (int64_t gx = region.x0; gx < region.x1; gx++)
            for (int64_t gy = region.y0; gy < region.y1; gy++)
                z[gx * p.grid_y + gy] = SolidBin<T>::metres(p, out[gx * pitch + gy]);
    }
    judge(p, env, v, region, z, legal);
    if (p.rule != Rule::com) return;
    if (std::max(v.x.extent, v.y.extent) <= MOST_CELLS_IN_FLOATS)
        Judge<T, float>(p, v, bin, columns.cells, columns.material, out, pitch, legal).all(region);
    else
        Judge<T, int32_t>(p, v, bin, columns.cells, columns.material, out, pitch, legal).all(region);
}

void drop_solid(const Problem& p, int64_t env, const Variant& v, Region region, const Region* risen, uint64_t call,
                float* z, uint8_t* legal) {
    thread_local SolidBin<uint8_t> bytes;
    thread_local SolidBin<uint16_t> words;
    thread_local SolidBin<float> floats;
    if (p.count_bytes == 1 && bytes.take(p, env, call)) return drop_solid(p, env, v, bytes, region, risen, z, legal);
    if (p.count_bytes == 2 && words.take(p, env, call)) return drop_solid(p, env, v, words, region, risen, z, legal);
    floats.take(p, env, call);
    drop_solid(p, env, v, floats, region, risen, z, legal);
}

// Placements of one axis whose windows reach into the cells [from, to).
void reaching(const Axis& axis, int64_t step, int64_t from, int64_t to, int64_t& first, int64_t& end) {
    const int64_t cells = axis.last + axis.extent;
    from = std::max<int64_t>(from, 0), to = std::min(to, cells);
    first = end = 0;
    if (from >= to || axis.fitting == 0) return;
    const int64_t behind = from - axis.extent;  // windows that begin here or before end before `from`
    first = behind < 0 ? 0 : behind / step + 1;
    end = std::min(axis.on_grid, (to + step - 1) / step);
    if (axis.fitting > axis.on_grid && axis.last < to) end = axis.fitting;
    if (axis.fitting > axis.on_grid && axis.last <= behind) end = 0;
    first = std::min(first, axis.fitting);
}

// Region of a variant's placements to compute, and whether maps from before the change are in z and legal; the rest of
// them is filled.
Region outdated(const Problem& p, const Maps& maps, int64_t env, int64_t slot, int64_t orientation, const Variant& v,
                bool& has_kept, float* z, uint8_t* legal) {
    const int64_t kept = maps.kept_slot ? maps.kept_slot[env * p.slots + slot] : -1;
    has_kept = kept >= 0 && kept < p.slots;
    if (!has_kept) {
        const bool whole = v.x.fitting == p.grid_x && v.y.fitting == p.grid_y;
        if (!whole) std::fill(z, z + p.plane(), p.ceiling), std::memset(legal, 0, p.plane());
        return {0, v.x.fitting, 0, v.y.fitting};
    }
    const int64_t from = ((env * p.slots + kept) * p.orientations + orientation) * p.plane();
    std::memcpy(z, maps.kept_z + from, p.plane() * sizeof(float));
    std::memcpy(legal, maps.kept_legal + from, p.plane());
    const int64_t* c = maps.changed + 4 * env;
    Region region;
    reaching(v.x, p.step, c[0], c[2], region.x0, region.x1);
    reaching(v.y, p.step, c[1], c[3], region.y0, region.y1);
    return region;
}

void drop(const Problem& p, const Maps& maps, int64_t env, int64_t variant, uint64_t call) {
    const int64_t slot = variant / p.orientations, orientation = variant % p.orientations;
    const int64_t item = p.item[env * p.slots + slot], at = (env * p.variants() + variant) * p.plane();
    float* z = maps.z + at;
    uint8_t* legal = maps.legal + at;
    if (!p.has(item)) {
        std::fill(z, z + p.plane(), p.ceiling);
        std::memset(legal, 0, p.plane());
        return;
    }
    const Variant v(p, item, orientation);
    if (p.flat()) {  // costs about as much as copying stored maps
        thread_local BoxBin bin;
        thread_local Scratch<float> plane;
        bin.take(p, env, call);
        return drop_box(p, v, bin, plane, z, legal);
    }
    bool has_kept = false;
    const Region region = outdated(p, maps, env, slot, orientation, v, has_kept, z, legal);
    if (region.empty()) return;
    Region risen{};
    if (has_kept) {
        const int64_t* c = maps.changed + 4 * env;
        const auto in = [](int64_t cell, int64_t cells) { return std::min(std::max<int64_t>(cell, 0), cells); };
        risen = {in(c[0], p.cells_x), in(c[2], p.cells_x), in(c[1], p.cells_y), in(c[3], p.cells_y)};
    }
    drop_solid(p, env, v, region, has_kept ? &risen : nullptr, call, z, legal);
}

// Truth values are bytes; any but 0 is true, also one that no comparison gives.
bool some_true(const uint8_t* values, int64_t length) {
    int64_t i = 0;
    for (; i + 64 <= length; i += 64) {
        uint64_t words[8], some = 0;
        std::memcpy(words, values + i, sizeof words);
        for (uint64_t word : words) some |= word;
        if (some) return true;
    }
    for (; i < length; i++)
        if (values[i]) return true;
    return false;
}

// ⌊draw · count⌋ within [0, count); −1 where there is nothing to count. What is no number is 0.
int64_t rank_of(double draw, int64_t count) {
    const double at = draw * double(count);
    return at > 0 ? (at < double(count) ? int64_t(at) : count - 1) : std::min<int64_t>(0, count - 1);
}

// The true value of the rank that is drawn, 0 where there is none. WILD: some bytes are neither 0 nor 1.
template <bool WILD>
int64_t picked(const uint8_t* row, int64_t length, double draw) {
    const auto one = [row](int64_t i) { return WILD ? uint8_t(row[i] != 0) : row[i]; };
    uint32_t count = 0;
    uint8_t bits = 0;
    for (int64_t i = 0; i < length; i++) count += one(i), bits |= one(i);
    if (bits > 1) return picked<true>(row, length, draw);
    int64_t rank = rank_of(draw, count), at = 0;
    for (; rank >= 0 && at + 16 <= length; at += 16) {  // blocks first: the place is some hundreds of values away
        int32_t here = 0;
        for (int64_t i = 0; i < 16; i++) here += one(at + i);
        if (rank < here) break;
        rank -= here;
    }
    while (rank >= 0 && (rank -= one(at)) >= 0) at++;
    return at;
}

// Element of [first, end) that is legal and has the least scores, of equal ones the first; −1 where none is legal.
int64_t best_of(const double* const* scores, int64_t count, const uint8_t* legal, int64_t first, int64_t end) {
    constexpr int64_t block = 16;  // elements at once, as vectors, while all have more of the first score
    int64_t best = -1;
    for (; first < end && (count || best < 0); first += block) {
        const int64_t behind = std::min(first + block, end);
        if (best >= 0 && behind - first == block) {
            const double least = scores[0][best];
            bool some = false;
            for (int64_t i = first; i < first + block; i++) some |= (legal[i] != 0) & (scores[0][i] <= least);
            if (!some) continue;
        }
        for (int64_t i = first; i < behind; i++) {
            if (!legal[i]) continue;
            int64_t k = 0;
            while (best >= 0 && k < count && scores[k][i] == scores[k][best]) k++;
            if (best < 0 || (k < count && scores[k][i] < scores[k][best])) best = i;
        }
    }
    return best;
}

template <class T>
void sail_all(const Sea& sea) {
    const int64_t lanes = Lanes<T>::count, vectors = (sea.envs + lanes - 1) / lanes;
    const int64_t threads = vectors < 8 ? 1 : sea.threads, parts = std::min(vectors, 4 * threads);
    spread(parts, threads, [&](int64_t part) {
        Sailing<T> sailing(sea);
        for (int64_t v = part * vectors / parts; v < (part + 1) * vectors / parts; v++) sailing.all(v * lanes);
    });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// The number of a stability rule, -1 for none of that name.
int64_t stability_rule(const char* name) {
    for (int64_t rule = 0; rule < NUM_RULES; rule++)
        if (std::strcmp(name, RULES[rule]) == 0) return rule;
    return -1;
}

void drop_map(const Problem* problem, const Maps* maps) {
    const Problem& p = *problem;
    const uint64_t call = ++calls;
    const int64_t variants = p.variants();
    // Boxes: many environments to a task. Irregular items: a few orientations to a task, so that one bin is shared out.
    const int64_t enough = p.flat() ? std::max<int64_t>(1, 4096 / std::max<int64_t>(1, variants * p.plane())) : 1;
    const int64_t envs = std::min(enough, std::max<int64_t>(1, p.envs / (4 * p.threads)));
    const int64_t size = p.flat() || p.envs >= 8 * p.threads ? variants : std::max<int64_t>(1, variants / (8 * p.threads));
    const int64_t per_env = (variants + size - 1) / size, groups = (p.envs + envs - 1) / envs;
    const bool little = p.flat() && p.envs * variants * p.plane() < (1 << 13);
    spread(groups * per_env, little ? 1 : p.threads, [&](int64_t task) {
        const int64_t first = task / per_env * envs, part = task % per_env;
        for (int64_t env = first; env < std::min(first + envs, p.envs); env++)
            for (int64_t v = part * size; v < std::min((part + 1) * size, variants); v++) drop(p, *maps, env, v, call);
    });
}

// The heightmaps after one placement each: item, orientation, x, y are (N,) and z metres. One that is not of the
// catalogue, or not inside the bin, changes nothing.
void place(const Problem* problem, const int64_t* item, const int64_t* orientation, const int64_t* x, const int64_t* y,
           const float* z, float* out) {
    const Problem& p = *problem;
    spread_envs(p, p.area() * 4, [&](int64_t first, int64_t end) {
        for (int64_t n = first; n < end; n++) {
            float* heights = out + n * p.area();
            std::memcpy(heights, p.heightmap + n * p.area(), p.area() * sizeof(float));
            if (!p.has(item[n]) || orientation[n] < 0 || orientation[n] >= p.orientations) continue;
            const Variant v(p, item[n], orientation[n]);
            if (v.x.holds(x[n]) && v.y.holds(y[n])) raise_pile(p, v, x[n], y[n], z[n], heights);
        }
    });
}

// Increase of the sum of the heightmap by each placement; (N, K, O, Gx, Gy), 0 where the footprint does not fit.
void pile_growth(const Problem* problem, const float* z_map, float* growth) {
    const Problem& p = *problem;
    const uint64_t call = ++calls;
    spread(p.envs * p.variants(), p.threads, [&](int64_t task) {
        const int64_t env = task / p.variants(), variant = task % p.variants(), at = task * p.plane();
        const int64_t item = p.item[env * p.slots + variant / p.orientations];
        std::fill(growth + at, growth + at + p.plane(), 0.0f);
        if (p.has(item)) grow(p, env, Variant(p, item, variant % p.orientations), z_map + at, growth + at, call);
    });
}

// The legal mask (N, K, O, Gx, Gy) without what the rule `load_bearing` refuses; margin along x and y in sixteenths.
void upheld(const Problem* problem, const int64_t* margin, const float* z, const uint8_t* legal, uint8_t* out) {
    const Problem& p = *problem;
    const uint64_t call = ++calls;
    spread(p.envs * p.variants(), p.threads, [&](int64_t task) {
        const int64_t env = task / p.variants(), variant = task % p.variants(), at = task * p.plane();
        const int64_t item = p.item[env * p.slots + variant / p.orientations];
        if (!p.has(item)) return void(std::memset(out + at, 0, p.plane()));
        const Variant v(p, item, variant % p.orientations);
        thread_local BoxBin bin;
        bin.take(p, env, call);
        Bearing(p, env, v, margin, bin).judge(z + at, legal + at, out + at);
    });
}

// The maps (N, X, Y) of what bears load after one placement each, as in `place`.
void bear(const Problem* problem, const uint8_t* bears, const int64_t* item, const int64_t* orientation, const int64_t* x,
          const int64_t* y, const float* z, uint8_t* out) {
    const Problem& p = *problem;
    spread_envs(p, p.area(), [&](int64_t first, int64_t end) {
        for (int64_t n = first; n < end; n++) {
            std::memcpy(out + n * p.area(), bears + n * p.area(), p.area());
            if (!p.has(item[n]) || orientation[n] < 0 || orientation[n] >= p.orientations) continue;
            const Variant v(p, item[n], orientation[n]);
            if (v.x.holds(x[n]) && v.y.holds(y[n]))
                mark_bearing(p, v, x[n], y[n], z[n], p.heightmap + n * p.area(), out + n * p.area());
        }
    });
}

void advance(const Problem* problem, const Step* step) {
    spread_envs(*problem, problem->area() * 4 + 200, [&](int64_t first, int64_t end) {
        for (int64_t n = first; n < end; n++) advance_one(*problem, *step, n);
    });
}

void restart(const Problem* problem, const Restart* rows) {
    const int64_t bytes = problem->area() * 4 + problem->variants() * problem->plane() * 5;
    spread_envs(*problem, bytes, [&](int64_t first, int64_t end) {
        for (int64_t n = first; n < end; n++) restart_one(*problem, *rows, n);
    });
}

// N-tuple value of each legal placement, −inf elsewhere: (N, V, Gx, Gy).
void value_placements(const Patches* patches, int64_t rows, const uint8_t* heights, const int64_t* extent,
                      const uint8_t* top, const uint8_t* legal, int64_t variants, int64_t step, int64_t pool,
                      int64_t grid_x, int64_t grid_y, float* out) {
    const int64_t plane = variants * grid_x * grid_y, parts = parts_of(rows, patches->threads);
    spread(parts, patches->threads, [&](int64_t part) {
        PlacementValues values(*patches);
        for (int64_t n = part * rows / parts; n < (part + 1) * rows / parts; n++)
            values.all(heights + n * patches->area(), extent + n * variants * 2, top + n * plane, legal + n * plane,
                       variants, step, pool, grid_x, grid_y, out + n * plane);
    });
}

// Plays all steps of a rollout, see rollout.h; the state and what is kept are written in place.
void play_rollout(const Problem* problem, const Rollout* rollout, const Source* source, const Patches* patches) {
    const int64_t envs = problem->envs, parts = parts_of(envs, problem->threads);
    spread(parts, problem->threads, [&](int64_t part) {
        Player player(*problem, *rollout, *source, *patches);
        for (int64_t env = part * envs / parts; env < (part + 1) * envs / parts; env++) player.play(env);
    });
}

// N-tuple value of each bin, (N,).
void value_bins(const Patches* patches, int64_t rows, const uint8_t* heights, float* out) {
    spread(rows, rows < 64 ? 1 : patches->threads,
           [&](int64_t n) { out[n] = value_of(*patches, heights + n * patches->area()); });
}

void learn_bins(const Patches* patches, const Learnt* to, int64_t rows, const uint8_t* heights) {
    spread(patches->tables, patches->threads,
           [&](int64_t table) { learn_table(*patches, *to, table, heights, rows); });
}

// TD(λ) over a whole rollout, see sweep.h; 1 where it was learned, 0 where the tables are not as they must be.
int64_t sweep_bins(const Patches* patches, const Sweep* sweep) { return sweep_tables(*patches, *sweep); }

// True for each of `rows` rows of `length` truth values with a true one.
void any_true(const uint8_t* values, int64_t rows, int64_t length, uint8_t* out) {
    for (int64_t n = 0; n < rows; n++) out[n] = some_true(values + n * length, length);
}

// How many values of each row are at or below each bound where the mask is true, 255 for more; (rows, bounds).
void count_at_most(const float* values, const uint8_t* mask, const float* limits, int64_t rows, int64_t length,
                   int64_t bounds, int64_t threads, uint8_t* out) {
    const int64_t parts = rows * length < (1 << 15) ? 1 : 4 * threads, size = (rows + parts - 1) / parts;
    spread(parts, threads, [&](int64_t part) {
        for (int64_t n = part * size; n < std::min((part + 1) * size, rows); n++)
            for (int64_t b = 0; b < bounds; b++) {
                const float* row = values + n * length;
                const uint8_t* there = mask + n * length;
                int32_t count = 0;
                for (int64_t i = 0; i < length; i++) count += (row[i] <= limits[b]) & (there[i] != 0);
                out[n * bounds + b] = uint8_t(std::min(count, 255));
            }
    });
}

// A true value of each row: the one of rank ⌊draw · count⌋, counted from 0, or the nearest rank that there is; 0 where
// none is true.
void pick_true(const uint8_t* values, const double* draw, int64_t rows, int64_t length, int64_t threads, int64_t* out) {
    const int64_t parts = rows * length < (1 << 17) ? 1 : 4 * threads, size = (rows + parts - 1) / parts;
    spread(parts, threads, [&](int64_t part) {
        for (int64_t n = part * size; n < std::min((part + 1) * size, rows); n++)
            out[n] = picked<false>(values + n * length, length, draw[n]);
    });
}

// Index of the legal element of each row with the least of `count` scores (rows, length), of equal ones the first; 0 where
// none is legal.
void first_best(const double* const* scores, int64_t count, const uint8_t* legal, int64_t rows, int64_t length,
                int64_t threads, int64_t* out) {
    const int64_t parts = rows * length < (1 << 17) ? 1 : 4 * threads, size = (rows + parts - 1) / parts;
    spread(parts, threads, [&](int64_t part) {
        for (int64_t n = part * size; n < std::min((part + 1) * size, rows); n++)
            out[n] = std::max<int64_t>(0, best_of(scores, count, legal, n * length, (n + 1) * length) - n * length);
    });
}

// As counter_rng.draw_bits, for each of `size` keys and counters.
void draw_bits(const int64_t* key, const int64_t* counter, int64_t size, int64_t* out) {
    const auto mix = [](uint32_t x) {
        x = (x ^ (x >> 16)) * 0x7FEB352Du;
        x = (x ^ (x >> 15)) * 0x846CA68Bu;
        return x ^ (x >> 16);
    };
    for (int64_t i = 0; i < size; i++) out[i] = mix(mix(uint32_t(key[i])) ^ mix(uint32_t(counter[i]) + 0x9E3779B9u));
}

// Complete sequences of boxes cut from a bin, by keys: corners (rows, most, 3) and catalogue rows (rows, most).
void cut_boxes(const int64_t* cuts, const int64_t* key, int64_t rows, int64_t threads, int64_t* corner, int64_t* out) {
    const Cuts& c = *reinterpret_cast<const Cuts*>(cuts);
    const int64_t parts = std::min<int64_t>(rows, 4 * threads), size = (rows + parts - 1) / std::max<int64_t>(parts, 1);
    spread(parts, threads, [&](int64_t part) {
        std::vector<CutPiece> pieces, waiting;
        for (int64_t n = part * size; n < std::min((part + 1) * size, rows); n++) {
            cut_whole(c, key[n], pieces, waiting);
            lay_cuts(c, pieces, corner + 3 * n * c.most, out + n * c.most);
        }
    });
}

// Catalogue rows at `places` places, clamped, of the sequence of each key. Row n caches the last two sequences: `kept`
// (rows, 2, most), their `kept_key` (rows, 2), and in `last` the one that was read last.
void cut_items(const int64_t* cuts, const int64_t* key, const int64_t* position, int64_t rows, int64_t places,
               int64_t* kept_key, int64_t* last, int64_t* kept, int64_t* out) {
    const Cuts& c = *reinterpret_cast<const Cuts*>(cuts);
    std::vector<CutPiece> pieces, waiting;
    for (int64_t n = 0; n < rows; n++) {
        int64_t way = last[n] & 1;
        if (kept_key[2 * n + way] != key[n]) way = 1 - way;
        int64_t* sequence = kept + (2 * n + way) * c.most;
        if (kept_key[2 * n + way] != key[n]) {
            cut_whole(c, key[n], pieces, waiting);
            lay_cuts(c, pieces, nullptr, sequence);
            kept_key[2 * n + way] = key[n];
        }
        last[n] = way;
        for (int64_t k = 0; k < places; k++)
            out[n * places + k] = sequence[std::clamp<int64_t>(position[n * places + k], 0, c.most - 1)];
    }
}

// An action of marine navigation v2, see sailing.h, of numbers of so many bytes.
void sail(const Sea* sea, int64_t bytes) { bytes == 4 ? sail_all<float>(*sea) : sail_all<double>(*sea); }

// Add-max steps per second of all threads together, on counts of `bytes` bytes, or on floats for 4.
double add_max_rate(int64_t bytes, int64_t threads, double seconds) {
    std::vector<double> rates(threads);
    spread(threads, threads, [&](int64_t thread) {
        rates[thread] = bytes == 1   ? add_max_rate_of_one<uint8_t>(seconds)
                        : bytes == 2 ? add_max_rate_of_one<uint16_t>(seconds)
                                     : add_max_rate_of_one<float>(seconds);
    });
    double total = 0;
    for (double rate : rates) total += rate;
    return total;
}

}  // extern "C"
#pragma GCC visibility pop
