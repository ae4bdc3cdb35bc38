// Stability of irregular items by the rule `com`, for many placements at once: the centre of mass is over the contact.
//
// The columns of a footprint are visited in order. For each, every lane keeps the first and the last cell that touches,
// compared on the turned-about heights of the z-map, and then the steepest line from the centre to one. Slopes are
// fractions of integers, in sixteenths of a cell, compared by products that lanes represent exactly.
#pragma once

#include <type_traits>

#include "hull.h"
#include "lanes.h"
#include "problem.h"
#include "solids.h"

// The centre of mass of an item, sixteenths of a cell from the corner of its footprint.
struct Centre {
    int64_t x, y;

    Centre(const Problem& p, const Variant& v)
        : x(p.centre_16ths ? within(p.centre_16ths[2 * v.row], v.x) : 8 * v.x.extent),
          y(p.centre_16ths ? within(p.centre_16ths[2 * v.row + 1], v.y) : 8 * v.y.extent) {}

   private:
    static int64_t within(int64_t at, const Axis& axis) { return std::min(std::max<int64_t>(at, 0), 16 * axis.extent); }
};

constexpr int64_t MOST_CELLS_IN_FLOATS = 256;  // of a footprint's side: products up to (16 · 256)² = 2²⁴

// R lines of placements of one item, a vector each; the hull is worked out in numbers of type A.
template <class T, class A, int R>
class Balance {
   public:
    using L = Lanes<T>;

    // `nearest` are turned-about rest heights, `open` not 0 where a lane is to be tested; a vector for each line.
    Balance(Centre centre, T gap, const T* nearest, const uint8_t* open) : centre_(centre), gap_(gap) {
        for (int r = 0; r < R; r++) {
            level_[r] = L::load(nearest + r * L::count);
            if constexpr (!L::integer) level_[r] += gap;
            for (int part = 0; part < parts; part++) {
                Part& of = parts_[r][part];
                for (int i = 0; i < lanes; i++) of.done[i] = open[r * L::count + part * lanes + i] ? 0 : -1;
                for (Side& side : of.sides) side = {Wide{} - 1, Wide{}, Mask{}};  // below all slopes, and meets none
            }
        }
    }

    // Takes column j, whose cells with material are among [first, end). `window(i)` points to the heights under cell i of
    // the first line; those of the next line are `next` behind. Returns whether any lane is still undecided.
    template <class Window>
    bool take(int64_t j, const T* cell, int64_t first, int64_t end, const Window& window, int64_t next) {
        const int64_t ahead = 16 * j + 8 - centre_.y;
        if (ahead > 0 && !behind_) give_up();
        for (int64_t from = first; from < end; from += span - 1)
            join(from, ahead, scan(cell, from, std::min(end, from + span - 1), window, next));
        if (-8 <= ahead && ahead <= 8) take_square(cell, first, end, window, next);
        return ahead < -8 || undecided();
    }

    bool holds(int r, int lane) const {
        const Part& of = parts_[r][lane / lanes];
        return of.sides[0].held[lane % lanes] & of.sides[1].held[lane % lanes];
    }

   private:
    using Wide = Vector<A>;
    typedef int32_t Mask __attribute__((vector_size(VECTOR_BYTES)));  // of the lanes of a `Wide`
    static constexpr int parts = sizeof(A) / sizeof(T), lanes = Lanes<A>::count;
    static constexpr int64_t span = L::integer ? int64_t(L::top) : 1 << 16;  // cells are numbered below it

    // Towards one end of the columns: the steepest contact of the columns before the centre's, `rise` past the centre at
    // a distance of `run`, and whether the hull reaches the centre.
    struct Side {
        Wide rise, run;
        Mask held;
    };
    struct Part {
        Side sides[2];
        Mask done;
    };
    // The cell of a column that touches and is furthest to either end, numbered from the other end; 0 for none.
    struct Furthest {
        alignas(VECTOR_BYTES) T far[R * L::count], near[R * L::count];
    };

    // Of heights under one cell of an item, each line's: raises `far` and `near` to a number each where they touch. No
    // height is 0, the least level, so nothing touches where there is no material.
    INLINE void touch(const T* under, int64_t next, T b, const Vector<T>* numbers, Vector<T>* far, Vector<T>* near) const {
        if (L::integer && b < gap_) {
            const Vector<T> up = L::all(gap_ - b);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                raise<T>(far[r], near[r], L::load(under + r * next), above<T>(level_[r], up), numbers);
            return;
        }
        const Vector<T> down = L::all(!L::integer || b == L::none ? b : T(b - gap_));
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const Vector<T> height = L::load(under + r * next);
            if constexpr (L::integer)
                raise<T>(far[r], near[r], height, below<T>(level_[r], down), numbers);
            else
                raise<T>(far[r], near[r], height + down, level_[r], numbers);
        }
    }

    template <class Window>
    INLINE Furthest scan(const T* cell, int64_t from, int64_t end, const Window& window, int64_t next) const {
        Vector<T> far[R] = {}, near[R] = {}, numbers[2] = {Vector<T>{}, L::all(T(span))};
        for (int64_t i = from; i < end; i++) {
            numbers[0] += T(1), numbers[1] -= T(1);
            touch(window(i), next, cell[i], numbers, far, near);
        }
        Furthest found;
        for (int r = 0; r < R; r++) {
            L::store(found.far + r * L::count, far[r]);
            L::store(found.near + r * L::count, near[r]);
        }
        return found;
    }

    INLINE void join(int64_t from, int64_t ahead, const Furthest& found) {
        const int64_t centre = centre_.x - 16 * from;
        for (int r = 0; r < R; r++)
            for (int part = 0; part < parts; part++) {
                const int64_t at = r * L::count + part * lanes;
                const Wide far = wide(found.far + at), near = wide(found.near + at);
                if (!any(far)) continue;
                Part& of = parts_[r][part];
                join(of.sides[0], far > 0, 16 * far - A(8 + centre), A(ahead));
                join(of.sides[1], far > 0, 16 * near - A(16 * span - 8 - centre), A(ahead));
            }
    }

    static INLINE void join(Side& side, Mask there, Wide reach, A ahead) {
        reach = there ? reach : Wide{};  // of other lanes the number means nothing, and its products need not fit
        if (ahead < 0) {
            const Mask steeper = there & (crossing(side.rise, side.run, reach, Wide{} + ahead) > 0);
            side.rise = steeper ? reach : side.rise;
            side.run = steeper ? Wide{} - ahead : side.run;
        } else if (ahead > 0) {
            side.held |= there & (crossing(side.rise, side.run, reach, Wide{} + ahead) >= 0);
        } else {
            side.held |= there & (reach >= 0);
        }
    }

    // What has no contact up to the centre's column is not held by those behind it.
    void give_up() {
        behind_ = true;
        for (auto& line : parts_)
            for (Part& of : line) of.done |= of.sides[0].run == 0;
    }

    // Contacts whose square the centre is in.
    template <class Window>
    void take_square(const T* cell, int64_t first, int64_t end, const Window& window, int64_t next) {
        const Vector<T> one[2] = {L::all(T(1)), L::all(T(1))};
        const int64_t from = std::max(first, (centre_.x - 1) / 16), last = std::min(end - 1, centre_.x / 16);
        for (int64_t i = from; i <= last; i++) {
            Vector<T> touching[R] = {}, same[R] = {};
            touch(window(i), next, cell[i], one, touching, same);
            for (int r = 0; r < R; r++) {
                T found[L::count];
                L::store(found, touching[r]);
                for (int part = 0; part < parts; part++)
                    for (Side& side : parts_[r][part].sides) side.held |= wide(found + part * lanes) > 0;
            }
        }
    }

    bool undecided() const {
        for (const auto& line : parts_)
            for (const Part& of : line)
                if (any(~(of.done | (of.sides[0].held & of.sides[1].held)))) return true;
        return false;
    }

    static INLINE Wide wide(const T* numbers) { return __builtin_convertvector(widened(numbers), Wide); }

    Centre centre_;
    T gap_;
    bool behind_ = false;
    Vector<T> level_[R];
    Part parts_[R][parts];
};

// Stability of one item, given its rest heights.
template <class T, class A>
class Judge {
   public:
    // `nearest` are turned-about rest heights of `bin`, rows `pitch` apart; `legal` is (Gx, Gy).
    Judge(const Problem& p, const Variant& v, const SolidBin<T>& bin, const T* cells, const int16_t* material,
          const T* nearest, int64_t pitch, uint8_t* legal)
        : p_(p), v_(v), bin_(bin), cells_(cells), material_(material), nearest_(nearest), pitch_(pitch), legal_(legal) {
        if constexpr (L::integer)
            gap_ = T(std::min<int64_t>(p.counted_gap, L::top - 1));  // a legal item is nowhere that far up
        else
            gap_ = p.gap;
    }

    // Removes from the legal placements of `region` those that are not stable.
    void all(Region region) const {
        const int64_t on_x = std::min(region.x1, v_.x.on_grid), on_y = std::min(region.y1, v_.y.on_grid);
        for (int64_t gy = region.y0 / L::count * L::count; gy < on_y; gy += L::count) {
            const Range lanes{std::max<int64_t>(region.y0 - gy, 0), std::min<int64_t>(on_y - gy, L::count)};
            int64_t gx = region.x0;
            for (; gx + LINES <= on_x; gx += LINES) along_y<LINES>(gx, gy, lanes);
            for (; gx < region.x1; gx++) along_y<1>(gx, gy, lanes);
        }
        if (region.y1 <= v_.y.on_grid) return;  // or else those flush with the wall along y: vectors run along x
        for (int64_t gx = region.x0; gx < on_x; gx += L::count)
            along_x(gx, gx * p_.step, {0, std::min<int64_t>(on_x - gx, L::count)});
        if (region.x1 > v_.x.on_grid) along_x(v_.x.on_grid, v_.x.last, {0, 1});
    }

   private:
    using L = Lanes<T>;
    static constexpr int LINES = std::is_same<A, float>::value ? 4 : 1;  // rarely the other: less to compile
    struct Range {
        int64_t first, end;
    };

    // Some lanes of R lines of placements; the lanes begin at gy, the lines at gx.
    template <int R>
    void along_y(int64_t gx, int64_t gy, Range lanes) const {
        const int64_t x = v_.x.position(gx, p_.step), step = bin_.pitch();
        const auto at = [&](int r, int64_t lane) { return (gx + r) * p_.grid_y + gy + lane; };
        if (p_.stable_on_floor && bin_.bare(x, x + (R - 1) * p_.step + v_.x.extent)) {
            for (int r = 0; r < R; r++)
                for (int64_t i = lanes.first; i < lanes.end; i++) legal_[at(r, i)] &= p_.stable_on_floor[v_.row];
            return;
        }
        T nearest[R * L::count];
        for (int r = 0; r < R; r++) L::store(nearest + r * L::count, L::load(nearest_ + (gx + r) * pitch_ + gy));
        decide<R>(nearest, lanes, at, p_.step * step, [&](int64_t j) {
            const T* column = bin_.column(j, p_) + x * step + gy;
            return [column, step](int64_t i) { return column + i * step; };
        });
    }

    // Some placements flush with the wall along y; the lanes begin at gx, at cell x.
    void along_x(int64_t gx, int64_t x, Range lanes) const {
        const int64_t gy = v_.y.on_grid;
        const auto at = [&](int, int64_t lane) { return (gx + lane) * p_.grid_y + gy; };
        T nearest[L::count] = {};
        for (int64_t i = 0; i < lanes.end; i++) nearest[i] = nearest_[(gx + i) * pitch_ + gy];
        decide<1>(nearest, lanes, at, 0, [&](int64_t j) {
            return [this, x, j](int64_t i) { return bin_.row(i, x, v_.y.last + j); };
        });
    }

    // Stability of some lanes of R lines, which `legal_` has `at(line, lane)`; `windows(j)` and `next` are what
    // `Balance::take` wants.
    template <int R, class At, class Windows>
    void decide(const T* nearest, Range lanes, const At& at, int64_t next, const Windows& windows) const {
        uint8_t open[R * L::count] = {};
        bool some = false;
        for (int r = 0; r < R; r++)
            for (int64_t i = lanes.first; i < lanes.end; i++) some |= open[r * L::count + i] = legal_[at(r, i)];
        if (!some) return;
        Balance<T, A, R> balance(Centre(p_, v_), gap_, nearest, open);
        for (int64_t j = 0; j < v_.y.extent; j++)
            if (!balance.take(j, cells_ + j * p_.rows, material_[2 * j], material_[2 * j + 1], windows(j), next)) break;
        for (int r = 0; r < R; r++)
            for (int64_t i = lanes.first; i < lanes.end; i++) legal_[at(r, i)] &= balance.holds(r, i);
    }

    const Problem& p_;
    const Variant& v_;
    const SolidBin<T>& bin_;
    const T* cells_;
    const int16_t* material_;
    const T* nearest_;
    int64_t pitch_;
    uint8_t* legal_;
    T gap_;
};
