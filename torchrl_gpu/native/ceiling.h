// The rate of add-max steps that nothing but the arithmetic bounds: all operands stay in registers.
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

// Steps per second of one thread, over at least `seconds`. Twelve sums, no two of them alike; an array of vectors would
// not stay in registers.
template <class T>
double add_max_rate_of_one(double seconds) {
    volatile T one = 1;
    Vector<T> w0 = Lanes<T>::all(one), w1 = Lanes<T>::all(T(one + 1)), w2 = Lanes<T>::all(T(one + 4));
    Vector<T> c0 = w0, c1 = w1, c2 = Lanes<T>::all(T(one + 2)), c3 = Lanes<T>::all(T(one + 3));
    Vector<T> n0 = Lanes<T>::all(Lanes<T>::top), n1 = n0, n2 = n0, n3 = n0, n4 = n0, n5 = n0, n6 = n0, n7 = n0, n8 = n0,
              n9 = n0, n10 = n0, n11 = n0;
    const auto start = std::chrono::steady_clock::now();
    double steps = 0, elapsed = 0;
    while (elapsed < seconds) {
        for (int turn = 0; turn < 100000; turn++) {
            n0 = nearer<T>(n0, w0, c0), n1 = nearer<T>(n1, w0, c1), n2 = nearer<T>(n2, w0, c2);
            n3 = nearer<T>(n3, w0, c3), n4 = nearer<T>(n4, w1, c0), n5 = nearer<T>(n5, w1, c1);
            n6 = nearer<T>(n6, w1, c2), n7 = nearer<T>(n7, w1, c3), n8 = nearer<T>(n8, w2, c0);
            n9 = nearer<T>(n9, w2, c1), n10 = nearer<T>(n10, w2, c2), n11 = nearer<T>(n11, w2, c3);
            OPAQUE(w0), OPAQUE(w1), OPAQUE(w2), OPAQUE(c0), OPAQUE(c1), OPAQUE(c2), OPAQUE(c3);
        }
        steps += 1e5 * 12 * Lanes<T>::count;
        elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    OPAQUE(n0), OPAQUE(n1), OPAQUE(n2), OPAQUE(n3), OPAQUE(n4), OPAQUE(n5), OPAQUE(n6), OPAQUE(n7);
    OPAQUE(n8), OPAQUE(n9), OPAQUE(n10), OPAQUE(n11);
    return steps / elapsed;
}
