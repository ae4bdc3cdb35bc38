// Sequences of boxes cut from a bin by a key; envs/packing/items/cutting.py defines every draw and the order.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

struct Cuts {
    int64_t whole[3], min_side, max_side, by_layers, most, turns;  // rounds of a stack, steps of layers
};

struct CutPiece {
    int64_t corner[3], size[3];
    double early;
    int64_t number;
};

static inline uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

static inline uint64_t drawn(uint32_t mixed_key, int64_t counter) {
    return mixed(mixed_key ^ mixed(uint32_t(counter) + 0x9E3779B9u));
}

static inline int long_axes(const Cuts& c, const CutPiece& box, int* axes) {
    int number = 0;
    for (int axis = 0; axis < 3; axis++)
        if (box.size[axis] > c.max_side) axes[number++] = axis;
    return number;
}

// Layers, see CutSequences. A walk keeps at the front of `waiting` the boxes that stay in the list.
static void cut_layers(const Cuts& c, int64_t key, std::vector<CutPiece>& pieces, std::vector<CutPiece>& waiting) {
    const uint32_t mixed_key = mixed(uint32_t(key));
    int axes[3];
    const CutPiece bin = {{0, 0, 0}, {c.whole[0], c.whole[1], c.whole[2]}, 0.0, 0};
    pieces.clear(), waiting.clear();
    (long_axes(c, bin, axes) ? waiting : pieces).push_back(bin);
    for (int64_t step = 0, cuts = 0; !waiting.empty();) {
        size_t stay = 0;
        for (size_t i = 0; i < waiting.size(); i++, step++) {
            const int number = long_axes(c, waiting[i], axes);
            const int axis = axes[drawn(mixed_key, 2 * step) * number >> 32];
            const int64_t side = waiting[i].size[axis];
            const bool must = c.turns - step <= c.most - 1 - cuts;
            const int64_t lengths = must ? side - 2 * c.min_side + 1 : side;
            const int64_t length = (must ? c.min_side : 1) + int64_t(drawn(mixed_key, 2 * step + 1) * lengths >> 32);
            if (std::min(length, side - length) < c.min_side) {
                waiting[stay++] = waiting[i];
                continue;
            }
            cuts++;
            const int64_t low = axis == 2 ? side - length : length;
            CutPiece first = waiting[i], second = waiting[i];
            first.size[axis] = low;
            second.corner[axis] += low;
            second.size[axis] = side - low;
            for (const CutPiece& part : {first, second}) (long_axes(c, part, axes) ? waiting : pieces).push_back(part);
            if (++i < waiting.size()) waiting[stay++] = waiting[i];
        }
        waiting.resize(stay);
    }
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const CutPiece& a, const CutPiece& b) { return a.corner[2] < b.corner[2]; });
}

// A stack.
static void cut_stack(const Cuts& c, int64_t key, std::vector<CutPiece>& pieces) {
    const uint32_t mixed_key = mixed(uint32_t(key));
    pieces.clear();
    pieces.push_back({{0, 0, 0}, {c.whole[0], c.whole[1], c.whole[2]}, 0.0, 0});
    for (int64_t turn = 0; turn < c.turns; turn++) {
        const int64_t width = pieces.size();
        for (int64_t s = 0; s < width; s++) {
            int axes[3];
            const int number = long_axes(c, pieces[s], axes);
            if (!number) continue;
            const int64_t counter = 2 * (turn * c.most + s);
            const int axis = axes[drawn(mixed_key, counter) * number >> 32];
            const int64_t length = pieces[s].size[axis];
            const int64_t at = c.min_side + int64_t(drawn(mixed_key, counter + 1) * (length - 2 * c.min_side + 1) >> 32);
            CutPiece second = pieces[s];
            second.corner[axis] += at;
            second.size[axis] = length - at;
            second.number = pieces.size();
            pieces[s].size[axis] = at;
            pieces.push_back(second);
        }
    }
    for (auto& each : pieces) each.early = (double(drawn(mixed_key, each.number + 2 * c.turns * c.most)) + 0.5) / 4294967296.0;
    std::sort(pieces.begin(), pieces.end(), [](const CutPiece& a, const CutPiece& b) {
        if (a.corner[2] != b.corner[2]) return a.corner[2] < b.corner[2];
        return a.early != b.early ? a.early > b.early : a.number < b.number;
    });
    for (size_t i = 0; i < pieces.size(); i++) {
        CutPiece& box = pieces[i];
        double least = 1.0;
        for (size_t j = 0; j < i; j++) {
            const CutPiece& low = pieces[j];
            if (low.corner[2] + low.size[2] == box.corner[2] && low.corner[0] < box.corner[0] + box.size[0] &&
                box.corner[0] < low.corner[0] + low.size[0] && low.corner[1] < box.corner[1] + box.size[1] &&
                box.corner[1] < low.corner[1] + low.size[1])
                least = std::min(least, low.early);
        }
        box.early *= least;
    }
    std::sort(pieces.begin(), pieces.end(), [](const CutPiece& a, const CutPiece& b) {
        return a.early != b.early ? a.early > b.early : a.number < b.number;
    });
}

// The boxes in the order of arrival; both keep their memory from one call to the next.
static void cut_whole(const Cuts& c, int64_t key, std::vector<CutPiece>& pieces, std::vector<CutPiece>& waiting) {
    if (c.by_layers)
        cut_layers(c, key, pieces, waiting);
    else
        cut_stack(c, key, pieces);
}

// Corners, sizes and catalogue rows of a sequence, of `most` places each; only the rows where the others are null.
static void lay_cuts(const Cuts& c, const std::vector<CutPiece>& pieces, int64_t* corner, int64_t* rows) {
    int64_t sides[3];
    for (int axis = 0; axis < 3; axis++) sides[axis] = std::min(c.whole[axis], c.max_side) - c.min_side + 1;
    for (size_t i = 0; i < pieces.size(); i++) {
        const int64_t* size = pieces[i].size;
        rows[i] = ((size[0] - c.min_side) * sides[1] + size[1] - c.min_side) * sides[2] + size[2] - c.min_side;
        if (corner) std::copy(pieces[i].corner, pieces[i].corner + 3, corner + 3 * i);
    }
    std::fill(rows + pieces.size(), rows + c.most, -1);
    if (corner) std::fill(corner + 3 * pieces.size(), corner + 3 * c.most, 0);
}
