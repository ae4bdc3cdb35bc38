// Upper bound of the rate of add-max steps, by arithmetic alone: all operands stay in registers.
#pragma once

#include <chrono>

#include "lanes.h"

#if defined(__AVX512F__)
#define OPAQUE(x) ([&] { asm volatile("" : "+v"(x)); }())
#elif defined(__x86_64__) || defined(__i386__)
#define OPAQUE(x) ([&] { asm volatile("" : "+x"(x)); }())
#elif defined(__ARM_NEON)
#define OPAQUE(x) ([&] { asm volatile("" : "+w"(x)); }())
#else
#define OPAQUE(x) ([&] { asm volatile("" : "+m"(x)); }())
#endif

// Steps per second of one thread, over at least `seconds`. No two sums are alike; an array of vectors would not stay in
// registers, so they have names, and the second half of them is left out where there are 16 registers.
template <class T>
double add_max_rate_of_one(double seconds) {
    using L = Lanes<T>;
    constexpr bool all = ACCUMULATORS >= 16;
    volatile T one = 1;
    Vector<T> w0 = L::all(one), w1 = L::all(T(one + 1)), w2 = L::all(T(one + 4)), w3 = L::all(T(one + 5));
    Vector<T> c0 = w0, c1 = w1, c2 = L::all(T(one + 2)), c3 = L::all(T(one + 3));
    Vector<T> n0 = L::all(L::top), n1 = n0, n2 = n0, n3 = n0, n4 = n0, n5 = n0, n6 = n0, n7 = n0;
    Vector<T> m0 = n0, m1 = n0, m2 = n0, m3 = n0, m4 = n0, m5 = n0, m6 = n0, m7 = n0;
    const auto start = std::chrono::steady_clock::now();
    double steps = 0, elapsed = 0;
    while (elapsed < seconds) {
        for (int turn = 0; turn < 100000; turn++) {
            n0 = nearer<T>(n0, w0, c0), n1 = nearer<T>(n1, w0, c1), n2 = nearer<T>(n2, w0, c2);
            n3 = nearer<T>(n3, w0, c3), n4 = nearer<T>(n4, w1, c0), n5 = nearer<T>(n5, w1, c1);
            n6 = nearer<T>(n6, w1, c2), n7 = nearer<T>(n7, w1, c3);
            if constexpr (all) {
                m0 = nearer<T>(m0, w2, c0), m1 = nearer<T>(m1, w2, c1), m2 = nearer<T>(m2, w2, c2);
                m3 = nearer<T>(m3, w2, c3), m4 = nearer<T>(m4, w3, c0), m5 = nearer<T>(m5, w3, c1);
                m6 = nearer<T>(m6, w3, c2), m7 = nearer<T>(m7, w3, c3);
                OPAQUE(w2), OPAQUE(w3);
            }
            OPAQUE(w0), OPAQUE(w1), OPAQUE(c0), OPAQUE(c1), OPAQUE(c2), OPAQUE(c3);
        }
        steps += 1e5 * (all ? 16 : 8) * L::count;
        elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    OPAQUE(n0), OPAQUE(n1), OPAQUE(n2), OPAQUE(n3), OPAQUE(n4), OPAQUE(n5), OPAQUE(n6), OPAQUE(n7);
    if constexpr (all)
        OPAQUE(m0), OPAQUE(m1), OPAQUE(m2), OPAQUE(m3), OPAQUE(m4), OPAQUE(m5), OPAQUE(m6), OPAQUE(m7);
    return steps / elapsed;
}
