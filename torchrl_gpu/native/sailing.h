// One action of the unicycles of marine navigation, and what they see then, of a vector of worlds at a time;
// envs/marine/dynamics.py and sensors.py define both. T is float or double.

#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "lanes.h"

constexpr int64_t SUBSTEPS = 10, SEEN = 5;
constexpr int64_t OWN_SEEN = 4, OBSTACLE_SEEN = 3, ROBOT_SEEN = 4;  // numbers of an observation
constexpr int64_t ALL_SEEN = OWN_SEEN + SEEN * (OBSTACLE_SEEN + ROBOT_SEEN);

struct Sea {
    int64_t envs, robots, cores, obstacles, lagged, threads;
    double dt, max_speed, turn, core_square, radius, reach, robot_reach, sight, far, above_zero;
    double kept[SUBSTEPS + 1], less_cos[SUBSTEPS + 1], sin[SUBSTEPS + 1];  // of a full turn; less_cos: 1 − cos
    const void *motion, *cos_heading, *sin_heading;                        // (8, R, N), (R, N)
    const int64_t* action;                                                 // (R, N)
    const uint8_t* active;                                                 // (R, N)
    const void* scene;                                                     // (2R + 3C + 3M, N)
    void *moved, *energy, *observation, *mask, *clearance;  // (8, R, N), (R, N), (N, R, 39), (N, R, 10), (R, N)
    uint8_t* touches;                                       // (R, N)
};

template <class T>
class Sailing {
    using V = Vector<T>;
    using Bits = typename std::conditional<sizeof(T) == 4, int32_t, int64_t>::type;
    using B = Vector<Bits>;
    static constexpr int L = Lanes<T>::count;
    struct Robot {
        V x, y, vx, vy, cos, sin, there, away;
    };
    struct Point {
        V x, y, extra;  // extra: a core's circulation, an obstacle's radius
    };

   public:
    explicit Sailing(const Sea& sea) : s_(sea), radius_(T(sea.radius)) {
        robots_ = room_.at_least((sizeof(Robot) * s_.robots + sizeof(Point) * (s_.cores + s_.obstacles)) / sizeof(T));
        cores_ = robots_ + s_.robots * (sizeof(Robot) / sizeof(T));
        obstacles_ = cores_ + s_.cores * 3 * L;
        int64_t places = std::max<int64_t>(std::max(s_.robots, s_.obstacles) - 1, 1);
        for (index_bits_ = 1; index_bits_ <= places;) index_bits_ *= 2;
        index_bits_--;
    }

    // Worlds [first, first + L) or fewer.
    void all(int64_t first) {
        first_ = first, count_ = int(std::min<int64_t>(L, s_.envs - first));
        const int64_t r = s_.robots, c = s_.cores, m = s_.obstacles;
        const auto scene = [&](int64_t row) { return read(s_.scene, row); };
        for (int64_t k = 0; k < c; k++)
            put(cores_, k, Point{scene(2 * r + k), scene(2 * r + c + k), scene(2 * r + 2 * c + k)});
        for (int64_t k = 0; k < m; k++) {
            const int64_t row = 2 * r + 3 * c + k;
            put(obstacles_, k, Point{scene(row), scene(row + m), scene(row + 2 * m)});
        }
        for (int64_t i = 0; i < r; i++) move(i);
        for (int64_t i = 0; i < r; i++) look(i, scene(i), scene(r + i));
    }

   private:
    void flow(V x, V y, V& along_x, V& along_y) const {
        along_x = along_y = V{};
        for (int64_t k = 0; k < s_.cores; k++) {
            const Point core = get<Point>(cores_, k);
            const V qx = core.x - x, qy = core.y - y, square = qx * qx + qy * qy, least = all_of(s_.core_square);
            const V strength = core.extra / (square > least ? square : least);
            along_x -= qy * strength, along_y += qx * strength;
        }
    }

    void move(int64_t i) {
        const int64_t r = s_.robots;
        const V x0 = read(s_.motion, i), y0 = read(s_.motion, r + i), heading0 = read(s_.motion, 2 * r + i);
        const V cos0 = read(s_.cos_heading, i), sin0 = read(s_.sin_heading, i), speed0 = read(s_.motion, 7 * r + i);
        const V vx0 = read(s_.motion, 3 * r + i), vy0 = read(s_.motion, 4 * r + i);
        const V drift_x0 = read(s_.motion, 5 * r + i), drift_y0 = read(s_.motion, 6 * r + i);
        alignas(VECTOR_BYTES) T commands[3][L] = {};
        for (int n = 0; n < count_; n++) {
            const int64_t given = s_.action[i * s_.envs + first_ + n], action = uint64_t(given) < 9 ? given : 4;
            commands[0][n] = T(action / 3 - 1), commands[1][n] = T(action % 3 - 1);
            commands[2][n] = T(s_.active[i * s_.envs + first_ + n] != 0);
        }
        const V push = Lanes<T>::load(commands[0]), turn = Lanes<T>::load(commands[1]), there = Lanes<T>::load(commands[2]);
        const V limit = push * T(s_.max_speed), turns = turn * turn, most = all_of(s_.max_speed), one = all_of(1);
        V x = x0, y = y0, vx, vy, drift_x = drift_x0, drift_y = drift_y0, speed, cos, sin;
        const auto head = [&](int k) {
            const V u = limit + (speed0 - limit) * T(s_.kept[k]), held = u > V{} ? u : V{};
            speed = held < most ? held : most;
            const V c = one - turns * T(s_.less_cos[k]), t = turn * T(s_.sin[k]);
            cos = cos0 * c - sin0 * t, sin = sin0 * c + cos0 * t;
        };
        for (int k = 0; k < SUBSTEPS; k++) {
            head(k);
            vx = speed * cos + drift_x, vy = speed * sin + drift_y;
            x += vx * T(s_.dt), y += vy * T(s_.dt);
            flow(x, y, drift_x, drift_y);
        }
        head(SUBSTEPS);
        if (!s_.lagged) vx = speed * cos + drift_x, vy = speed * sin + drift_y;
        V heading = heading0 + turn * T(s_.turn * (s_.dt * SUBSTEPS));
        alignas(VECTOR_BYTES) T angles[L];
        std::memcpy(angles, &heading, sizeof heading);
        for (T& angle : angles) {
            const T whole = T(2 * M_PI);
            if (angle < 0 || angle >= whole) angle = std::fmod(angle, whole), angle += angle < 0 ? whole : T(0);
        }
        heading = Lanes<T>::load(angles);
        const auto kept = [&](V now, V before) { return there > V{} ? now : before; };
        const Robot robot = {kept(x, x0),     kept(y, y0),     kept(vx, vx0), kept(vy, vy0),
                             kept(cos, cos0), kept(sin, sin0), there,         (one - there) * T(s_.far)};
        put(robots_, i, robot);
        write(s_.moved, i, robot.x), write(s_.moved, r + i, robot.y), write(s_.moved, 2 * r + i, kept(heading, heading0));
        write(s_.moved, 3 * r + i, robot.vx), write(s_.moved, 4 * r + i, robot.vy);
        write(s_.moved, 5 * r + i, kept(drift_x, drift_x0)), write(s_.moved, 6 * r + i, kept(drift_y, drift_y0));
        write(s_.moved, 7 * r + i, kept(speed, speed0));
        write(s_.energy, i, (push < V{} ? -push : push) + (turn < V{} ? -turn : turn));
    }

    void look(int64_t i, V goal_x, V goal_y) {
        const Robot me = get<Robot>(robots_, i);
        const auto turned = [&](V x, V y, V* to) {
            to[0] = me.cos * x + me.sin * y, to[1] = me.cos * y - me.sin * x;
        };
        V seen[ALL_SEEN] = {}, mask[2 * SEEN] = {};
        turned((goal_x - me.x) * me.there, (goal_y - me.y) * me.there, seen);
        turned(me.vx * me.there, me.vy * me.there, seen + 2);
        const V sight = all_of(s_.sight);
        const auto nearest = [&](int64_t number, double reach, V* within, const auto& object, const auto& list) {
            V keys[SEEN], least = all_of(INFINITY);
            for (V& key : keys) key = least;
            for (int64_t j = 0; j < number; j++) {
                const Point p = object(j);
                const V gap = root(p.x * p.x + p.y * p.y) - p.extra;
                least = gap < least ? gap : least;
                V key = (V)(((B)(gap + T(s_.above_zero)) & ~index_bits_) | Bits(j));
                for (V& other : keys) {
                    const V lower = key < other ? key : other;
                    key = key < other ? other : key;
                    other = lower;
                }
            }
            for (int64_t k = 0; k < std::min(number, SEEN); k++) {
                within[k] = keys[k] <= all_of(T(reach + s_.above_zero)) ? me.there : V{};
                list(k, (B)keys[k] & index_bits_, within[k]);
            }
            const V far = least <= all_of(reach) ? least : sight;
            return std::make_pair(least, far);
        };
        const auto still = nearest(
            s_.obstacles, s_.reach, mask,
            [&](int64_t j) {
                const Point p = get<Point>(obstacles_, j);
                return Point{p.x - me.x, p.y - me.y, p.extra + radius_};
            },
            [&](int64_t k, B index, V within) {
                V* to = seen + OWN_SEEN + k * OBSTACLE_SEEN;
                const Point p = picked<Point>(obstacles_, index, 3);
                turned((p.x - me.x) * within, (p.y - me.y) * within, to);
                to[2] = p.extra * within;
            });
        const auto moving = nearest(
            s_.robots, s_.robot_reach, mask + SEEN,
            [&](int64_t j) {
                const Robot other = get<Robot>(robots_, j);
                const V away = j == i ? other.away + T(s_.far) : other.away;
                return Point{other.x - me.x, other.y - me.y, 2 * radius_ - away};
            },
            [&](int64_t k, B index, V within) {
                V* to = seen + OWN_SEEN + SEEN * OBSTACLE_SEEN + k * ROBOT_SEEN;
                const Robot other = picked<Robot>(robots_, index, 4);
                turned((other.x - me.x) * within, (other.y - me.y) * within, to);
                turned(other.vx * within, other.vy * within, to + 2);
            });
        write(s_.clearance, i, still.second < moving.second ? still.second : moving.second);
        const V least = still.first < moving.first ? still.first : moving.first;
        for (int n = 0; n < count_; n++) s_.touches[i * s_.envs + first_ + n] = least[n] <= 0;
        scatter(s_.observation, i, seen, ALL_SEEN), scatter(s_.mask, i, mask, 2 * SEEN);
    }

    // The first vectors of the structures that an index names in each lane.
    template <class S>
    S picked(const T* from, B index, int vectors) const {
        S out;
        T* to = reinterpret_cast<T*>(&out);
        alignas(VECTOR_BYTES) Bits places[L];
        std::memcpy(places, &index, sizeof index);
        for (int v = 0; v < vectors; v++)
            for (int n = 0; n < L; n++) to[v * L + n] = from[places[n] * int64_t(sizeof(S) / sizeof(T)) + v * L + n];
        return out;
    }

    static INLINE V all_of(double x) { return Lanes<T>::all(T(x)); }
    static INLINE V root(V x) {
        alignas(VECTOR_BYTES) T lanes[L];
        std::memcpy(lanes, &x, sizeof x);
        for (int n = 0; n < L; n++) lanes[n] = std::sqrt(lanes[n]);
        return Lanes<T>::load(lanes);
    }
    template <class S>
    static INLINE S get(const T* from, int64_t k) {
        S out;
        std::memcpy(&out, from + k * int64_t(sizeof(S) / sizeof(T)), sizeof out);
        return out;
    }
    template <class S>
    static INLINE void put(T* to, int64_t k, const S& value) {
        std::memcpy(to + k * int64_t(sizeof(S) / sizeof(T)), &value, sizeof value);
    }

    INLINE V read(const void* rows, int64_t row) const {
        const T* at = static_cast<const T*>(rows) + row * s_.envs + first_;
        if (count_ == L) return Lanes<T>::load(at);
        V out{};
        for (int n = 0; n < count_; n++) out[n] = at[n];
        return out;
    }
    INLINE void write(void* rows, int64_t row, V value) const {
        T* at = static_cast<T*>(rows) + row * s_.envs + first_;
        if (count_ == L) return Lanes<T>::store(at, value);
        for (int n = 0; n < count_; n++) at[n] = value[n];
    }
    // Rows of a robot, one vector for each number, to where worlds are first.
    void scatter(void* to, int64_t i, const V* values, int64_t numbers) const {
        const T* from = reinterpret_cast<const T*>(values);
        for (int n = 0; n < count_; n++) {
            T* at = static_cast<T*>(to) + ((first_ + n) * s_.robots + i) * numbers;
            for (int64_t k = 0; k < numbers; k++) at[k] = from[k * L + n];
        }
    }

    const Sea& s_;
    const T radius_;
    Scratch<T> room_;
    T *robots_, *cores_, *obstacles_;
    Bits index_bits_;
    int64_t first_ = 0;
    int count_ = 0;
};
