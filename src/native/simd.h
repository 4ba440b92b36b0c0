// Vectors of the widest kind the compiler was told about, and the few functions the kernels need on them.
//
// Written with the vector extensions of GCC and Clang, so that the same text serves SSE2, AVX2 and NEON. This file is
// compiled once for each instruction set, inside the namespace CAGP_VARIANT: nothing here may have a name that two
// variants share, or the linker could give a machine code it cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#else
#include <cmath>
#endif

namespace CAGP_VARIANT {

#if defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

template <class T> struct Vector;
template <> struct Vector<float> {
    typedef float type __attribute__((vector_size(kBytes)));
    typedef std::int32_t bits __attribute__((vector_size(kBytes)));
};
template <> struct Vector<double> {
    typedef double type __attribute__((vector_size(kBytes)));
    typedef std::int64_t bits __attribute__((vector_size(kBytes)));
};
template <class T> using Vec = typename Vector<T>::type;
template <class T> using Bits = typename Vector<T>::bits;
template <class T> constexpr int kLanes = kBytes / int(sizeof(T));

template <int N> struct Constant {
    constexpr operator int() const { return N; }
};
// Calls f(0) ... f(N - 1) with constants. Small arrays that are indexed by nothing else stay in registers, provided
// that the caller is marked CAGP_FLAT: a compiler that unrolls loops later has put them into memory by then.
template <int N, class F> inline void repeat(const F& f) {
    if constexpr (N > 0) {
        repeat<N - 1>(f);
        f(Constant<N - 1>{});
    }
}
#define CAGP_FLAT __attribute__((flatten))

template <class T> inline Vec<T> load(const T* p) {
    Vec<T> v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class T> inline void store(T* p, Vec<T> v) { std::memcpy(p, &v, sizeof v); }
// The compiler removes a subtraction of zero, but not an addition.
template <class T> inline Vec<T> splat(T x) { return x - Vec<T>{}; }

// Pairwise, so that the additions do not wait for each other.
template <class T> inline T sum_lanes(Vec<T> v) {
    T lane[kLanes<T>];
    std::memcpy(lane, &v, sizeof v);
    for (int half = kLanes<T> / 2; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
    return lane[0];
}
template <class T> inline double sum_lanes_double(Vec<T> v) {
    double total = 0;
    for (int l = 0; l < kLanes<T>; ++l) total += double(v[l]);
    return total;
}

inline Vec<float> sqrt(Vec<float> v) {
#if defined(__AVX2__)
    return (Vec<float>)_mm256_sqrt_ps((__m256)v);
#elif defined(__x86_64__)
    return (Vec<float>)_mm_sqrt_ps((__m128)v);
#elif defined(__aarch64__)
    return (Vec<float>)vsqrtq_f32((float32x4_t)v);
#else
    for (int l = 0; l < kLanes<float>; ++l) v[l] = std::sqrt(v[l]);
    return v;
#endif
}

inline Vec<double> sqrt(Vec<double> v) {
#if defined(__AVX2__)
    return (Vec<double>)_mm256_sqrt_pd((__m256d)v);
#elif defined(__x86_64__)
    return (Vec<double>)_mm_sqrt_pd((__m128d)v);
#elif defined(__aarch64__)
    return (Vec<double>)vsqrtq_f64((float64x2_t)v);
#else
    for (int l = 0; l < kLanes<double>; ++l) v[l] = std::sqrt(v[l]);
    return v;
#endif
}

// The smaller of both, NaN where x is NaN (the second operand of x86's minimum wins).
template <class T> inline Vec<T> at_most(Vec<T> x, T limit) {
#if defined(__AVX2__)
    if constexpr (sizeof(T) == 4)
        return (Vec<T>)_mm256_min_ps((__m256)splat<T>(limit), (__m256)x);
    else
        return (Vec<T>)_mm256_min_pd((__m256d)splat<T>(limit), (__m256d)x);
#else
    return x > limit ? splat<T>(limit) : x;
#endif
}

// Whether any lane of a comparison holds.
template <class B> inline bool any(B mask) {
#if defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)mask) != 0;
#elif defined(__x86_64__)
    return _mm_movemask_epi8((__m128i)mask) != 0;
#elif defined(__aarch64__)
    return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
    bool found = false;
    for (std::size_t l = 0; l < sizeof(B) / sizeof(mask[0]); ++l) found |= mask[l] != 0;
    return found;
#endif
}

// The layout of a floating-point number, and how far exp(-s) goes before it is no longer a normal number.
template <class T> struct Format;
template <> struct Format<float> {
    static constexpr int mantissa = 23, bias = 127;
    static constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
    static constexpr float farthest = 87.0f;
    static constexpr float largest = 3.4e38f;
    static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860682030941723e-6f;
};
template <> struct Format<double> {
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double round = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double farthest = 708.0;
    static constexpr double largest = 1.79e308;
    static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
};

// exp(r) on |r| <= ln(2) / 2. In float the Taylor series, whose first term left out is 0.35^8 / 8! = 5e-9, less than a
// tenth of a unit in the last place; in double 1 + r + r^2 q(r) with q of degree 9 that agrees with the function at
// Chebyshev's nodes, off by 2e-17 at most: two terms fewer than the Taylor series needs.
inline Vec<float> exp_reduced(Vec<float> r) {
    Vec<float> r2 = r * r;
    Vec<float> low = (1.0f + r) + r2 * (0.5f + r * (1.0f / 6));
    Vec<float> high = (1.0f / 24 + r * (1.0f / 120)) + r2 * (1.0f / 720 + r * (1.0f / 5040));
    return low + (r2 * r2) * high;
}
inline Vec<double> exp_reduced(Vec<double> r) {
    Vec<double> r2 = r * r, r4 = r2 * r2;
    Vec<double> a = (1.0 + r) + r2 * (0.5000000000000001 + r * 0.16666666666666669);
    Vec<double> b =
        (0.04166666666662413 + r * 0.008333333333330062) + r2 * (0.0013888888917213717 + r * 0.00019841269863053618);
    Vec<double> c = (2.4801521295954376e-05 + r * 2.7557268459997064e-06) +
                    r2 * (2.7620088445409746e-07 + r * 2.510038549551032e-08);
    return a + r4 * (b + r4 * c);
}

// exp(-s) for 0 <= s <= Format::farthest; exactly zero at that bound, where profiles clamp their argument.
template <class T, class V = Vec<T>> inline V exp_minus(V s) {
    using F = Format<T>;
    V shifted = F::round - s * T(1.4426950408889634);
    V n = shifted - F::round;
    V p = exp_reduced(-(s + n * F::ln2_high) - n * F::ln2_low);
    Bits<T> power = (Bits<T>)shifted << F::mantissa;  // n in the exponent's place; the rounding constant shifts out
    V e = (V)((Bits<T>)p + power);
    return s >= F::farthest ? V{} : e;
}

// log(1 + u) for u >= 0, to working precision for small u too: log(w) + (u - (w - 1)) / w with w = 1 + u rounded.
template <class T, class V = Vec<T>> inline V log1p_nonnegative(V u) {
    using F = Format<T>;
    V w = 1 + u;
    V lost = u - (w - 1);
    Bits<T> half = (Bits<T>)(splat<T>(T(0.70710678118654752)));
    Bits<T> exponent = ((Bits<T>)w - half) >> F::mantissa;
    V m = (V)((Bits<T>)w - (exponent << F::mantissa));  // in [sqrt(1/2), sqrt(2))
    V e = (V)(exponent + (Bits<T>)splat<T>(F::round)) - F::round;
    V s = (m - 1) / (m + 1), s2 = s * s;  // log(m) = 2 atanh(s)
    V series = splat<T>(0);
    for (int odd = sizeof(T) == 4 ? 9 : 21; odd >= 3; odd -= 2) series = (series + T(1) / T(odd)) * s2;
    V log_m = 2 * s + 2 * s * series;
    return e * F::ln2_high + (log_m + (e * F::ln2_low + lost / w));
}

}  // namespace CAGP_VARIANT
