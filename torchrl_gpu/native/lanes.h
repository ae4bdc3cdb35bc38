// Vectors as wide as the processor has, and the add-max step of a max-plus correlation on them.
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

// A function whose loops a compiler must not turn into vectors.
#if defined(__clang__)
#define NO_VECTORS
#else
#define NO_VECTORS __attribute__((optimize("no-tree-vectorize", "no-tree-slp-vectorize")))
#endif

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

// level − b and level + b, saturating.
template <class T>
INLINE Vector<T> below(Vector<T> level, Vector<T> b) {
    return level > b ? level - b : Vector<T>{};
}
template <class T>
INLINE Vector<T> above(Vector<T> level, Vector<T> b) {
    const Vector<T> sum = level + b;
    return sum < level ? Lanes<T>::all(Lanes<T>::top) : sum;
}

// Raises two maxima to a number each where height ≤ level.
template <class T>
INLINE void raise(Vector<T>& first, Vector<T>& second, Vector<T> height, Vector<T> level, const Vector<T>* numbers) {
    const Vector<T> a = height <= level ? numbers[0] : Vector<T>{}, b = height <= level ? numbers[1] : Vector<T>{};
    first = a > first ? a : first;
    second = b > second ? b : second;
}

#if defined(__AVX512BW__)
template <>
INLINE Vector<uint8_t> below<uint8_t>(Vector<uint8_t> level, Vector<uint8_t> b) {
    return (Vector<uint8_t>)_mm512_subs_epu8((__m512i)level, (__m512i)b);
}
template <>
INLINE Vector<uint16_t> below<uint16_t>(Vector<uint16_t> level, Vector<uint16_t> b) {
    return (Vector<uint16_t>)_mm512_subs_epu16((__m512i)level, (__m512i)b);
}
template <>
INLINE void raise<uint8_t>(Vector<uint8_t>& first, Vector<uint8_t>& second, Vector<uint8_t> height,
                           Vector<uint8_t> level, const Vector<uint8_t>* numbers) {
    const __mmask64 low = _mm512_cmple_epu8_mask((__m512i)height, (__m512i)level);
    first = (Vector<uint8_t>)_mm512_mask_max_epu8((__m512i)first, low, (__m512i)first, (__m512i)numbers[0]);
    second = (Vector<uint8_t>)_mm512_mask_max_epu8((__m512i)second, low, (__m512i)second, (__m512i)numbers[1]);
}
template <>
INLINE void raise<uint16_t>(Vector<uint16_t>& first, Vector<uint16_t>& second, Vector<uint16_t> height,
                            Vector<uint16_t> level, const Vector<uint16_t>* numbers) {
    const __mmask32 low = _mm512_cmple_epu16_mask((__m512i)height, (__m512i)level);
    first = (Vector<uint16_t>)_mm512_mask_max_epu16((__m512i)first, low, (__m512i)first, (__m512i)numbers[0]);
    second = (Vector<uint16_t>)_mm512_mask_max_epu16((__m512i)second, low, (__m512i)second, (__m512i)numbers[1]);
}
template <>
INLINE void raise<float>(Vector<float>& first, Vector<float>& second, Vector<float> height, Vector<float> level,
                         const Vector<float>* numbers) {
    const __mmask16 low = _mm512_cmp_ps_mask((__m512)height, (__m512)level, _CMP_LE_OS);
    first = (Vector<float>)_mm512_mask_max_ps((__m512)first, low, (__m512)first, (__m512)numbers[0]);
    second = (Vector<float>)_mm512_mask_max_ps((__m512)second, low, (__m512)second, (__m512)numbers[1]);
}
#elif defined(__AVX2__)
template <>
INLINE Vector<uint8_t> below<uint8_t>(Vector<uint8_t> level, Vector<uint8_t> b) {
    return (Vector<uint8_t>)_mm256_subs_epu8((__m256i)level, (__m256i)b);
}
template <>
INLINE Vector<uint16_t> below<uint16_t>(Vector<uint16_t> level, Vector<uint16_t> b) {
    return (Vector<uint16_t>)_mm256_subs_epu16((__m256i)level, (__m256i)b);
}
#endif

// Whether any lane of a vector is not 0.
template <class V>
INLINE bool any(V v) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)v, (__m256i)v);
#else
    uint64_t words[sizeof(V) / 8], some = 0;
    std::memcpy(words, &v, sizeof v);
    for (uint64_t word : words) some |= word;
    return some != 0;
#endif
}

// The lanes, of four bytes, in which a comparison holds: a bit of each.
template <class V>
INLINE uint32_t bits_of(V held) {
#if defined(__AVX512BW__)
    return _mm512_test_epi32_mask((__m512i)held, (__m512i)held);
#elif defined(__AVX2__)
    return uint32_t(_mm256_movemask_ps((__m256)held));
#else
    int32_t lanes[sizeof(V) / 4];
    std::memcpy(lanes, &held, sizeof held);
    uint32_t bits = 0;
    for (size_t i = 0; i < sizeof(V) / 4; i++) bits |= uint32_t(lanes[i] != 0) << i;
    return bits;
#endif
}

// As many numbers as there are lanes of four bytes.
template <class T>
INLINE Vector<int32_t> widened(const T* p) {
    typedef T Few __attribute__((vector_size(VECTOR_BYTES / sizeof(int32_t) * sizeof(T))));
    Few few;
    std::memcpy(&few, p, sizeof few);
    return __builtin_convertvector(few, Vector<int32_t>);
}

#if defined(__AVX512BW__)  // a compiler may make the above of single bytes
template <>
INLINE Vector<int32_t> widened<uint8_t>(const uint8_t* p) {
    return (Vector<int32_t>)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <>
INLINE Vector<int32_t> widened<uint16_t>(const uint16_t* p) {
    return (Vector<int32_t>)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
#elif defined(__AVX2__)
template <>
INLINE Vector<int32_t> widened<uint8_t>(const uint8_t* p) {
    return (Vector<int32_t>)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
template <>
INLINE Vector<int32_t> widened<uint16_t>(const uint16_t* p) {
    return (Vector<int32_t>)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
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
