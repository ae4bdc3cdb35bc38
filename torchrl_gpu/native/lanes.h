// Vectors of the widest kind that the processor has, and the one step of a max-plus correlation on them.
//
// Heights are turned about: a window cell holds w = top − h, so that the rest height z = max(h − b) becomes
// top − min(w + b). The sum takes its second operand straight from memory, and unsigned integers saturate exactly
// where a rest height would fall below the floor or where the item has no material (b is then the largest value).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512BW__)
constexpr size_t VECTOR_BYTES = 64;
#elif defined(__AVX2__)
constexpr size_t VECTOR_BYTES = 32;
#else
constexpr size_t VECTOR_BYTES = 16;
#endif

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int ACCUMULATORS = 16;  // of 32 vector registers
#else
constexpr int ACCUMULATORS = 8;  // of 16
#endif

#define INLINE inline __attribute__((always_inline))

template <class T>
struct Lanes {
    typedef T Vector __attribute__((vector_size(VECTOR_BYTES)));
    static constexpr int count = VECTOR_BYTES / sizeof(T);
    static constexpr bool integer = std::numeric_limits<T>::is_integer;
    static constexpr T top = integer ? std::numeric_limits<T>::max() : T(0);       // w of the floor
    static constexpr T none = integer ? top : std::numeric_limits<T>::infinity();  // b without material

    static INLINE Vector load(const T* p) {
        Vector v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static INLINE void store(T* p, Vector v) { std::memcpy(p, &v, sizeof v); }
    static INLINE Vector all(T x) { return Vector{} + x; }
};

template <class T>
using Vector = typename Lanes<T>::Vector;

// min(nearest, window + cell), the sum saturating.
template <class T>
INLINE Vector<T> nearer(Vector<T> nearest, Vector<T> window, Vector<T> cell) {
    Vector<T> sum = window + cell;
    if constexpr (Lanes<T>::integer) sum |= (Vector<T>)(sum < window);
    return sum < nearest ? sum : nearest;
}

#if defined(__AVX512BW__)
template <>
INLINE Vector<float> nearer<float>(Vector<float> nearest, Vector<float> window, Vector<float> cell) {
    return (Vector<float>)_mm512_min_ps(_mm512_add_ps((__m512)cell, (__m512)window), (__m512)nearest);
}
template <>
INLINE Vector<uint16_t> nearer<uint16_t>(Vector<uint16_t> nearest, Vector<uint16_t> window, Vector<uint16_t> cell) {
    return (Vector<uint16_t>)_mm512_min_epu16(_mm512_adds_epu16((__m512i)cell, (__m512i)window), (__m512i)nearest);
}
template <>
INLINE Vector<uint8_t> nearer<uint8_t>(Vector<uint8_t> nearest, Vector<uint8_t> window, Vector<uint8_t> cell) {
    return (Vector<uint8_t>)_mm512_min_epu8(_mm512_adds_epu8((__m512i)cell, (__m512i)window), (__m512i)nearest);
}
#elif defined(__AVX2__)
template <>
INLINE Vector<float> nearer<float>(Vector<float> nearest, Vector<float> window, Vector<float> cell) {
    return (Vector<float>)_mm256_min_ps(_mm256_add_ps((__m256)cell, (__m256)window), (__m256)nearest);
}
template <>
INLINE Vector<uint16_t> nearer<uint16_t>(Vector<uint16_t> nearest, Vector<uint16_t> window, Vector<uint16_t> cell) {
    return (Vector<uint16_t>)_mm256_min_epu16(_mm256_adds_epu16((__m256i)cell, (__m256i)window), (__m256i)nearest);
}
template <>
INLINE Vector<uint8_t> nearer<uint8_t>(Vector<uint8_t> nearest, Vector<uint8_t> window, Vector<uint8_t> cell) {
    return (Vector<uint8_t>)_mm256_min_epu8(_mm256_adds_epu8((__m256i)cell, (__m256i)window), (__m256i)nearest);
}
#endif

// Memory on cache lines that only grows.
template <class T>
class Scratch {
   public:
    T* at_least(size_t size) {
        if (size > size_) {
            release();
            void* made = nullptr;
            if (posix_memalign(&made, 64, size * sizeof(T) + VECTOR_BYTES)) throw std::bad_alloc();
            data_ = static_cast<T*>(made);
            size_ = size;
        }
        return data_;
    }
    T* data() const { return data_; }
    ~Scratch() { release(); }

   private:
    void release() {
        std::free(data_);
        data_ = nullptr;
    }
    T* data_ = nullptr;
    size_t size_ = 0;
};
