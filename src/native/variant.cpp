// The loops over pairs of points, compiled once for each instruction set (see simd.h).
//
// One side of each product lies in the vector lanes: a panel of kRows points, transposed, whose distances to one point
// of the other side are computed together. Distances are sums of squared differences, never the expansion of the
// square, which would lose close points in float32.
#include "profiles.h"
#include "sweeps.h"

namespace CAGP_VARIANT {
namespace {

constexpr int kUnroll = 4;  // vectors per panel: enough independent chains to hide the latency of exp
constexpr int kChunk = 32;  // points of the looped side whose cotangents are kept between the two gradient passes
template <class T> constexpr int kRows = kUnroll * kLanes<T>;

template <class T> struct Panel {
    Vec<T> v[kUnroll];
};

// The working memory of a task: two transposed panels (points, their gradient) and the cotangents of a chunk.
template <class T> struct Scratch {
    T *panel, *panel_gradient;
    Panel<T>* cotangents;
    Scratch(void* memory, std::int64_t d) {
        auto address = (reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63);
        cotangents = reinterpret_cast<Panel<T>*>(address);
        panel = reinterpret_cast<T*>(cotangents + kChunk);
        panel_gradient = panel + d * kRows<T>;
    }
    static std::int64_t bytes(std::int64_t d) {
        return 64 + kChunk * std::int64_t(sizeof(Panel<T>)) + 2 * d * kRows<T> * std::int64_t(sizeof(T));
    }
};

// Rows [begin, begin + count) of the points, transposed; lanes beyond `count` repeat the last row.
template <class T> void transpose_panel(const T* points, std::int64_t begin, int count, std::int64_t d, T* panel) {
    for (int l = 0; l < kRows<T>; ++l) {
        const T* row = points + (begin + (l < count ? l : count - 1)) * d;
        for (std::int64_t k = 0; k < d; ++k) panel[k * kRows<T> + l] = row[k];
    }
}

template <class T> inline Panel<T> squared_distances(const T* panel, const T* point, std::int64_t d) {
    Panel<T> r2{};
    for (std::int64_t k = 0; k < d; ++k) {
        const Vec<T> z = splat<T>(point[k]);
        for (int u = 0; u < kUnroll; ++u) {
            Vec<T> difference = load(panel + k * kRows<T> + u * kLanes<T>) - z;
            r2.v[u] += difference * difference;
        }
    }
    return r2;
}

// Second pass of the gradient: given cotangents[c] = dL/dr2 of each panel point against each of `count` looped points,
// adds dL/dr2 * difference^2 to square, and 2 * dL/dr2 * difference to the gradients of both sides where asked for.
template <class T>
void distance_gradients(const Scratch<T>& scratch, const T* points, int count, std::int64_t d, double* square,
                        bool panel_gradient, T* point_gradient) {
    for (std::int64_t k = 0; k < d; ++k) {
        Panel<T> x, squares{}, sums{};
        for (int u = 0; u < kUnroll; ++u) x.v[u] = load(scratch.panel + k * kRows<T> + u * kLanes<T>);
        if (!panel_gradient && !point_gradient) {
            for (int c = 0; c < count; ++c) {
                const Vec<T> z = splat<T>(points[c * d + k]);
                for (int u = 0; u < kUnroll; ++u) {
                    Vec<T> difference = x.v[u] - z;
                    squares.v[u] += (scratch.cotangents[c].v[u] * difference) * difference;
                }
            }
        } else {
            for (int c = 0; c < count; ++c) {
                const Vec<T> z = splat<T>(points[c * d + k]);
                Vec<T> total{};
                for (int u = 0; u < kUnroll; ++u) {
                    Vec<T> difference = x.v[u] - z, product = scratch.cotangents[c].v[u] * difference;
                    squares.v[u] += product * difference;
                    sums.v[u] += product;
                    total += product;
                }
                if (point_gradient) point_gradient[c * d + k] -= 2 * sum_lanes<T>(total);
            }
            for (int u = 0; u < kUnroll; ++u) {
                T* g = scratch.panel_gradient + k * kRows<T> + u * kLanes<T>;
                store<T>(g, load(g) + 2 * sums.v[u]);
            }
        }
        for (int u = 1; u < kUnroll; ++u) squares.v[0] += squares.v[u];
        square[k] += sum_lanes_double<T>(squares.v[0]);
    }
}

template <class T> void clear_panel_gradient(const Scratch<T>& scratch, std::int64_t d) {
    for (std::int64_t e = 0; e < d * kRows<T>; ++e) scratch.panel_gradient[e] = 0;
}

template <class T>
void add_panel_gradient(const Scratch<T>& scratch, std::int64_t begin, int count, std::int64_t d, T* gradient) {
    for (int l = 0; l < count; ++l)
        for (std::int64_t k = 0; k < d; ++k) gradient[(begin + l) * d + k] += scratch.panel_gradient[k * kRows<T> + l];
}

inline int panel_count(std::int64_t begin, std::int64_t end, int rows) {
    return end - begin < rows ? int(end - begin) : rows;
}

// k(X, Z): the columns lie in the lanes, so that a row of the result is written in one piece.
template <class T, class Profile>
void matrix(const Problem<T>& p, std::int64_t begin, std::int64_t end, T* out, void* memory) {
    const Profile profile(p.alpha);
    const Scratch<T> scratch(memory, p.d);
    for (std::int64_t column = 0; column < p.m; column += kRows<T>) {
        const int count = panel_count(column, p.m, kRows<T>);
        transpose_panel(p.Z, column, count, p.d, scratch.panel);
        for (std::int64_t row = begin; row < end; ++row) {
            const Panel<T> r2 = squared_distances(scratch.panel, p.X + row * p.d, p.d);
            T* to = out + row * p.m + column;
            Panel<T> k;
            for (int u = 0; u < kUnroll; ++u) k.v[u] = profile.value(r2.v[u]);
            std::memcpy(to, &k, count * sizeof(T));
        }
    }
}

template <class T, class Profile>
void matrix_gradient(const Problem<T>& p, std::int64_t begin, std::int64_t end, const T* grad_out,
                     const Gradients<T>& gradients, void* memory) {
    const Profile profile(p.alpha);
    const Scratch<T> scratch(memory, p.d);
    for (std::int64_t column = 0; column < p.m; column += kRows<T>) {
        const int count = panel_count(column, p.m, kRows<T>);
        transpose_panel(p.Z, column, count, p.d, scratch.panel);
        clear_panel_gradient(scratch, p.d);
        for (std::int64_t first = begin; first < end; first += kChunk) {
            const int rows = panel_count(first, end, kChunk);
            Vec<T> alpha{};
            for (int c = 0; c < rows; ++c) {
                const std::int64_t row = first + c;
                const Panel<T> r2 = squared_distances(scratch.panel, p.X + row * p.d, p.d);
                Panel<T> g{};
                std::memcpy(&g, grad_out + row * p.m + column, count * sizeof(T));
                for (int u = 0; u < kUnroll; ++u) {
                    Vec<T> slope_alpha{};
                    const Value<T> value = profile.value_and_slope(r2.v[u], slope_alpha);
                    scratch.cotangents[c].v[u] = g.v[u] * value.slope;
                    if (Profile::has_alpha) alpha += g.v[u] * slope_alpha;
                }
            }
            if (Profile::has_alpha) *gradients.alpha += sum_lanes_double<T>(alpha);
            distance_gradients(scratch, p.X + first * p.d, rows, p.d, gradients.square, gradients.Z != nullptr,
                               gradients.X ? gradients.X + first * p.d : nullptr);
        }
        if (gradients.Z) add_panel_gradient(scratch, column, count, p.d, gradients.Z);
    }
}

// k(X, Z) W: the rows lie in the lanes, and a block of columns is summed before anything is written.
template <class T, class Profile>
void block(const Problem<T>& p, const T* values, const std::int64_t* offsets, std::int64_t i, std::int64_t begin,
           std::int64_t end, T* out, void* memory) {
    const Profile profile(p.alpha);
    const Scratch<T> scratch(memory, p.d);
    for (std::int64_t row = begin; row < end; row += kRows<T>) {
        const int count = panel_count(row, end, kRows<T>);
        transpose_panel(p.X, row, count, p.d, scratch.panel);
        for (std::int64_t j = 0; j < i; ++j) {
            Panel<T> total{};
            for (std::int64_t c = offsets[j]; c < offsets[j + 1]; ++c) {
                const Panel<T> r2 = squared_distances(scratch.panel, p.Z + c * p.d, p.d);
                for (int u = 0; u < kUnroll; ++u) total.v[u] += profile.value(r2.v[u]) * values[c];
            }
            T column[kRows<T>];
            std::memcpy(column, &total, sizeof column);
            for (int l = 0; l < count; ++l) out[(row + l) * i + j] = column[l];
        }
    }
}

template <class T, class Profile>
void block_gradient(const Problem<T>& p, const T* values, const std::int64_t* offsets, std::int64_t i,
                    std::int64_t begin, std::int64_t end, const T* grad_out, const Gradients<T>& gradients,
                    void* memory) {
    const Profile profile(p.alpha);
    const Scratch<T> scratch(memory, p.d);
    for (std::int64_t row = begin; row < end; row += kRows<T>) {
        const int count = panel_count(row, end, kRows<T>);
        transpose_panel(p.X, row, count, p.d, scratch.panel);
        clear_panel_gradient(scratch, p.d);
        for (std::int64_t j = 0; j < i; ++j) {
            T column[kRows<T>] = {};
            for (int l = 0; l < count; ++l) column[l] = grad_out[(row + l) * i + j];
            Panel<T> g;
            std::memcpy(&g, column, sizeof g);
            for (std::int64_t first = offsets[j]; first < offsets[j + 1]; first += kChunk) {
                const int columns = panel_count(first, offsets[j + 1], kChunk);
                Vec<T> alpha{};
                for (int c = 0; c < columns; ++c) {
                    const T weight = values[first + c];
                    const Panel<T> r2 = squared_distances(scratch.panel, p.Z + (first + c) * p.d, p.d);
                    Vec<T> product{};
                    for (int u = 0; u < kUnroll; ++u) {
                        Vec<T> slope_alpha{};
                        const Value<T> value = profile.value_and_slope(r2.v[u], slope_alpha);
                        product += g.v[u] * value.k;
                        scratch.cotangents[c].v[u] = g.v[u] * weight * value.slope;
                        if (Profile::has_alpha) alpha += g.v[u] * weight * slope_alpha;
                    }
                    gradients.values[first + c] += sum_lanes<T>(product);
                }
                if (Profile::has_alpha) *gradients.alpha += sum_lanes_double<T>(alpha);
                distance_gradients(scratch, p.Z + first * p.d, columns, p.d, gradients.square, gradients.X != nullptr,
                                   gradients.Z ? gradients.Z + first * p.d : nullptr);
            }
        }
        if (gradients.X) add_panel_gradient(scratch, row, count, p.d, gradients.X);
    }
}

template <class T, class Profile> constexpr Sweeps<T> sweeps() {
    return {Scratch<T>::bytes, matrix<T, Profile>, matrix_gradient<T, Profile>, block<T, Profile>,
            block_gradient<T, Profile>};
}

#define CAGP_SWEEPS(T) \
    {sweeps<T, Rbf<T>>(), sweeps<T, Matern12<T>>(), sweeps<T, Matern32<T>>(), sweeps<T, Matern52<T>>(), \
     sweeps<T, RationalQuadratic<T>>()}

#define CAGP_STRING_(x) #x
#define CAGP_STRING(x) CAGP_STRING_(x)
#define CAGP_JOIN_(a, b) a##b
#define CAGP_JOIN(a, b) CAGP_JOIN_(a, b)

constexpr Variant kVariant = {CAGP_STRING(CAGP_VARIANT), kRows<float>, kRows<double>, CAGP_SWEEPS(float),
                              CAGP_SWEEPS(double)};

}  // namespace
}  // namespace CAGP_VARIANT

extern "C" const Variant* CAGP_JOIN(cagp_variant_, CAGP_VARIANT)() { return &CAGP_VARIANT::kVariant; }
