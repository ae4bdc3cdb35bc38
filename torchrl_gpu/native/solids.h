// Rest heights of irregular items: a max-plus correlation over the footprint, for many placements at once.
#pragma once

#include <vector>

#include "lanes.h"
#include "problem.h"

// Turned-about heights of one bin, split by the phases of the grid step along one axis: neighbouring placements are
// neighbours in memory. Element (phase, line, lane) is the cell `lane · step + phase` of a line along that axis.
template <class T>
class Phases {
   public:
    void shape(int64_t lines, int64_t length, int64_t step, int64_t beyond) {
        lines_ = lines;
        pitch = (length + step - 1) / step;
        from_.resize(length);
        for (int64_t cell = 0; cell < length; cell++) from_[cell] = cell % step * lines * pitch + cell / step;
        data_.at_least(step * lines * pitch + beyond);  // a vector may read past the end of a line, and of them all
    }
    INLINE void set(int64_t line, int64_t cell, T w) {
        data_.data()[from_[cell] + line * pitch] = w;
    }
    // The cells that lie `offset` behind the placements, from the first line and the first placement on.
    INLINE const T* from(int64_t offset) const { return data_.data() + from_[offset]; }
    T* line(int64_t phase, int64_t line) { return data_.data() + (phase * lines_ + line) * pitch; }
    int64_t pitch = 0;

   private:
    int64_t lines_ = 0;
    std::vector<int64_t> from_;  // division is slow
    Scratch<T> data_;
};

// Lines on vector boundaries pay a fifth on integers; on floats the arithmetic is the narrower place.
constexpr int64_t TABLE_BYTES = 2 << 20;  // about a core's second-level cache

// One bin, ready for any number of items.
template <class T>
class SolidBin {
   public:
    using L = Lanes<T>;

    // Takes environment `env` unless it is there already; false where its heights are no whole counts.
    bool take(const Problem& p, int64_t env, uint64_t call) {
        if (env == env_ && call == call_) return whole_;
        env_ = env, call_ = call;
        const int64_t slack = 8 * L::count + std::max(p.rows, p.columns) + std::max(p.grid_x, p.grid_y);
        along_y_.shape(p.cells_x, p.cells_y, p.step, slack);
        along_x_.shape(p.cells_y, p.cells_x, p.step, slack);
        lanes_ = (p.grid_y + L::count - 1) / L::count * L::count;
        tabled_ = L::integer && lanes_ * p.cells_x * p.columns * int64_t(sizeof(T)) <= TABLE_BYTES;
        if (tabled_) table_.at_least(lanes_ * p.cells_x * p.columns);
        ready_.assign(p.columns, false);
        tiled_ = 0;
        along_x_ready_ = flat_ready_ = false;
        turned_.at_least(p.area());
        whole_ = turn_about(p, p.heightmap + env * p.area());
        if (whole_) split_along_y(p);
        return whole_;
    }

    // Rest heights, turned about, of the placements of `region`; rows of `out` are `pitch` apart.
    void rest(const Problem& p, const Variant& v, const T* cells, const int16_t* material, Region region, T* out,
              int64_t pitch) {
        const int64_t on_x = std::min(region.x1, v.x.on_grid), on_y = std::min(region.y1, v.y.on_grid);
        const bool flat = fewer_when_flat(region, on_x, on_y);
        if (flat) flat_rest(p, v, cells, material, region, on_x, on_y, out, pitch);
        if (tabled_ && (!flat || p.rule == Rule::com)) prepare_columns(p, v.y.extent);
        for (int64_t first = region.y0 / L::count * L::count; !flat && first < on_y;) {
            const int64_t left = (on_y - first + L::count - 1) / L::count;
            const int64_t vectors = left <= 4 ? left : left < 8 ? (left + 1) / 2 : 4;
            const Job job{p, v, cells, material, first, out + first, pitch};
            switch (vectors) {
                case 1: strip<1>(job, region.x0, on_x, region.x1); break;
                case 2: strip<2>(job, region.x0, on_x, region.x1); break;
                case 3: strip<3>(job, region.x0, on_x, region.x1); break;
                default: strip<4>(job, region.x0, on_x, region.x1);
            }
            first += vectors * L::count;
        }
        if (region.y1 <= v.y.on_grid) return;
        for (int64_t g = region.x0; g < region.x1; g++) out[g * pitch + v.y.on_grid] = L::top;
        flush_column(p, v, cells, material, region, 0, v.y.extent, out + v.y.on_grid, pitch);
    }

    // Rest heights of the placements of `region` in place, metres, where only the cells `risen` have risen since: cells
    // of a window elsewhere have had their say. False where they are no whole counts, or too many cells have.
    bool raise(const Problem& p, const Variant& v, const T* cells, const int16_t* material, Region region, Region risen,
               float* z) {
        if (!prepare_tiles(p, v, risen)) return false;
        if (tabled_ && p.rule == Rule::com) prepare_columns(p, v.y.extent);
        const int64_t on_x = std::min(region.x1, v.x.on_grid), on_y = std::min(region.y1, v.y.on_grid);
        for (int64_t lane = region.y0 / TILE * TILE; lane < on_y; lane += TILE) {
            const Tile tile{p, v, cells, material, risen, lane, std::max(region.y0 - lane, int64_t(0)),
                            std::min(on_y - lane, TILE)};
            for (int64_t g = region.x0; g < on_x; g += ROWS)
                if (!raise(tile, g * p.step, std::min(ROWS, on_x - g), z + g * p.grid_y + lane)) return false;
            if (region.x1 > v.x.on_grid && !raise(tile, v.x.last, 1, z + v.x.on_grid * p.grid_y + lane)) return false;
        }
        if (region.y1 > v.y.on_grid) {
            T* found = found_.at_least(p.grid_x + L::count);
            for (int64_t g = region.x0; g < region.x1; g++) {
                found[g] = turned(p, z[g * p.grid_y + v.y.on_grid]);
                if (metres(p, found[g]) != z[g * p.grid_y + v.y.on_grid]) return false;
            }
            flush_column(p, v, cells, material, region, risen.y0 - v.y.last, risen.y1 - v.y.last, found, 1);
            for (int64_t g = region.x0; g < region.x1; g++) z[g * p.grid_y + v.y.on_grid] = metres(p, found[g]);
        }
        return true;
    }

    // Rest heights in metres from those turned about, and back.
    static INLINE T turned(const Problem& p, float height) {
        if constexpr (!L::integer) return 0.0f - height;
        const float counts = height * (1.0f / p.unit), most = float(L::top) - 1, held = counts > 0 ? counts : 0;  // NaN: 0
        return T(int32_t(L::top) - int32_t((held < most ? held : most) + 0.5f));
    }
    static INLINE float metres(const Problem& p, T w) {
        return L::integer ? float(int32_t(L::top) - int32_t(w)) * p.unit : 0.0f - float(w);
    }

    // Input of `rest`, for the stability test of its results: turned-about heights under column j of the footprint,
    // from the first line and the first placement on, lines of the bin being `pitch()` apart; the same along x under
    // row i, for placements that begin at cell `offset` and further steps behind; true if lines [x, end) are empty.
    const T* column(int64_t j, const Problem& p) const {
        return tabled_ ? table_.data() + j * p.cells_x * lanes_ : along_y_.from(j);
    }
    int64_t pitch() const { return tabled_ ? lanes_ : along_y_.pitch; }
    const T* row(int64_t i, int64_t offset, int64_t y) const { return along_x_.from(i + offset) + y * along_x_.pitch; }
    bool bare(int64_t x, int64_t end) const { return filled_[x] == filled_[end]; }

   private:
    struct Job {
        const Problem& p;
        const Variant& v;
        const T* cells;
        const int16_t* material;
        int64_t lane;
        T* out;
        int64_t pitch;
    };
    // A vector of few placements of several rows: windows of what has risen are narrow.
    static constexpr int64_t TILE = L::count < 16 ? L::count : 16, ROWS = L::count / TILE;
    struct Tile {
        const Problem& p;
        const Variant& v;
        const T* cells;
        const int16_t* material;
        Region risen;
        int64_t lane, first, end;  // placements of the region in a row: [lane + first, lane + end)
    };

    // Also counts the lines of the bin, up to each, that are not empty.
    bool turn_about(const Problem& p, const float* __restrict heights) {
        filled_.assign(p.cells_x + 1, 0);
        for (int64_t x = 0; x < p.cells_x; x++) {
            int32_t some = 0;
            for (int64_t y = 0; y < p.cells_y; y++) some |= heights[x * p.cells_y + y] != 0;
            filled_[x + 1] = filled_[x] + some;
        }
        T* __restrict w = turned_.data();
        const int64_t area = p.area();
        if constexpr (!L::integer) {
            for (int64_t i = 0; i < area; i++) w[i] = 0.0f - heights[i];
            return true;
        }
        const float per_unit = 1.0f / p.unit, most = float(L::top) - 1;
        int odd = 0;
        for (int64_t i = 0; i < area; i++) {
            const float counts = heights[i] * per_unit;
            const float held = counts > 0 ? counts : 0;  // also for NaN, which converts to no integer
            const int32_t whole = int32_t((held < most ? held : most) + 0.5f);
            odd |= !(std::fabs(counts - float(whole)) <= 1e-3f) | (counts > most);
            w[i] = T(int32_t(L::top) - whole);
        }
        return !odd;
    }

    void split_along_y(const Problem& p) {
        const T* w = turned_.data();
        for (int64_t x = 0; x < p.cells_x; x++)
            for (int64_t phase = 0; phase < p.step; phase++) {
                T* line = along_y_.line(phase, x);
                for (int64_t y = phase, lane = 0; y < p.cells_y; y += p.step, lane++) line[lane] = w[x * p.cells_y + y];
            }
    }

    // Of the lines under placements flush with the wall along y.
    void split_along_x(const Problem& p) {
        if (along_x_ready_) return;
        along_x_ready_ = true;
        const int64_t first = std::max<int64_t>(0, p.cells_y - p.columns);
        for (int64_t x = 0; x < p.cells_x; x++) {
            const T* w = turned_.data() + x * p.cells_y;
            T* to = along_x_.line(x % p.step, first) + x / p.step;
            for (int64_t y = first; y < p.cells_y; y++, to += along_x_.pitch) *to = w[y];
        }
    }

    // Lines of the windows under each column of a footprint, on vector boundaries: made once, read by every item.
    void prepare_columns(const Problem& p, int64_t columns) {
        for (int64_t j = 0; j < columns; j++) {
            if (ready_[j]) continue;
            ready_[j] = true;
            const T* from = along_y_.from(j);
            T* to = table_.data() + j * p.cells_x * lanes_;
            for (int64_t x = 0; x < p.cells_x; x++, from += along_y_.pitch)
                for (int64_t lane = 0; lane < lanes_; lane += L::count, to += L::count) L::store(to, L::load(from + lane));
        }
    }

    // Blocks of rows of placements, as many as the registers hold, then the row flush with the far wall.
    template <int C>
    void strip(const Job& job, int64_t x0, int64_t on_grid, int64_t x1) {
        constexpr int most = ACCUMULATORS / C;
        int64_t g = x0;
        while (on_grid - g >= most) block<most, C>(job, g, g * job.p.step), g += most;
        if constexpr (most >= 16)
            if (on_grid - g >= 8) block<8, C>(job, g, g * job.p.step), g += 8;
        if constexpr (most >= 8)
            while (on_grid - g >= 4) block<4, C>(job, g, g * job.p.step), g += 4;
        if constexpr (most >= 4)
            while (on_grid - g >= 2) block<2, C>(job, g, g * job.p.step), g += 2;
        for (; g < on_grid; g++) block<1, C>(job, g, g * job.p.step);
        if (x1 > job.v.x.on_grid) block<1, C>(job, job.v.x.on_grid, job.v.x.last);
    }

    // R rows of C vectors of placements stay in registers while all cells of the footprint pass by.
    template <int R, int C>
    __attribute__((noinline)) void block(const Job& job, int64_t g, int64_t x) const {
        const int64_t pitch = this->pitch(), next = job.p.step * pitch;
        Vector<T> nearest[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) nearest[r][c] = L::all(L::top);
        const bool empty = bare(x, x + (R - 1) * job.p.step + job.v.x.extent);  // then it rests on the floor
        for (int64_t j = 0; j < (empty ? 0 : job.v.y.extent); j++) {
            const T* cell = job.cells + j * job.p.rows;
            const int64_t first = job.material[2 * j], end = job.material[2 * j + 1];
            const T* window = column(j, job.p) + (x + first) * pitch + job.lane;
            for (int64_t i = first; i < end; i++, window += pitch) {
                const Vector<T> b = L::all(cell[i]);
#pragma GCC unroll 16
                for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                    for (int c = 0; c < C; c++)
                        nearest[r][c] = nearer<T>(nearest[r][c], L::load(window + r * next + c * L::count), b);
            }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) L::store(job.out + (g + r) * job.pitch + c * L::count, nearest[r][c]);
    }

    // Windows of tiles under each column of a footprint, of the lines that have risen: made once, read by every item.
    bool prepare_tiles(const Problem& p, const Variant& v, Region risen) {
        const int64_t from = risen.x0 - (ROWS - 1) * p.step, lines = risen.x1 - from;
        const int64_t tiles = (p.grid_y + TILE - 1) / TILE;
        if (tiled_ == 0) {
            const int64_t bytes = tiles * p.columns * lines * VECTOR_BYTES;
            if (bytes > TABLE_BYTES) return false;
            tiles_.at_least(bytes / sizeof(T));
            first_line_ = from, lines_ = lines;
            highest_x_.assign(p.cells_x, L::top), highest_y_.assign(p.cells_y, L::top);
            for (int64_t x = risen.x0; x < risen.x1; x++)
                for (int64_t y = risen.y0; y < risen.y1; y++) {
                    const T w = turned_.data()[x * p.cells_y + y];
                    highest_x_[x] = std::min(highest_x_[x], w), highest_y_[y] = std::min(highest_y_[y], w);
                }
        }
        for (; tiled_ < v.y.extent; tiled_++)
            for (int64_t tile = 0; tile < tiles; tile++)
                for (int64_t line = 0; line < lines; line++) {
                    T* to = tiles_.data() + ((tile * p.columns + tiled_) * lines + line) * L::count;
                    for (int64_t r = 0; r < ROWS; r++) {
                        const int64_t x = std::min(std::max<int64_t>(from + line + r * p.step, 0), p.cells_x - 1);
                        std::memcpy(to + r * TILE, along_y_.from(tiled_) + x * along_y_.pitch + tile * TILE, TILE * sizeof(T));
                    }
                }
        return true;
    }

    // The placements of `rows` rows from line x on; `z` are those of the tile's first lane.
    bool raise(const Tile& tile, int64_t x, int64_t rows, float* z) const {
        const Problem& p = tile.p;
        alignas(VECTOR_BYTES) T held[L::count] = {};
        int odd = 0;
        T lowest = std::numeric_limits<T>::lowest();  // of the placements; nothing lower than this lifts any
        for (int64_t r = 0; r < rows; r++)
            for (int64_t lane = tile.first; lane < tile.end; lane++) {
                const float height = z[r * p.grid_y + lane];
                const T w = held[r * TILE + lane] = turned(p, height);
                odd |= metres(p, w) != height;
                lowest = std::max(lowest, w);
            }
        if (odd) return false;
        Region risen = tile.risen;
        while (risen.x0 < risen.x1 && highest_x_[risen.x0] >= lowest) risen.x0++;
        while (risen.x0 < risen.x1 && highest_x_[risen.x1 - 1] >= lowest) risen.x1--;
        while (risen.y0 < risen.y1 && highest_y_[risen.y0] >= lowest) risen.y0++;
        while (risen.y0 < risen.y1 && highest_y_[risen.y1 - 1] >= lowest) risen.y1--;
        if (risen.empty()) return true;
        const int64_t x0 = risen.x0 - x - (rows - 1) * p.step, x1 = risen.x1 - x;  // of the footprint
        const int64_t y0 = risen.y0 - (tile.lane + tile.end - 1) * p.step, y1 = risen.y1 - (tile.lane + tile.first) * p.step;
        Vector<T> nearest = L::load(held);
        for (int64_t j = std::max<int64_t>(y0, 0); j < std::min(y1, tile.v.y.extent); j++) {
            const T* cell = tile.cells + j * p.rows;
            const int64_t first = std::max<int64_t>(tile.material[2 * j], x0);
            const int64_t end = std::min<int64_t>(tile.material[2 * j + 1], x1);
            const int64_t line = (tile.lane / TILE * p.columns + j) * lines_ + x + first - first_line_;
            const T* window = tiles_.data() + line * L::count;
#pragma GCC unroll 4
            for (int64_t i = first; i < end; i++, window += L::count)
                nearest = nearer<T>(nearest, L::load(window), L::all(cell[i]));
        }
        L::store(held, nearest);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t lane = tile.first; lane < tile.end; lane++)
                z[r * p.grid_y + lane] = metres(p, held[r * TILE + lane]);
        return true;
    }

    // Whether rows of placements one behind the other fill fewer vectors than each by itself.
    bool fewer_when_flat(Region region, int64_t on_x, int64_t on_y) const {
        if (!L::integer || region.x0 >= on_x || region.y0 >= on_y) return false;
        const int64_t in_a_row = (on_y - region.y0 / L::count * L::count + L::count - 1) / L::count;
        return (on_x - region.x0 - 1) * along_y_.pitch + on_y - region.y0 < (on_x - region.x0 - 1) * in_a_row * L::count;
    }

    // Heights by the phases of the grid step along both axes: neighbouring rows of placements lie one behind the other.
    void split_flat(const Problem& p) {
        if (flat_ready_) return;
        flat_ready_ = true;
        const int64_t lines = (p.cells_x + p.step - 1) / p.step, plane = lines * along_y_.pitch;
        T* to = flat_.at_least(p.step * p.step * plane + 2 * ACCUMULATORS * L::count + plane);
        for (int64_t phase = 0; phase < p.step; phase++)
            for (int64_t x = 0; x < p.cells_x; x++)
                std::copy_n(along_y_.line(phase, x), along_y_.pitch,
                            to + (phase * p.step + x % p.step) * plane + x / p.step * along_y_.pitch);
        line_.resize(p.cells_x);
        for (int64_t x = 0; x < p.cells_x; x++) line_[x] = x % p.step * plane + x / p.step * along_y_.pitch;
    }

    void flat_rest(const Problem& p, const Variant& v, const T* cells, const int16_t* material, Region region,
                   int64_t on_x, int64_t on_y, T* out, int64_t pitch) {
        split_flat(p);
        const int64_t rows = on_x - region.x0, wide = along_y_.pitch, length = (rows - 1) * wide + on_y - region.y0;
        T* found = found_.at_least(length + ACCUMULATORS * L::count);
        const auto pass = [&](int64_t x, int64_t first, int64_t size) {
            const Flat job{p, v, cells, material, x};
            for (int64_t at = 0, taken; at < size; at += taken * L::count) {
                const int64_t left = (size - at + L::count - 1) / L::count;
                taken = std::min<int64_t>(left == 1 ? 1 : (left + 1) / 2 * 2, ACCUMULATORS);
                flat_block(taken, job, first + at, found + at);
            }
        };
        pass(0, region.x0 * wide + region.y0, length);
        for (int64_t g = 0; g < rows; g++)
            std::copy_n(found + g * wide, on_y - region.y0, out + (region.x0 + g) * pitch + region.y0);
        if (region.x1 <= v.x.on_grid) return;
        pass(v.x.last, region.y0, on_y - region.y0);
        std::copy_n(found, on_y - region.y0, out + v.x.on_grid * pitch + region.y0);
    }

    struct Flat {
        const Problem& p;
        const Variant& v;
        const T* cells;
        const int16_t* material;
        int64_t x;
    };

    // An even number of vectors, or one.
    void flat_block(int64_t vectors, const Flat& job, int64_t first, T* out) const {
        switch (vectors) {
            case 1: return flat_block<1>(job, first, out);
            case 2: return flat_block<2>(job, first, out);
            case 4: return flat_block<4>(job, first, out);
            case 6: return flat_block<6>(job, first, out);
            case 8: return flat_block<8>(job, first, out);
            case 10: return flat_block<10>(job, first, out);
            case 12: return flat_block<12>(job, first, out);
            case 14: return flat_block<14>(job, first, out);
            default: flat_block<16>(job, first, out);
        }
    }

    // R vectors of placements, from the one of number `first` on, that begin `job.x` lines further on.
    template <int R>
    __attribute__((noinline)) void flat_block(const Flat& job, int64_t first, T* out) const {
        const Problem& p = job.p;
        const int64_t plane = (p.cells_x + p.step - 1) / p.step * along_y_.pitch;
        Vector<T> nearest[R];
        for (int r = 0; r < R; r++) nearest[r] = L::all(L::top);
        const int64_t x = job.x + first / along_y_.pitch * p.step;
        const int64_t last = job.x + (first + R * L::count - 1) / along_y_.pitch * p.step + job.v.x.extent;
        const int64_t columns = bare(x, std::min(last, p.cells_x)) ? 0 : job.v.y.extent;  // else it rests on the floor
        for (int64_t j = 0; j < columns; j++) {
            const T* cell = job.cells + j * p.rows;
            const T* from = flat_.data() + j % p.step * p.step * plane + j / p.step + first;
            for (int64_t i = job.material[2 * j]; i < job.material[2 * j + 1]; i++) {
                const Vector<T> b = L::all(cell[i]);
                const T* window = from + line_[job.x + i];
#pragma GCC unroll 16
                for (int r = 0; r < R; r++) nearest[r] = nearer<T>(nearest[r], L::load(window + r * L::count), b);
            }
        }
        for (int r = 0; r < R; r++) L::store(out + r * L::count, nearest[r]);
    }

    // Raises placements flush with the wall along y to what columns [first, end) of the footprint rest on: vectors run
    // along x, and the corner is one lane of its own.
    void flush_column(const Problem& p, const Variant& v, const T* cells, const int16_t* material, Region region,
                      int64_t first, int64_t end, T* to, int64_t pitch) {
        split_along_x(p);
        first = std::max<int64_t>(first, 0), end = std::min(end, v.y.extent);
        T found[2][L::count];
        const int64_t on_x = std::min(region.x1, v.x.on_grid);
        int64_t g = region.x0;
        do {
            flush_lanes(p, v, cells, material, first, end, std::min(g, v.x.on_grid), found);
            for (int64_t lane = 0; lane < L::count && g + lane < on_x; lane++) {
                T& nearest = to[(g + lane) * pitch];
                nearest = std::min(nearest, found[0][lane]);
            }
        } while ((g += L::count) < on_x);
        T& corner = to[v.x.on_grid * pitch];
        if (region.x1 > v.x.on_grid) corner = std::min(corner, found[1][0]);
    }

    // Placements from row `lane` on, and those from the last one on, which is flush with the wall along x.
    void flush_lanes(const Problem& p, const Variant& v, const T* cells, const int16_t* material, int64_t first,
                     int64_t end, int64_t lane, T (&found)[2][L::count]) const {
        Vector<T> nearest[2] = {L::all(L::top), L::all(L::top)};
        for (int64_t j = first; j < end; j++)
            for (int64_t i = material[2 * j]; i < material[2 * j + 1]; i++) {
                const Vector<T> b = L::all(cells[j * p.rows + i]);
                nearest[0] = nearer<T>(nearest[0], L::load(row(i, 0, v.y.last + j) + lane), b);
                nearest[1] = nearer<T>(nearest[1], L::load(row(i, v.x.last, v.y.last + j)), b);
            }
        for (int each = 0; each < 2; each++) L::store(found[each], nearest[each]);
    }

    int64_t env_ = -1, lanes_ = 0, tiled_ = 0, first_line_ = 0, lines_ = 0;
    uint64_t call_ = 0;
    bool whole_ = false, tabled_ = false, along_x_ready_ = false, flat_ready_ = false;
    std::vector<char> ready_;
    std::vector<int32_t> filled_;
    std::vector<int64_t> line_;
    std::vector<T> highest_x_, highest_y_;  // of the risen cells of each line, turned about
    Scratch<T> turned_, table_, tiles_, flat_, found_;
    Phases<T> along_y_, along_x_;
};
