// Rise of the heightmap by placements of irregular items: sums over the footprint, for many placements at once.
#pragma once

#include <type_traits>

#include "solids.h"

// One placement by itself; also boxes, whose top is flat.
inline double raised_by(const Problem& p, const Variant& v, const float* under, float z) {
    double sum = 0;
    for (int64_t i = 0; i < v.x.extent; i++) {
        const float* h = under + i * p.cells_y;
        float raised = 0;
        if (p.flat()) {
            for (int64_t j = 0; j < v.y.extent; j++) raised += std::max(z + v.height - h[j], 0.0f);
        } else {
            const float* top = p.top + (v.row * p.rows + i) * p.columns;
            const float* bottom = p.bottom + (v.row * p.rows + i) * p.columns;
            for (int64_t j = 0; j < v.y.extent; j++)
                if (bottom[j] < std::numeric_limits<float>::infinity()) raised += std::max(z + top[j] - h[j], 0.0f);
        }
        sum += raised;
    }
    return sum;
}

// One bin with its heights as int16_t counts, or in metres as float.
template <class T>
class GrowthBin {
   public:
    using L = Lanes<T>;
    using Sum = typename std::conditional<L::integer, int32_t, double>::type;
    static constexpr T NOTHING = L::integer ? T(-16384) : T(-1e30f);  // the top where there is no material
    static constexpr float MOST = 4096;                               // counts, so that no sum of three overflows
    static constexpr int64_t MOST_SUM = 1 << 30;                      // counts, so that no sum over a footprint does

    // Takes environment `env` unless it is there already; false where its heights are no whole counts.
    bool take(const Problem& p, int64_t env, uint64_t call) {
        if (env == env_ && call == call_) return whole_;
        env_ = env, call_ = call, whole_ = true;
        along_y_.shape(p.cells_x, p.cells_y, p.step, 4 * L::count + p.columns + p.grid_y);
        const float* heights = p.heightmap + env * p.area();
        for (int64_t x = 0; x < p.cells_x; x++)
            for (int64_t y = 0; y < p.cells_y; y++) along_y_.set(x, y, counted(p, heights[x * p.cells_y + y]));
        return whole_;
    }

    // Fills the placements of the grid of one variant, those flush with the wall along y left out; false where rest
    // heights or tops are no whole counts.
    bool grow(const Problem& p, const Variant& v, const float* z, float* growth) {
        lanes_ = (v.y.on_grid + L::count - 1) / L::count * L::count;
        highest_ = 0;
        take_tops(p, v);
        highest_top_ = highest_, highest_ = 0;
        T* rest = rest_.at_least(v.x.fitting * lanes_ + L::count);
        for (int64_t gx = 0; gx < v.x.fitting; gx++)
            for (int64_t gy = 0; gy < lanes_; gy++)
                rest[gx * lanes_ + gy] = gy < v.y.on_grid ? counted(p, z[gx * p.grid_y + gy]) : T(0);
        if (!whole_) return whole_ = true, false;  // the bin itself is
        if (v.x.extent * v.y.extent * (highest_ + highest_top_) > MOST_SUM) return false;
        chunk_ = L::integer ? std::max<int64_t>(1, 32767 / std::max<int64_t>(1, highest_ + highest_top_)) : 64;
        Sum* sums = sums_.at_least(v.x.fitting * lanes_);
        std::fill(sums, sums + v.x.fitting * lanes_, Sum(0));
        for (int64_t lane = 0; lane < lanes_; lane += 2 * L::count) {
            if (lane + L::count < lanes_)
                strip<2>(p, v, lane);
            else
                strip<1>(p, v, lane);
        }
        const double unit = L::integer ? double(p.unit) : 1.0;
        for (int64_t gx = 0; gx < v.x.fitting; gx++)
            for (int64_t gy = 0; gy < v.y.on_grid; gy++)
                growth[gx * p.grid_y + gy] = float(double(sums[gx * lanes_ + gy]) * unit);
        return true;
    }

   private:
    T counted(const Problem& p, float metres) {
        if constexpr (!L::integer) return metres;
        const float counts = metres / p.unit;
        const float whole = std::nearbyint(counts);
        const bool fine = std::fabs(counts - whole) <= 1e-3f && whole >= 0 && whole <= MOST;  // a number, above all
        whole_ &= fine;
        const T held = fine ? T(whole) : T(0);
        highest_ = std::max(highest_, int64_t(held));
        return held;
    }

    // Columns of the footprint become lines; the cells with material of each lie in a range.
    void take_tops(const Problem& p, const Variant& v) {
        T* to = tops_.at_least(p.rows * p.columns);
        int16_t* range = material_.at_least(2 * p.columns);
        const float *top = p.top + v.row * p.rows * p.columns, *bottom = p.bottom + v.row * p.rows * p.columns;
        for (int64_t j = 0; j < v.y.extent; j++) {
            int64_t first = v.x.extent, end = 0;
            for (int64_t i = 0; i < v.x.extent; i++) {
                const bool material = bottom[i * p.columns + j] < std::numeric_limits<float>::infinity();
                to[j * p.rows + i] = material ? counted(p, top[i * p.columns + j]) : NOTHING;
                if (material) first = std::min(first, i), end = i + 1;
            }
            range[2 * j] = int16_t(first), range[2 * j + 1] = int16_t(end);
        }
    }

    template <int C>
    void strip(const Problem& p, const Variant& v, int64_t lane) {
        int64_t g = 0;
        for (; v.x.on_grid - g >= 4; g += 4) block<4, C>(p, v, g, g * p.step, lane);
        for (; g < v.x.on_grid; g++) block<1, C>(p, v, g, g * p.step, lane);
        if (v.x.fitting > v.x.on_grid) block<1, C>(p, v, v.x.on_grid, v.x.last, lane);
    }

    // R rows of C vectors of placements stay in registers while the cells of the footprint pass by.
    template <int R, int C>
    __attribute__((noinline)) void block(const Problem& p, const Variant& v, int64_t g, int64_t x, int64_t lane) {
        const int64_t pitch = along_y_.pitch, next = p.step * pitch;
        Vector<T> rest[R][C], raised[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++)
                rest[r][c] = L::load(rest_.data() + (g + r) * lanes_ + lane + c * L::count), raised[r][c] = L::all(T(0));
        int64_t held = 0;
        for (int64_t j = 0; j < v.y.extent; j++) {
            const T* top = tops_.data() + j * p.rows;
            const int64_t first = material_.data()[2 * j], end = material_.data()[2 * j + 1];
            const T* window = along_y_.from(j) + (x + first) * pitch + lane;
            for (int64_t i = first; i < end; i++, window += pitch) {
                const Vector<T> t = L::all(top[i]);
                for (int r = 0; r < R; r++)
                    for (int c = 0; c < C; c++) {
                        const Vector<T> over = less(more(rest[r][c], t), L::load(window + r * next + c * L::count));
                        raised[r][c] = more(raised[r][c], over > L::all(T(0)) ? over : L::all(T(0)));
                    }
                if (++held == chunk_) spill<R, C>(raised, g, lane), held = 0;
            }
        }
        spill<R, C>(raised, g, lane);
    }

    // Sums that wrap around in the lanes behind the grid, whose windows mean nothing.
    using Word = typename std::conditional<L::integer, uint16_t, T>::type;
    static INLINE Vector<T> more(Vector<T> a, Vector<T> b) { return (Vector<T>)((Vector<Word>)a + (Vector<Word>)b); }
    static INLINE Vector<T> less(Vector<T> a, Vector<T> b) { return (Vector<T>)((Vector<Word>)a - (Vector<Word>)b); }

    // What the registers hold goes to sums of more digits.
    template <int R, int C>
    INLINE void spill(Vector<T> (&raised)[R][C], int64_t g, int64_t lane) {
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) {
                Sum* to = sums_.data() + (g + r) * lanes_ + lane + c * L::count;
                for (int l = 0; l < L::count; l++) to[l] += Sum(raised[r][c][l]);
                raised[r][c] = L::all(T(0));
            }
    }

    int64_t env_ = -1, lanes_ = 0, chunk_ = 1, highest_ = 0, highest_top_ = 0;
    uint64_t call_ = 0;
    bool whole_ = false;
    Phases<T> along_y_;
    Scratch<T> tops_, rest_;
    Scratch<int16_t> material_;
    Scratch<Sum> sums_;
};

// Fills `growth` (Gx, Gy) of one variant on the bin of one environment.
inline void grow(const Problem& p, int64_t env, const Variant& v, const float* z, float* growth, uint64_t call) {
    thread_local GrowthBin<int16_t> counts;
    thread_local GrowthBin<float> floats;
    const float* heights = p.heightmap + env * p.area();
    int64_t first = 0;  // column of the grid from which on placements are worked out one by one
    if (!p.flat()) {
        first = v.y.on_grid;
        if (!(p.count_bytes && counts.take(p, env, call) && counts.grow(p, v, z, growth))) {
            floats.take(p, env, call);
            floats.grow(p, v, z, growth);
        }
    }
    for (int64_t gx = 0; gx < v.x.fitting; gx++)
        for (int64_t gy = first; gy < v.y.fitting; gy++) {
            const float* under = heights + v.x.position(gx, p.step) * p.cells_y + v.y.position(gy, p.step);
            growth[gx * p.grid_y + gy] = float(raised_by(p, v, under, z[gx * p.grid_y + gy]));
        }
}
