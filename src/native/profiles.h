// The stationary kernels as functions of the squared scaled distance r2: the value k and its slope dk/d(r2). The list
// at the end of this file is the only one: Python asks the module for the names in it.
//
// The slope with respect to r2, not r, is finite at zero distance for all but Matern 1/2, whose one-sided slope meets a
// zero difference there: it is taken as zero.
#pragma once

#include "simd.h"

namespace CAGP_VARIANT {

template <class T> struct Value {
    Vec<T> k, slope;
};

// Distances beyond which exp(-s) is zero, infinite ones included, are as good as this one.
template <class T> inline Vec<T> clamped(Vec<T> s) { return at_most<T>(s, Format<T>::farthest); }

template <class T> struct Rbf {
    static constexpr const char* name = "rbf";
    static constexpr bool has_alpha = false;
    explicit Rbf(double) {}
    Vec<T> value(Vec<T> r2) const { return exp_minus<T>(clamped<T>(r2 * T(0.5))); }
    Value<T> value_and_slope(Vec<T> r2, Vec<T>&) const {
        Vec<T> k = value(r2);
        return {k, k * T(-0.5)};
    }
};

template <class T> struct Matern12 {
    static constexpr const char* name = "matern12";
    static constexpr bool has_alpha = false;
    explicit Matern12(double) {}
    Vec<T> value(Vec<T> r2) const { return exp_minus<T>(clamped<T>(sqrt(r2))); }
    Value<T> value_and_slope(Vec<T> r2, Vec<T>&) const {
        Vec<T> r = clamped<T>(sqrt(r2)), k = exp_minus<T>(r);
        Vec<T> slope = k * T(-0.5) / r;
        return {k, (Vec<T>)((Bits<T>)slope & (Bits<T>)(r > T(0)))};
    }
};

template <class T> struct Matern32 {
    static constexpr const char* name = "matern32";
    static constexpr bool has_alpha = false;
    explicit Matern32(double) {}
    Vec<T> value(Vec<T> r2) const {
        Vec<T> s = clamped<T>(sqrt(r2 * T(3)));
        return (s + T(1)) * exp_minus<T>(s);
    }
    Value<T> value_and_slope(Vec<T> r2, Vec<T>&) const {
        Vec<T> s = clamped<T>(sqrt(r2 * T(3))), e = exp_minus<T>(s);
        return {(s + T(1)) * e, e * T(-1.5)};
    }
};

template <class T> struct Matern52 {
    static constexpr const char* name = "matern52";
    static constexpr bool has_alpha = false;
    explicit Matern52(double) {}
    Vec<T> value(Vec<T> r2) const {
        Vec<T> s = clamped<T>(sqrt(r2 * T(5)));
        return (T(1) + s + s * s * T(1.0 / 3)) * exp_minus<T>(s);
    }
    Value<T> value_and_slope(Vec<T> r2, Vec<T>&) const {
        Vec<T> s = clamped<T>(sqrt(r2 * T(5))), e = exp_minus<T>(s);
        return {(T(1) + s + s * s * T(1.0 / 3)) * e, (T(1) + s) * e * T(-5.0 / 6)};
    }
};

template <class T> struct RationalQuadratic {
    static constexpr const char* name = "rational_quadratic";
    static constexpr bool has_alpha = true;
    T alpha, half_inverse;
    explicit RationalQuadratic(double a) : alpha(T(a)), half_inverse(T(0.5 / a)) {}
    Vec<T> ratio(Vec<T> r2) const { return at_most<T>(r2 * half_inverse, Format<T>::largest); }
    Vec<T> value(Vec<T> r2) const { return exp_minus<T>(clamped<T>(log1p_nonnegative<T>(ratio(r2)) * alpha)); }
    Value<T> value_and_slope(Vec<T> r2, Vec<T>& slope_alpha) const {
        Vec<T> u = ratio(r2), log = log1p_nonnegative<T>(u);
        Vec<T> k = exp_minus<T>(clamped<T>(log * alpha)), shrink = T(1) / (T(1) + u);
        slope_alpha = k * (u * shrink - log);
        return {k, k * shrink * T(-0.5)};
    }
};

template <template <class> class... Profiles> struct ProfileList {};
using CompiledProfiles = ProfileList<Rbf, Matern12, Matern32, Matern52, RationalQuadratic>;

}  // namespace CAGP_VARIANT
