// Whole rollouts of the greedy policy of n-tuple tables in bins of boxes: T steps of every bin in one call. Called from
// policies/packing/ntuple/greedy_rollouts.py.
//
// Bins do not depend on each other, so that one thread plays a bin through all steps, and there is no barrier between
// them. A step is made of the functions that single steps call, on a state of this bin alone, so that the bits are
// theirs.
#pragma once

#include <cfloat>
#include <cmath>
#include <vector>

#include "afterstates.h"
#include "boxes.h"
#include "cuts.h"
#include "transition.h"

// Sequences of items, see envs/packing/items/source.py and cutting.py. Mirrored in greedy_rollouts.py.
struct Source {
    enum Kind : int64_t { cut, endless, drawn_from_pool, pool_in_order };
    int64_t kind;
    int64_t length;              // most items of an episode
    int64_t seed;                // its 32 bits
    int64_t types;               // of endless ones: they are drawn from the first so many of the catalogue
    int64_t pool, places;        // sequences in the pool, and items of each
    int64_t stride;              // of a pool in order
    const int64_t* sequences;    // (pool, places); null for none
    const int64_t* cuts;         // as `struct Cuts`; null for none
};

// What is played, from which state, and what is kept of it. Mirrored in greedy_rollouts.py.
struct Rollout {
    int64_t steps;               // T
    const int64_t* env_number;   // (N,)
    const float* standing;       // (M, O), heights of items on the floor, +inf where they do not stand there
    const float* item_volume;    // (M,), cubic metres
    const float* gain;           // (M, O), share of the bin that an item fills
    float bin_volume, scale;     // cubic metres; levels in a metre
    int64_t pool;                // cells along each side of one that the tables see
    // The state, read and written; shapes as in PackingState.
    float* heightmap;
    int64_t *item, *position, *key, *episode, *num_packed, *step_count;
    float* volume;
    uint8_t* stable;
    int32_t* placements;
    float* placement_z;
    int64_t longest;             // rows of both, at least 1
    float* z_map;
    uint8_t* legal;
    // Of every step, (N, T, …).
    float* before;               // heightmap that is acted in
    int64_t* action;
    float* after;                // heightmap behind the step, before a restart
    float *reward, *utilization;
    uint8_t* done;
    // Of the last step.
    float* value;                // (N, K·O·Gx·Gy), of each placement, the least float where it is not legal
    float* chosen;               // (N,), that of the action
};

// The items of one environment, episode by episode.
class Episodes {
   public:
    explicit Episodes(const Source& source) : source_(source) {
        if (source.cuts) cuts_ = reinterpret_cast<const Cuts*>(source.cuts), rows_.resize(cuts_->most);
    }

    int64_t key_of(int64_t env, int64_t episode) const {
        const int64_t pool = std::max<int64_t>(source_.pool, 1);
        if (source_.kind == Source::pool_in_order) {
            const int64_t number = plus(env, int64_t(uint64_t(source_.stride) * uint64_t(episode))) % pool;
            return number < 0 ? number + pool : number;
        }
        const int64_t key = drawn(mixed(uint32_t(drawn(mixed(uint32_t(source_.seed)), env))), episode);
        return source_.kind == Source::drawn_from_pool ? int64_t(drawn(mixed(uint32_t(key)), 0) * pool >> 32) : key;
    }

    // The catalogue row at a place of an episode, −1 behind its end.
    int64_t item(int64_t key, int64_t position) {
        if (position >= source_.length) return -1;
        if (source_.kind == Source::endless)
            return int64_t(drawn(mixed(uint32_t(key)), position) * uint64_t(source_.types) >> 32);
        position = std::clamp<int64_t>(position, 0, source_.length - 1);
        if (source_.kind != Source::cut)
            return source_.sequences[std::clamp<int64_t>(key, 0, source_.pool - 1) * source_.places + position];
        if (!known_ || key != key_) {
            cut_whole(*cuts_, key, pieces_, waiting_);
            lay_cuts(*cuts_, pieces_, nullptr, rows_.data());
            key_ = key, known_ = true;
        }
        return rows_[std::min(position, cuts_->most - 1)];
    }

   private:
    const Source& source_;
    const Cuts* cuts_ = nullptr;
    bool known_ = false;
    int64_t key_ = 0;
    std::vector<int64_t> rows_;  // of the sequence of `key_`
    std::vector<CutPiece> pieces_, waiting_;
};

// One bin after the other, through all steps; keeps its memory from one to the next.
class Player {
   public:
    Player(const Problem& all, const Rollout& rollout, const Source& source, const Patches& patches)
        : problem_(all), standing_(all), rollout_(rollout), values_(patches), episodes_(source) {
        const int64_t slots = all.slots;
        for (Problem* each : {&problem_, &standing_}) each->envs = 1, each->threads = 1;
        standing_.height = rollout.standing;
        heights_.resize(all.area() + 2 * Lanes<float>::count), next_heights_.resize(heights_.size());
        next_item_.resize(slots), slot_.resize(slots), fresh_item_.resize(slots);
        levels_.resize(patches.area());
        extent_.resize(2 * all.variants());
        top_.resize(all.variants() * all.plane());
        value_.resize(all.variants() * all.plane());
    }

    void play(int64_t env) {
        const Rollout& r = rollout_;
        const int64_t area = problem_.area();
        take(env);
        for (int64_t t = 0; t < r.steps; t++) {
            const int64_t row = env * r.steps + t;
            std::memcpy(r.before + row * area, heights_.data(), area * sizeof(float));
            const int64_t action = choose(t + 1 == r.steps ? env : -1);
            r.action[row] = action;
            const float volume = *at_.volume;
            const bool legal = advance(action);
            std::memcpy(r.after + row * area, heights_.data(), area * sizeof(float));
            r.reward[row] = legal ? (*at_.volume - volume) / r.bin_volume : 0.0f;
            r.utilization[row] = *at_.volume / r.bin_volume;
            const bool done = !legal || !some_legal();
            r.done[row] = done;
            if (done) restart(r.env_number[env]);
        }
        std::memcpy(r.heightmap + env * area, heights_.data(), area * sizeof(float));
    }

   private:
    // The rows of one bin in the state.
    struct Rows {
        int64_t *item, *position, *key, *episode, *num_packed, *step_count;
        float* volume;
        uint8_t* stable;
        int32_t* placements;
        float *placement_z, *z_map;
        uint8_t* legal;
    };

    void take(int64_t env) {
        const Rollout& r = rollout_;
        const int64_t maps = problem_.variants() * problem_.plane();
        at_ = {r.item + env * problem_.slots, r.position + env, r.key + env, r.episode + env, r.num_packed + env,
               r.step_count + env, r.volume + env, r.stable + env, r.placements + 4 * env * r.longest,
               r.placement_z + env * r.longest, r.z_map + env * maps, r.legal + env * maps};
        std::memcpy(heights_.data(), r.heightmap + env * problem_.area(), problem_.area() * sizeof(float));
        problem_.item = standing_.item = at_.item;
    }

    uint8_t level(float metres) const {
        const float levels = std::nearbyint(metres * rollout_.scale);
        return uint8_t(std::min(std::max(levels, 0.0f), float(values_.patches().levels)));
    }

    // The bin as the tables see it.
    void see() {
        const int64_t pool = rollout_.pool, rows = values_.patches().cells_x, columns = values_.patches().cells_y;
        for (int64_t x = 0; x < rows; x++)
            for (int64_t y = 0; y < columns; y++) {
                float highest = heights_[x * pool * problem_.cells_y + y * pool];
                for (int64_t i = 0; pool > 1 && i < pool; i++)
                    for (int64_t j = 0; j < pool; j++)
                        highest = std::max(highest, heights_[(x * pool + i) * problem_.cells_y + y * pool + j]);
                levels_[x * columns + y] = level(highest);
            }
    }

    // The first action of the largest value; of environment `last`, unless that is −1, all values are kept.
    int64_t choose(int64_t last) {
        const int64_t plane = problem_.plane(), actions = problem_.variants() * plane;
        see();
        for (int64_t v = 0; v < problem_.variants(); v++) {
            const int64_t item = at_.item[v / problem_.orientations];
            const int64_t row = item * problem_.orientations + v % problem_.orientations;
            const bool there = problem_.has(item);
            extent_[2 * v] = there ? problem_.extent[2 * row] : 0;
            extent_[2 * v + 1] = there ? problem_.extent[2 * row + 1] : 0;
            const float height = there ? problem_.height[row] : 0.0f;
            for (int64_t i = v * plane; i < (v + 1) * plane; i++)
                top_[i] = at_.legal[i] ? level(at_.z_map[i] + height) : 0;
        }
        values_.all(levels_.data(), extent_.data(), top_.data(), at_.legal, problem_.variants(), problem_.step,
                    rollout_.pool, problem_.grid_x, problem_.grid_y, value_.data());
        int64_t best = 0;
        for (int64_t v = 0; v < problem_.variants(); v++) {
            const int64_t item = at_.item[v / problem_.orientations];
            const int64_t row = item * problem_.orientations + v % problem_.orientations;
            const float gain = problem_.has(item) ? rollout_.gain[row] : 0.0f;
            for (int64_t i = v * plane; i < (v + 1) * plane; i++) {
                const float sum = value_[i] + gain;
                value_[i] = at_.legal[i] ? (sum < NEVER ? NEVER : sum) : -FLT_MAX;
                // As torch's argmax: NaN is the largest of all.
                if (value_[i] > value_[best] || (std::isnan(value_[i]) && !std::isnan(value_[best]))) best = i;
            }
        }
        if (last >= 0) {
            std::copy_n(value_.data(), actions, rollout_.value + last * actions);
            rollout_.chosen[last] = value_[best];
        }
        return best;
    }

    // Places what an action says and computes the maps of what is shown then; whether it was legal.
    bool advance(int64_t action) {
        const int64_t following = episodes_.item(*at_.key, *at_.position);
        problem_.heightmap = heights_.data();
        int64_t position, num_packed, step_count, changed[4];
        float volume;
        uint8_t stable, was_legal;
        const Step step = {&action, at_.z_map, at_.legal, at_.position, at_.num_packed, at_.step_count, at_.volume,
                           at_.stable, &following, rollout_.item_volume, at_.placements, at_.placement_z,
                           rollout_.longest, next_heights_.data(), next_item_.data(), &position, &num_packed,
                           &step_count, &volume, &stable, &was_legal, slot_.data(), changed};
        advance_one(problem_, step, 0);
        heights_.swap(next_heights_);
        std::copy(next_item_.begin(), next_item_.end(), at_.item);
        *at_.position = position, *at_.num_packed = num_packed, *at_.step_count = step_count;
        *at_.volume = volume, *at_.stable = stable;
        problem_.heightmap = heights_.data();
        bin_.take(problem_, 0, ++heightmaps_);
        for (int64_t v = 0; v < problem_.variants(); v++) {
            const int64_t item = at_.item[v / problem_.orientations];
            float* z = at_.z_map + v * problem_.plane();
            uint8_t* legal = at_.legal + v * problem_.plane();
            if (problem_.has(item))
                drop_box(problem_, Variant(problem_, item, v % problem_.orientations), bin_, plane_, z, legal);
            else
                std::fill(z, z + problem_.plane(), problem_.ceiling), std::memset(legal, 0, problem_.plane());
        }
        return was_legal;
    }

    bool some_legal() const {
        uint8_t some = 0;
        for (int64_t i = 0; i < problem_.variants() * problem_.plane(); i++) some |= at_.legal[i];
        return some;
    }

    void restart(int64_t env_number) {
        const uint8_t mask = 1;
        const int64_t key = episodes_.key_of(env_number, *at_.episode);
        for (int64_t k = 0; k < problem_.slots; k++) fresh_item_[k] = episodes_.item(key, k);
        const Restart rows = {&mask, fresh_item_.data(), &key, at_.z_map, at_.legal, at_.position, at_.key,
                              at_.episode, at_.num_packed, at_.step_count, at_.volume, at_.stable,
                              heights_.data(), at_.item, at_.z_map, at_.legal, at_.position, at_.key, at_.episode,
                              at_.num_packed, at_.step_count, at_.volume, at_.stable};
        restart_one(standing_, rows, 0);
    }

    static constexpr float NEVER = -1e3f;  // as in tables.py

    Problem problem_, standing_;
    const Rollout& rollout_;
    PlacementValues values_;
    Episodes episodes_;
    Rows at_{};
    BoxBin bin_;
    Scratch<float> plane_;
    uint64_t heightmaps_ = 0;
    std::vector<float> heights_, next_heights_, value_;
    std::vector<int64_t> next_item_, slot_, fresh_item_, extent_;
    std::vector<uint8_t> levels_, top_;
};
