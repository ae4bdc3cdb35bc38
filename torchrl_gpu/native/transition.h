// Place an item and reset finished bins, without the maps of the next step.
#pragma once

#include <cstring>

#include "problem.h"

// State before and after one action of each environment; shapes as in PackingState.
struct Step {
    const int64_t* action;  // (N,); one outside the range, or over an empty slot, is not legal
    const float* z_map;     // (N, K·O·Gx·Gy)
    const uint8_t* legal;   // likewise
    const int64_t *position, *num_packed, *step_count;
    const float* volume;
    const uint8_t* stable;
    const int64_t* following;    // (N,), the item shown next; passed on as it is
    const float* item_volume;    // (M,)
    int32_t* placements;         // (N, T, 4), written behind the others, at most into the last row
    float* placement_z;          // (N, T)
    int64_t longest;             // T, at least 1
    float* next_heightmap;       // (N, X, Y)
    int64_t* next_item;          // (N, K)
    int64_t *next_position, *next_num_packed, *next_step_count;
    float* next_volume;
    uint8_t *next_stable, *was_legal;
    int64_t* slot;     // (N, K), where each visible item was before; −1 for the new one
    int64_t* changed;  // (N, 4), cells that the placed item covers
};

inline void raise_pile(const Problem& p, const Variant& v, int64_t x, int64_t y, float z, float* heights) {
    for (int64_t i = 0; i < v.x.extent; i++) {
        float* row = heights + (x + i) * p.cells_y + y;
        if (p.flat()) {
            for (int64_t j = 0; j < v.y.extent; j++) row[j] = std::max(row[j], z + v.height);
            continue;
        }
        const float* top = p.top + (v.row * p.rows + i) * p.columns;
        const float* bottom = p.bottom + (v.row * p.rows + i) * p.columns;
        for (int64_t j = 0; j < v.y.extent; j++)
            row[j] = bottom[j] < INFINITY ? std::max(row[j], z + top[j]) : row[j];
    }
}

// Placement that an action decodes to; none where it is not legal.
struct Choice {
    bool legal = false;
    int64_t slot = 0, item = -1, orientation = 0;

    Choice(const Problem& p, const Step& s, int64_t n) {
        const int64_t actions = p.variants() * p.plane(), action = s.action[n];
        if (action < 0 || action >= actions || !s.legal[n * actions + action]) return;
        slot = action / p.plane() / p.orientations, orientation = action / p.plane() % p.orientations;
        item = p.item[n * p.slots + slot];
        legal = p.has(item) && p.fits(item, orientation);
    }
};

inline void advance_one(const Problem& p, const Step& s, int64_t n) {
    const Choice chosen(p, s, n);
    const bool legal = chosen.legal;
    std::memcpy(s.next_heightmap + n * p.area(), p.heightmap + n * p.area(), p.area() * sizeof(float));
    s.was_legal[n] = legal;
    s.next_position[n] = plus(s.position[n], legal);
    s.next_num_packed[n] = plus(s.num_packed[n], legal);
    s.next_step_count[n] = plus(s.step_count[n], 1);
    s.next_stable[n] = s.stable[n] || legal;
    s.next_volume[n] = s.volume[n];
    int64_t* changed = s.changed + 4 * n;
    std::fill(changed, changed + 4, 0);
    const int64_t gone = legal ? chosen.slot : p.slots;
    for (int64_t k = 0; k < p.slots; k++) {
        const int64_t from = k + (k >= gone);
        s.slot[n * p.slots + k] = from < p.slots ? from : -1;
        s.next_item[n * p.slots + k] = from < p.slots ? p.item[n * p.slots + from] : s.following[n];
    }
    if (!legal) return;
    const int64_t action = s.action[n];
    const Variant v(p, chosen.item, chosen.orientation);
    const int64_t x = v.x.position(action % p.plane() / p.grid_y, p.step), y = v.y.position(action % p.grid_y, p.step);
    const float z = s.z_map[n * p.variants() * p.plane() + action];
    raise_pile(p, v, x, y, z, s.next_heightmap + n * p.area());
    s.next_volume[n] += s.item_volume[chosen.item];
    const int64_t at = n * s.longest + std::min(std::max<int64_t>(s.num_packed[n], 0), s.longest - 1);
    const int64_t row[4] = {chosen.item, chosen.orientation, x, y};
    std::copy(row, row + 4, s.placements + 4 * at);
    s.placement_z[at] = z;
    const int64_t cells[4] = {x, y, x + v.x.extent, y + v.y.extent};
    std::copy(cells, cells + 4, changed);
}

// State with the rows of `mask` reset, and the others as before.
struct Restart {
    const uint8_t* mask;  // (N,)
    const int64_t *fresh_item, *fresh_key;
    const float* z_map;
    const uint8_t* legal;
    const int64_t *position, *key, *episode, *num_packed, *step_count;
    const float* volume;
    const uint8_t* stable;
    float* next_heightmap;
    int64_t* next_item;
    float* next_z_map;
    uint8_t* next_legal;
    int64_t *next_position, *next_key, *next_episode, *next_num_packed, *next_step_count;
    float* next_volume;
    uint8_t* next_stable;
};

// Maps of an empty bin: every item that fits rests on the floor.
inline void empty_maps(const Problem& p, const int64_t* item, float* z, uint8_t* legal) {
    const float limit = p.ceiling + p.tolerance;
    std::fill(z, z + p.variants() * p.plane(), p.ceiling);
    std::memset(legal, 0, p.variants() * p.plane());
    for (int64_t variant = 0; variant < p.variants(); variant++, z += p.plane(), legal += p.plane()) {
        if (!p.has(item[variant / p.orientations])) continue;
        const Variant v(p, item[variant / p.orientations], variant % p.orientations);
        for (int64_t gx = 0; gx < v.x.fitting; gx++)
            for (int64_t gy = 0; gy < v.y.fitting; gy++)
                z[gx * p.grid_y + gy] = 0.0f, legal[gx * p.grid_y + gy] = v.height <= limit;
    }
}

inline void restart_one(const Problem& p, const Restart& r, int64_t n) {
    const bool again = r.mask[n];
    const int64_t maps = p.variants() * p.plane();
    float* heights = r.next_heightmap + n * p.area();
    const int64_t* item = (again ? r.fresh_item : p.item) + n * p.slots;
    std::copy(item, item + p.slots, r.next_item + n * p.slots);
    if (again) {
        std::fill(heights, heights + p.area(), 0.0f);
        empty_maps(p, item, r.next_z_map + n * maps, r.next_legal + n * maps);
    } else {
        std::memcpy(heights, p.heightmap + n * p.area(), p.area() * sizeof(float));
        std::memcpy(r.next_z_map + n * maps, r.z_map + n * maps, maps * sizeof(float));
        std::memcpy(r.next_legal + n * maps, r.legal + n * maps, maps);
    }
    r.next_position[n] = again ? p.slots : r.position[n];
    r.next_key[n] = again ? r.fresh_key[n] : r.key[n];
    r.next_episode[n] = plus(r.episode[n], again);
    r.next_num_packed[n] = again ? 0 : r.num_packed[n];
    r.next_step_count[n] = again ? 0 : r.step_count[n];
    r.next_volume[n] = again ? 0.0f : r.volume[n];
    r.next_stable[n] = r.stable[n] && !again;
}
