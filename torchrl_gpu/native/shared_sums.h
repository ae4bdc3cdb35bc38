// All-reduce sum over the processes of one machine through shared memory: microseconds, a hundredth of the time of
// messages. Called from training/packing/shared_tables.py.
//
// The memory: for each process a line of eight int64, the first of which is the number of the last sum that it has
// offered its values for; then two slots of values for each process, for sums of odd and of even number. A slot is
// written again two sums later, when every process has reached the sum in between, and so has read it.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

inline double* sum_slot(int64_t* memory, int64_t processes, int64_t room, int64_t number, int64_t rank) {
    return reinterpret_cast<double*>(memory + 8 * processes) + ((number & 1) * processes + rank) * room;
}

// Waits at most `most_us` microseconds until each process has offered its values; 1 where all have, with their sum in
// `out`, added in the order of ranks; else 0.
inline int64_t take_sum_of(int64_t* memory, int64_t processes, int64_t room, int64_t number, int64_t count, double* out,
                           int64_t most_us) {
    const auto begun = std::chrono::steady_clock::now();
    for (int64_t rank = 0, tries = 0; rank < processes;) {
        if (__atomic_load_n(memory + 8 * rank, __ATOMIC_ACQUIRE) >= number) {
            rank++;
            continue;
        }
        if (++tries % 256) continue;
        const auto waited = std::chrono::steady_clock::now() - begun;
        if (waited > std::chrono::microseconds(most_us)) return 0;
        if (waited < std::chrono::milliseconds(2))
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    std::memcpy(out, sum_slot(memory, processes, room, number, 0), count * sizeof(double));
    for (int64_t rank = 1; rank < processes; rank++) {
        const double* values = sum_slot(memory, processes, room, number, rank);
        for (int64_t i = 0; i < count; i++) out[i] += values[i];
    }
    return 1;
}
