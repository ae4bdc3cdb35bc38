// TD(λ) of n-tuple tables over a whole rollout, from its last steps to its first. Called from
// policies/packing/ntuple/values.py; training/packing/afterstates.py defines the sweep, step by step.
//
// A rollout of 64 bins and 32 steps touches some 2,000,000 weights, but only some 15,000 different ones of millions. So
// each table numbers those that occur ("slots") and works on their copies, which stay in a core's cache; the tables are
// written at the end. From one step to the one before it only the patches around a placed box are looked up anew. A
// table's sums over bins and its updates depend on no other table, so that threads share the tables out and wait for
// each other once in a step.
//
// Bits are those of `value_bins` and `learn_bins`: a value is the sum over a bin's patches in their order, in doubles,
// and errors are summed in whole numbers.
#pragma once

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "afterstates.h"
#include "threads.h"

// Mirrored in values.py.
struct Sweep {
    int64_t rows, steps;      // N, T
    const uint8_t* levels;    // (N, T, X, Y)
    const float* reward;      // (N, T)
    const uint8_t* done;      // (N, T)
    float lam;
    double rate;              // of a step, over the number of patches of a bin
    float *weight, *drift, *path;  // (E,), as in `struct Learnt`
    float* error;             // (T, N), of the last step first
    uint8_t* counts;          // (T, N), likewise, 1 where a bin is learned from
};

// The bins of all steps within their frames, and where each differs from the one behind it.
class Views {
   public:
    Views(const Patches& p, const Sweep& sweep)
        : p_(p), sweep_(sweep), framed_(sweep.rows * sweep.steps * p.framed()), changed_(sweep.rows * sweep.steps) {}

    const uint8_t* bin(int64_t n, int64_t t) const { return &framed_[(n * sweep_.steps + t) * p_.framed()]; }
    const Cells& changed(int64_t n, int64_t t) const { return changed_[n * sweep_.steps + t]; }

    void take(int64_t n) {
        for (int64_t t = 0; t < sweep_.steps; t++) {
            const int64_t row = n * sweep_.steps + t;
            const uint8_t* heights = sweep_.levels + row * p_.area();
            frame(p_, heights, &framed_[row * p_.framed()]);
            // Behind the last step nothing is known: all has changed, and the frame, in which patches lie, too.
            changed_[row] = {-1, p_.cells_x + 1, -1, p_.cells_y + 1};
            if (t + 1 < sweep_.steps) changed_[row] = differing_cells(p_, heights, heights + p_.area());
        }
    }

   private:
    const Patches& p_;
    const Sweep& sweep_;
    std::vector<uint8_t> framed_;
    std::vector<Cells> changed_;
};

// Numbers of the entries of a table that have been met, 0 for others. A hash table, since it is a hundredth as large as a
// number for each entry, and so stays in a core's cache.
class Slots {
   public:
    Slots() : places_(1 << 12, Place{-1, 0}) {}

    int32_t operator[](int32_t entry) const { return places_[place_of(entry)].slot; }

    void put(int32_t entry, int32_t slot) {
        if (2 * ++used_ > int64_t(places_.size())) grow();
        places_[place_of(entry)] = {entry, slot};
    }

   private:
    struct Place {
        int32_t entry, slot;
    };

    // Where an entry is, or would be.
    size_t place_of(int32_t entry) const {
        const size_t mask = places_.size() - 1;
        size_t at = (uint32_t(entry) * 0x9E3779B1u >> 7) & mask;
        while (places_[at].entry != entry && places_[at].entry != -1) at = (at + 1) & mask;
        return at;
    }

    void grow() {
        std::vector<Place> before(2 * places_.size(), Place{-1, 0});
        before.swap(places_);
        for (const Place& each : before)
            if (each.entry != -1) places_[place_of(each.entry)] = each;
    }

    std::vector<Place> places_;
    int64_t used_ = 0;
};

class TableSweep {
   public:
    TableSweep(const Patches& p, const Sweep& sweep, const Views& views, int64_t table)
        : p_(p), sweep_(sweep), views_(views), padded_((sweep.rows + 7) / 8 * 8), pitch_((padded_ + 15) / 32 * 32 + 16) {
        for (int64_t s = 0; s < p.shapes; s++)
            if (p.patch[s].table == table) {
                lying_.emplace_back(p, p.patch[s]);
                begin_.push_back(patches_);
                patches_ += (lying_.back().last_x + 1) * (lying_.back().last_y + 1);
            }
        offset_ = lying_.front().patch->offset;
        at_.assign(patches_ * pitch_, 0);
        add_slot(Images{});  // slot 0 is that of rows that only fill a vector
    }

    int64_t shapes() const { return lying_.size(); }
    int64_t patches() const { return patches_; }
    // False where weights that are the same turned or mirrored are not equal, so that copies cannot stand for them.
    bool symmetric() const { return symmetric_; }

    // Looks up the bins of step t, where those of step t + 1 were looked up before; begins with the last.
    void see(int64_t t) {
        for (int64_t n = 0; n < sweep_.rows; n++) {
            const Cells& changed = views_.changed(n, t);
            for (size_t s = 0; s < lying_.size() && !changed.empty(); s++) look_up(n, s, views_.bin(n, t), changed);
        }
    }

    // Sums of the weights of each shape's patches in every bin, (shapes, padded).
    void values(double* out) const {
        for (size_t s = 0; s < lying_.size(); s++) {
            const int64_t end = s + 1 < lying_.size() ? begin_[s + 1] : patches_;
            int64_t n = 0;
            for (; n + 16 <= padded_; n += 16) sum<16>(begin_[s], end, n, out + s * padded_ + n);
            for (; n < padded_; n += 8) sum<8>(begin_[s], end, n, out + s * padded_ + n);
        }
    }

    // Update by the errors of the bins looked up last, (padded,), in units of 2^-32: 0 for rows that do not count.
    void learn(const int64_t* error, const uint8_t* counts) {
        const bool all = std::all_of(counts, counts + sweep_.rows, [](uint8_t each) { return each; });
        const std::vector<int32_t>* number = &count_;
        if (!all) number = &counted(counts);
        for (int64_t k = 0; k < patches_; k++) {
            const int32_t* at = &at_[k * pitch_];
            // Neighbouring bins often have the same patch: a sum each, so that none waits for the one before.
            for (int64_t n = 0; n < padded_; n += COPIES)
                for (int64_t i = 0; i < COPIES; i++) sum_[at[n + i] * COPIES + i] += error[n + i];
        }
        const double rate = sweep_.rate;
        const int64_t slots = weight_.size();
        for (int64_t s = 0; s < slots; s++) {
            int64_t total = 0;
            for (int64_t i = 0; i < COPIES; i++) total += sum_[s * COPIES + i], sum_[s * COPIES + i] = 0;
            const int32_t here = (*number)[s];
            if (!here) continue;
            const float mean = float(double(total) / double(here) * 0x1p-32);
            drift_[s] += mean;
            path_[s] += std::fabs(mean);
            const float coherence = path_[s] > 0 ? std::fabs(drift_[s]) / path_[s] : 1.0f;
            weight_[s] = weight_[s] + float(rate * double(coherence) * double(mean));
            value_[s] = weight_[s];
            learned_[s] = 1;
        }
    }

    // Writes what was learned into the tables.
    void finish() {
        for (size_t s = 1; s < weight_.size(); s++) {
            if (!learned_[s]) continue;
            const Images& images = images_[s];
            sweep_.drift[offset_ + images.entry[0]] = drift_[s];
            sweep_.path[offset_ + images.entry[0]] = path_[s];
            for (int32_t j = 0; j < images.count; j++) sweep_.weight[offset_ + images.entry[j]] = weight_[s];
        }
    }

   private:
    static constexpr int64_t COPIES = 4;

    struct Images {
        int32_t entry[most_images];  // the least first
        int32_t count = 0;
    };

    // The slots of a shape's patches in bin n that touch the cells that have changed.
    void look_up(int64_t n, size_t s, const uint8_t* framed, const Cells& changed) {
        const Lying& lying = lying_[s];
        const Cells touched = lying.touching(changed);
        for (int64_t x = touched.x0; x < touched.x1; x++)
            for (int64_t y = touched.y0; y < touched.y1; y += lanes) {
                const uint8_t* heights = framed + x * p_.wide() + y;
                int32_t found[lanes];
                lying.entries(lying, heights, found);
                int32_t* at = &at_[(begin_[s] + x * (lying.last_y + 1) + y) * pitch_ + n];
                for (int64_t l = 0; l < std::min<int64_t>(lanes, touched.y1 - y); l++) {
                    int32_t slot = slots_[found[l]];
                    if (!slot) slot = number(lying, heights + l, found[l]);
                    int32_t& here = at[l * pitch_];
                    count_[here] -= here != 0;
                    count_[slot]++;
                    here = slot;
                }
            }
    }

    // The slot of an entry that has not occurred before.
    int32_t number(const Lying& lying, const uint8_t* heights, int32_t entry) {
        int32_t found[most_images][lanes];
        lying.all_images(lying, heights, found);
        Images images;
        images.entry[0] = found[0][0];
        for (int j = 1; j < lying.images; j++) images.entry[0] = std::min(images.entry[0], found[j][0]);
        images.count = 1;
        for (int j = 0; j < lying.images; j++)
            if (found[j][0] != images.entry[0]) images.entry[images.count++] = found[j][0];
        const int32_t first = images.entry[0];
        int32_t slot = slots_[first];
        if (!slot) {
            slot = add_slot(images);
            slots_.put(first, slot);
        }
        if (entry != first) {
            slots_.put(entry, slot);
            const float *here = sweep_.weight + offset_ + entry, *there = sweep_.weight + offset_ + first;
            symmetric_ &= !std::memcmp(here, there, sizeof(float));
        }
        return slot;
    }

    int32_t add_slot(const Images& images) {
        const int64_t first = offset_ + images.entry[0];
        images_.push_back(images);
        weight_.push_back(images.count ? sweep_.weight[first] : 0.0f);
        value_.push_back(weight_.back());
        drift_.push_back(images.count ? sweep_.drift[first] : 0.0f);
        path_.push_back(images.count ? sweep_.path[first] : 0.0f);
        count_.push_back(0);
        learned_.push_back(0);
        sum_.resize(sum_.size() + COPIES, 0);
        return int32_t(weight_.size()) - 1;
    }

    // How often each slot occurs in the bins that count.
    const std::vector<int32_t>& counted(const uint8_t* counts) {
        some_count_.assign(weight_.size(), 0);
        for (int64_t k = 0; k < patches_; k++)
            for (int64_t n = 0; n < sweep_.rows; n++) some_count_[at_[k * pitch_ + n]] += counts[n] != 0;
        return some_count_;
    }

    // Sums of patches [begin, end) of `bins` bins, which do not wait for each other. Number by number: the instruction
    // that gathers a vector of weights takes several times as long as their loads.
    template <int bins>
    NO_VECTORS void sum(int64_t begin, int64_t end, int64_t n, double* out) const {
        double sums[bins] = {};
        const double* weight = value_.data();
        for (int64_t k = begin; k < end; k++) {
            const int32_t* at = &at_[k * pitch_ + n];
#pragma GCC unroll 16
            for (int i = 0; i < bins; i++) sums[i] += weight[at[i]];
        }
        std::memcpy(out, sums, sizeof sums);
    }

    const Patches& p_;
    const Sweep& sweep_;
    const Views& views_;
    // Bins, up to a whole vector, and from a patch to the next: an odd number of cache lines, since the patches of one bin
    // would else fall into few of a cache's sets.
    const int64_t padded_, pitch_;
    std::vector<Lying> lying_;
    std::vector<int64_t> begin_;       // of each shape, its first patch
    int64_t patches_ = 0, offset_ = 0;
    bool symmetric_ = true;
    std::vector<int32_t> at_;          // (patches, pitch), slots
    // Of each slot.
    std::vector<Images> images_;
    std::vector<float> weight_, drift_, path_;
    std::vector<double> value_;                // the weight, as it is added up
    std::vector<int32_t> count_, some_count_;  // how often it occurs in the bins
    std::vector<int64_t> sum_;                 // of errors, (slots, COPIES)
    std::vector<uint8_t> learned_;
    Slots slots_;                      // of entries
};

// The sweep; false, and nothing is learned, where the tables do not have the symmetry that their patches have.
inline bool sweep_tables(const Patches& p, const Sweep& sweep) {
    const int64_t rows = sweep.rows, steps = sweep.steps, padded = (rows + 7) / 8 * 8;
    const int64_t threads = rows < 8 ? 1 : p.threads;
    Views views(p, sweep);
    spread(rows, threads, [&](int64_t n) { views.take(n); });
    std::vector<TableSweep> tables;
    tables.reserve(p.tables);
    for (int64_t table = 0; table < p.tables; table++) tables.emplace_back(p, sweep, views, table);
    std::vector<double> parts[2];     // of each shape, of each bin: of the step at hand, and of the one before
    std::vector<int64_t> first_shape;  // of each table
    int64_t shapes = 0;
    for (const TableSweep& table : tables) first_shape.push_back(shapes), shapes += table.shapes();
    for (auto& each : parts) each.resize(shapes * padded);
    std::vector<int64_t> order(p.tables);  // those with the most work first, so that threads end together
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return tables[a].patches() > tables[b].patches(); });
    const auto whole = [&](int which, int64_t n) {
        double sum = 0;
        for (int64_t s = 0; s < shapes; s++) sum += parts[which][s * padded + n];
        return float(sum);
    };
    spread(p.tables, threads, [&](int64_t task) {
        const int64_t table = order[task];
        tables[table].see(steps - 1);
        tables[table].values(&parts[1][first_shape[table] * padded]);
    });
    std::vector<float> goal(rows, 0.0f);
    std::vector<int64_t> units(padded, 0);
    const float coefficient = sweep.lam < 0.5f ? sweep.lam : sweep.lam - 1.0f;
    bool symmetric = true;
    for (int64_t t = steps - 1; t >= 0 && symmetric; t--) {
        std::vector<uint8_t> learns(rows);
        for (int64_t n = 0; n < rows; n++) {
            const bool counts = t < steps - 1 || sweep.done[n * steps + t];
            const float error = goal[n] - whole(1, n);
            sweep.error[(steps - 1 - t) * rows + n] = error;
            sweep.counts[(steps - 1 - t) * rows + n] = counts;
            learns[n] = counts && std::isfinite(error);
            const double within = std::min(std::max(double(error), -0x1p10), 0x1p10);
            units[n] = learns[n] ? int64_t(std::nearbyint(within * 0x1p32)) : 0;
        }
        spread(p.tables, threads, [&](int64_t task) {
            const int64_t table = order[task];
            tables[table].learn(units.data(), learns.data());
            if (t == 0) return;
            tables[table].values(&parts[0][first_shape[table] * padded]);
            tables[table].see(t - 1);
            tables[table].values(&parts[1][first_shape[table] * padded]);
        });
        for (int64_t n = 0; n < rows && t > 0; n++) {
            const float value = whole(0, n);
            const float known = t < steps - 1 || sweep.done[n * steps + t] ? goal[n] : value;
            // As torch's lerp, whose product and sum are rounded once.
            const float mixed = std::fma(coefficient, known - value, sweep.lam < 0.5f ? value : known);
            goal[n] = sweep.done[n * steps + t - 1] ? 0.0f : sweep.reward[n * steps + t] + mixed;
        }
        for (const TableSweep& table : tables) symmetric &= table.symmetric();
    }
    for (TableSweep& table : tables)
        if (symmetric) table.finish();
    return symmetric;
}
