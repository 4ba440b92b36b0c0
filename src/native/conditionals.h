// Conditionals: the distribution of the function at each test point given a few rows of its own. Each vector lane holds
// one test point, so that everything small and serial (factorisation, solves) is done for a vector of them at once.
// Rows may be float; all arithmetic is double.
//
// For a test point x with rows N, all inputs are measured from x in lengthscale units, which keeps the digits of close
// rows. The factorisation C = L D L' needs no square roots. It works on C bordered by two more rows, c' and r', which
// become w' = (L^-1 c)' and u' = (L^-1 r)'. Then mean = u'D^-1 w, explained = w'D^-1 w and misfit = u'D^-1 u. A row
// whose variance given the rows before it (its entry of D) is zero to round-off carries no information: its pivot
// counts as infinite, which leaves it out.
//
// Gradients need one pass. Both results depend on few parameters, so their slopes are written down for every test point
// while its matrix is in the cache. With a = C^-1 r and b = C^-1 c the slopes in C, both triangles of an entry
// together, are -(a_i b_j + b_i a_j) and -2 b_i b_j. Those in c are a and 2b, which is the same formula for one more
// row, the test point, with a = 0 and b = -1.
#pragma once

#include <cmath>

#include "profiles.h"
#include "sweeps.h"

namespace CAGP_VARIANT {
namespace {

using Index = std::int64_t;

inline int smaller(Index a, int b) { return a < b ? int(a) : b; }

constexpr double kEpsilon = 2.220446049250313e-16;

// The test points of one panel: their rows, and the bordered matrix, which is factorised in place.
template <class In, class Profile> class ConditionalPanel {
  public:
    static Index bytes(const ConditionalProblem<In>& p) {
        const Index matrices = Profile::has_alpha ? 3 : 2;
        return 64 + Index(sizeof(V)) * ((p.k + 1) * p.d + matrices * (p.k + 2) * p.k + 6 * (p.k + 1) + 2 * p.d + 3);
    }

    ConditionalPanel(const ConditionalProblem<In>& problem, void* memory)
        : p(problem), profile(problem.alpha), scale(p.outputscale) {
        auto address = (reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63);
        points = reinterpret_cast<V*>(address);
        A = points + (p.k + 1) * p.d;
        slopes = A + (p.k + 2) * p.k;
        present = slopes + (p.k + 2) * p.k;
        noise = present + p.k + 1;
        variance = noise + p.k + 1;
        inverse = variance + p.k + 1;
        alpha = inverse + p.k + 1;
        beta = alpha + p.k + 1;
        origin = beta + p.k + 1;
        sums = origin + p.d;
        shapes = sums + p.d + 3;
    }

    // Loads the test points [first, first + count), factorises and solves; with the slopes of the kernel if wanted.
    void solve(Index first_, int count_, bool with_slopes) {
        first = first_, count = count_;
        gather();
        load_targets();
        squared_distances();
        if (with_slopes)
            covariances<true>();
        else
            covariances<false>();
        factorise();
    }

    void write(const Moments& out) {
        moments();
        V misfit{}, rows{};
        const V* u = row(p.k + 1);
        for (Index a = 0; a < p.k; ++a) {
            misfit += u[a] * u[a] * inverse[a];
            rows += inverse[a] > V{} ? present[a] : V{};
        }
        write_lanes(out.mean, 1, 0, m);
        write_lanes(out.explained, 1, 0, e);
        write_lanes(out.misfit, 1, 0, misfit);
        write_lanes(out.rows, 1, 0, rows);
    }

    // After write(), whose results it uses.
    void write_gradients(const MomentSlopes& out) {
        back_substitute();
        for (Index a = 0; a < p.k; ++a) {
            write_lanes(out.alpha, p.k, a, alpha[a]);
            write_lanes(out.beta, p.k, a, beta[a]);
        }
        if (!out.parameters) return;
        scale_gradients(out);
        shape_gradients(out);
        if (out.points) test_point_gradients(out);
        for_each_group_of_inputs([&](auto width, Index j) { distance_gradients<width>(j, out); });
    }

    // The sums of a task, which starts and ends with these two.
    void clear_sums() {
        for (Index e = 0; e < p.d + 3; ++e) sums[e] = V{};
        total = 0;
    }
    void write_sums(const Density& out) const {
        out.sums[0] = total;
        for (Index e = 0; out.slopes && e < p.d + 3; ++e) out.sums[1 + e] = sum_lanes_double<T>(sums[e]);
    }

    // After solve(): adds the negative log densities of the test points' own targets, error^2 / 2v + log(2 pi v) / 2
    // with v = (scale - explained) + noise. Their slope in C is -(gamma_i beta_j + beta_i gamma_j) for both triangles
    // of an entry together, where gamma = g alpha + h beta with their slopes g in mean and h in explained.
    void add_density(bool with_slopes) {
        moments();
        V error, v, g{}, h{}, of_variance{}, of_scale{};
        const V noise_of_all = splat<T>(*p.noise.data);
        for (int l = 0; l < kLanes<T>; ++l) error[l] = p.targets[p.test_rows[test_point(l)]];
        error -= m;
        const V left = scale - e;
        v = (left < V{} ? V{} : left) + noise_of_all;  // NaN stays NaN
        const V standard = error / v;
        for (int l = 0; l < count; ++l) {
            total += 0.5 * (double(error[l]) * double(standard[l]) + std::log(6.283185307179586 * double(v[l])));
            g[l] = -standard[l];
            of_variance[l] = T(0.5) * (T(1) / v[l] - standard[l] * standard[l]);
            of_scale[l] = left[l] >= T(0) ? of_variance[l] : T(0);
        }
        if (!with_slopes) return;
        h = -of_scale;
        back_substitute();
        V* gamma = alpha;
        V diagonal{};
        for (Index a = 0; a <= p.k; ++a) {
            gamma[a] = g * alpha[a] + h * beta[a];
            if (a < p.k) diagonal += gamma[a] * beta[a];
        }
        add_distance_slopes(gamma);
        sums[p.d + 1] += of_scale + (h * e + noise_of_all * diagonal) / scale;
        sums[p.d + 2] += of_variance - diagonal;
    }

  private:
    using T = double;
    using V = Vec<T>;
    static constexpr int kColumns = 4;   // of the matrix, or of the inputs, that are handled together
    static constexpr int kTogether = 3;  // rows that meet them: their products fill the registers
    static constexpr int kNear = 2;      // the same for distances, which need more registers

    const ConditionalProblem<In>& p;
    const Profile profile;
    const T scale;
    V *points, *A, *slopes, *present, *noise, *variance, *inverse, *alpha, *beta, *origin, *sums, *shapes;
    V m{}, e{};  // mean and explained
    Index first = 0;
    int count = 0;
    bool complete = true;

    double total = 0;  // of the negative log densities

    V* row(Index a) { return A + a * p.k; }

    // Calls visit(width, j) for the columns [j, j + width) of the inputs: what is left over first, then kColumns each.
    template <class Visit> void for_each_group_of_inputs(const Visit& visit) {
        static_assert(kColumns == 4, "every remainder needs a case");
        const Index rest = p.d % kColumns;
        switch (rest) {
            case 1: visit(Constant<1>{}, 0); break;
            case 2: visit(Constant<2>{}, 0); break;
            case 3: visit(Constant<3>{}, 0); break;
        }
        for (Index j = rest; j < p.d; j += kColumns) visit(Constant<kColumns>{}, j);
    }

    void moments() {
        m = e = V{};
        const V *w = row(p.k), *u = row(p.k + 1);
        for (Index a = 0; a < p.k; ++a) {
            const V share = w[a] * inverse[a];
            m += share * u[a];
            e += share * w[a];
        }
    }

    // Lanes without a test point repeat the last one.
    Index test_point(int l) const { return first + (l < count ? l : count - 1); }

    const In* inputs_of(Index q) const { return p.points ? p.points + q * p.d : p.X + p.test_rows[q] * p.d; }

    void gather() {
        const In* x[kLanes<T>];
        const Index* rows[kLanes<T>];
        Index least = 0;
        for (int l = 0; l < kLanes<T>; ++l) {
            x[l] = inputs_of(test_point(l));
            rows[l] = p.neighbours + test_point(l) * p.k;
        }
        for (Index j = 0; j < p.d; ++j) origin[j] = lanes(x, j);
        for (Index a = 0; a < p.k; ++a) {
            const In* z[kLanes<T>];
            for (int l = 0; l < kLanes<T>; ++l) {
                const Index n = rows[l][a];
                least = n < least ? n : least;
                z[l] = n >= 0 ? p.X + n * p.d : x[l];
            }
            V* point = points + a * p.d;
            for (Index j = 0; j < p.d; ++j) point[j] = (lanes(z, j) - origin[j]) * p.inverse_lengthscale[j];
        }
        for (Index j = 0; j < p.d; ++j) points[p.k * p.d + j] = V{};
        complete = least >= 0;
    }

    static V lanes(const In* const* values, Index position) {
        V v;
        for (int l = 0; l < kLanes<T>; ++l) v[l] = values[l][position];
        return v;
    }

    // Values of this panel's test points.
    V read_lanes(const T* values, Index stride, Index position) const {
        V v;
        for (int l = 0; l < kLanes<T>; ++l) v[l] = values[test_point(l) * stride + position];
        return v;
    }

    // Of the a-th neighbour of each test point; zero where there is none.
    V target(Index a) const {
        V v;
        for (int l = 0; l < kLanes<T>; ++l) {
            const Index n = p.neighbours[test_point(l) * p.k + a];
            v[l] = n >= 0 ? p.targets[n] : T(0);
        }
        return v;
    }

    void load_targets() {
        V* r = row(p.k + 1);
        for (Index a = 0; a < p.k; ++a) {
            r[a] = p.targets ? target(a) : read_lanes(p.residual, p.k, a);
            noise[a] = read_lanes(p.noise.data, p.noise.row, a * p.noise.column);
            present[a] = splat<T>(T(1));
        }
        if (complete) return;
        for (Index a = 0; a < p.k; ++a)
            for (int l = 0; l < kLanes<T>; ++l)
                if (p.neighbours[test_point(l) * p.k + a] < 0) {
                    present[a][l] = r[a][l] = T(0);
                    noise[a][l] = T(1);
                }
    }

    // Of every row, the test point last, with the rows before it; entries right of the diagonal are not used.
    void squared_distances() {
        Index b = 0;
        for (; b + kColumns <= p.k; b += kColumns) distances_to<kColumns>(b);
        for (; b < p.k; ++b) distances_to<1>(b);
    }

    template <int C> void distances_to(Index b) {
        Index a = b + 1;
        for (; a + kNear <= p.k + 1; a += kNear) tile<kNear, C>(a, b);
        for (; a <= p.k; ++a) tile<1, C>(a, b);
    }

    template <int R, int C> CAGP_FLAT void tile(Index a, Index b) {
        V r2[R][C];
        repeat<R>([&](auto s) { repeat<C>([&](auto c) { r2[s][c] = V{}; }); });
        const V *x = points + a * p.d, *z = points + b * p.d;
        for (Index j = 0; j < p.d; ++j) {
            V near[C];
            repeat<C>([&](auto c) { near[c] = z[c * p.d + j]; });
            repeat<R>([&](auto s) {
                const V here = x[s * p.d + j];
                repeat<C>([&](auto c) {
                    const V difference = here - near[c];
                    r2[s][c] += difference * difference;
                });
            });
        }
        repeat<R>([&](auto s) { repeat<C>([&](auto c) { row(a + s)[b + c] = r2[s][c]; }); });
    }

    // From squared distances to covariances, in their place; and to slopes in the squared distance.
    template <bool with_slopes> CAGP_FLAT void covariances() {
        for (Index a = 0; a <= p.k; ++a) {
            V *entries = row(a), *slope = slopes + a * p.k, *shape = shapes + a * p.k;
            for (Index b = 0; b < before(a); ++b) {
                if (with_slopes) {
                    V slope_alpha{};
                    const Value<T> value = profile.value_and_slope(entries[b], slope_alpha);
                    entries[b] = value.k * scale;
                    slope[b] = value.slope * scale;
                    if (Profile::has_alpha) shape[b] = slope_alpha * scale;
                } else {
                    entries[b] = profile.value(entries[b]) * scale;
                }
            }
        }
        for (Index a = 0; a < p.k; ++a) row(a)[a] = variance[a] = present[a] * scale + noise[a];
        if (p.gram)
            for (Index a = 0; a < p.k; ++a)
                for (Index b = 0; b <= a; ++b)
                    row(a)[b] -= present[a] * present[b] * read_lanes(p.gram, p.k * p.k, a * p.k + b);
        if (p.cross)
            for (Index a = 0; a < p.k; ++a) row(p.k)[a] -= read_lanes(p.cross, p.k, a);
        if (complete) return;
        for (Index a = 0; a < p.k; ++a) {
            for (Index b = 0; b < a; ++b) row(a)[b] *= present[a] * present[b];
            row(p.k)[a] *= present[a];
        }
    }

    void factorise() {
        Index j = 0;
        for (; j + kColumns <= p.k; j += kColumns) columns<kColumns>(j);
        for (; j < p.k; ++j) columns<1>(j);
    }

    // Columns [j, j + C) of L D, and of w' and u'. Of the rows [j, j + C), the columns before turn from L D to L.
    template <int C> CAGP_FLAT void columns(Index j) {
        V LD[C][C], L[C][C];
        V* z = row(j);
        repeat<C>([&](auto r) { repeat<r + 1>([&](auto c) { LD[r][c] = z[r * p.k + j + c]; }); });
        for (Index i = 0; i < j; ++i) {
            V v[C], l[C];
            repeat<C>([&](auto r) {
                v[r] = z[r * p.k + i];
                z[r * p.k + i] = l[r] = v[r] * inverse[i];
            });
            repeat<C>([&](auto r) { repeat<r + 1>([&](auto c) { LD[r][c] -= v[r] * l[c]; }); });
        }
        repeat<C>([&](auto c) {
            const V pivot = LD[c][c], one = splat<T>(T(1));
            const auto counts = pivot > variance[j + c] * (256 * kEpsilon);  // of its prior variance
            const V inverted = inverse[j + c] = counts ? one / (counts ? pivot : one) : V{};
            repeat<C>([&](auto r) {
                if (r <= c) return;
                z[r * p.k + j + c] = L[r][c] = LD[r][c] * inverted;
            });
            repeat<C>([&](auto r) {
                repeat<r + 1>([&](auto next) {
                    if (next > c) LD[r][next] -= LD[r][c] * L[next][c];
                });
            });
        });
        Index i = j + C;
        for (; i + kTogether <= p.k + 2; i += kTogether) below<kTogether, C>(i, j);
        if (i + 2 == p.k + 2)
            below<2, C>(i, j);
        else if (i + 1 == p.k + 2)
            below<1, C>(i, j);
    }

    // Rows [i, i + R) of these columns.
    template <int R, int C> CAGP_FLAT void below(Index i, Index j) {
        V *x = row(i), *z = row(j);
        V sum[R][C];
        repeat<R>([&](auto s) { repeat<C>([&](auto c) { sum[s][c] = x[s * p.k + j + c]; }); });
        for (Index b = 0; b < j; ++b) {
            V v[R];
            repeat<R>([&](auto s) { v[s] = x[s * p.k + b]; });
            repeat<C>([&](auto c) {
                const V l = z[c * p.k + b];
                repeat<R>([&](auto s) { sum[s][c] -= v[s] * l; });
            });
        }
        repeat<C>([&](auto c) {
            repeat<c>([&](auto past) {
                const V l = z[c * p.k + j + past];
                repeat<R>([&](auto s) { sum[s][c] -= sum[s][past] * l; });
            });
            repeat<R>([&](auto s) { x[s * p.k + j + c] = sum[s][c]; });
        });
    }

    // alpha = L^-T D^-1 u = C^-1 r and beta = L^-T D^-1 w = C^-1 c; with those of the test point.
    void back_substitute() {
        for (Index a = 0; a < p.k; ++a) {
            alpha[a] = row(p.k + 1)[a] * inverse[a];
            beta[a] = row(p.k)[a] * inverse[a];
        }
        alpha[p.k] = V{};
        beta[p.k] = splat<T>(T(-1));
        Index j = p.k;
        for (; j % kColumns; --j) eliminate<1>(j - 1);
        for (; j > 0; j -= kColumns) eliminate<kColumns>(j - kColumns);
    }

    template <int C> CAGP_FLAT void eliminate(Index j) {
        V a[C], b[C];
        const V* z = row(j);
        repeat<C>([&](auto reversed) {
            constexpr int c = C - 1 - reversed;
            a[c] = alpha[j + c], b[c] = beta[j + c];
            repeat<C>([&](auto r) {
                if (r <= c) return;
                a[c] -= z[r * p.k + j + c] * a[r];
                b[c] -= z[r * p.k + j + c] * b[r];
            });
            alpha[j + c] = a[c], beta[j + c] = b[c];
        });
        for (Index i = 0; i < j; ++i) {
            V x = alpha[i], y = beta[i];
            repeat<C>([&](auto c) {
                const V l = z[c * p.k + i];
                x -= l * a[c];
                y -= l * b[c];
            });
            alpha[i] = x, beta[i] = y;
        }
    }

    // From alpha'C beta = mean and beta'C beta = explained: the scale multiplies C - noise + gram, and c + cross.
    void scale_gradients(const MomentSlopes& out) {
        V of_mean{}, of_explained = e;
        for (Index a = 0; a < p.k; ++a) {
            V x = noise[a] * beta[a], y{};
            if (p.gram)
                for (Index b = 0; b < p.k; ++b) x -= read_lanes(p.gram, p.k * p.k, a * p.k + b) * beta[b];
            if (p.cross) y = read_lanes(p.cross, p.k, a);
            of_mean += alpha[a] * (x + y);
            of_explained += beta[a] * (x + 2 * y);
        }
        write_parameter(out, p.d + 1, of_mean / scale, of_explained / scale);
    }

    // Of the kernel's own parameter, where it has one.
    void shape_gradients(const MomentSlopes& out) {
        V of_mean{}, of_explained{};
        if (Profile::has_alpha) {
            for (Index a = 1; a <= p.k; ++a) {
                const V* shape = shapes + a * p.k;
                V with_alpha{}, with_beta{};
                for (Index b = 0; b < before(a); ++b) {
                    with_alpha += shape[b] * alpha[b];
                    with_beta += shape[b] * beta[b];
                }
                of_mean -= alpha[a] * with_beta + beta[a] * with_alpha;
                of_explained -= 2 * (beta[a] * with_beta);
            }
        }
        write_parameter(out, p.d, of_mean, of_explained);
    }

    // Sums of the squared differences in the columns [j, j + C) of the inputs, weighted by the slopes.
    template <int C> CAGP_FLAT void distance_gradients(Index j, const MomentSlopes& out) {
        V of_mean[C], of_explained[C];
        repeat<C>([&](auto c) { of_mean[c] = of_explained[c] = V{}; });
        for (Index a = 1; a <= p.k; ++a) {
            const V *slope = slopes + a * p.k, *z = points + j;
            V x[C], with_alpha[C], with_beta[C];
            repeat<C>([&](auto c) {
                x[c] = points[a * p.d + j + c];
                with_alpha[c] = with_beta[c] = V{};
            });
            const Index size = before(a);
            for (Index b = 0; b < size; ++b, z += p.d) {
                const V weight_alpha = slope[b] * alpha[b], weight_beta = slope[b] * beta[b];
                repeat<C>([&](auto c) {
                    const V difference = x[c] - z[c], square = difference * difference;
                    with_alpha[c] += weight_alpha * square;
                    with_beta[c] += weight_beta * square;
                });
            }
            repeat<C>([&](auto c) {
                of_mean[c] -= alpha[a] * with_beta[c] + beta[a] * with_alpha[c];
                of_explained[c] -= 2 * (beta[a] * with_beta[c]);
            });
        }
        for (int c = 0; c < C; ++c) write_parameter(out, j + c, of_mean[c], of_explained[c]);
    }

    // Both sums over pairs: of the slopes in alpha; and of those in the squared distances, which take the place of the
    // slopes of the kernel, times the squared differences in each column of the inputs.
    void add_distance_slopes(const V* gamma) {
        for (Index a = 1; a <= p.k; ++a) {
            V *slope = slopes + a * p.k, of_alpha{};
            const V* shape = shapes + a * p.k;
            for (Index b = 0; b < before(a); ++b) {
                const V weight = -(gamma[a] * beta[b] + beta[a] * gamma[b]);
                if (Profile::has_alpha) of_alpha += weight * shape[b];
                slope[b] *= weight;
            }
            sums[p.d] += of_alpha;
        }
        for_each_group_of_inputs([&](auto width, Index j) { add_squares<width>(j); });
    }

    template <int C> CAGP_FLAT void add_squares(Index j) {
        V sum[C];
        repeat<C>([&](auto c) { sum[c] = sums[j + c]; });
        for (Index a = 1; a <= p.k; ++a) {
            const V *weight = slopes + a * p.k, *z = points + j;
            V x[C], of_row[C];  // a sum of its own for each row: the additions wait for each other
            repeat<C>([&](auto c) {
                x[c] = points[a * p.d + j + c];
                of_row[c] = V{};
            });
            const Index size = before(a);
            for (Index b = 0; b < size; ++b, z += p.d) {
                repeat<C>([&](auto c) {
                    const V difference = x[c] - z[c];
                    of_row[c] += weight[b] * (difference * difference);
                });
            }
            repeat<C>([&](auto c) { sum[c] += of_row[c]; });
        }
        repeat<C>([&](auto c) { sums[j + c] = sum[c]; });
    }

    void test_point_gradients(const MomentSlopes& out) {
        const V* slope = slopes + p.k * p.k;
        for (Index j = 0; j < p.d; ++j) {
            V with_alpha{}, with_beta{};
            for (Index b = 0; b < p.k; ++b) {
                with_alpha += slope[b] * alpha[b] * points[b * p.d + j];
                with_beta += slope[b] * beta[b] * points[b * p.d + j];
            }
            const T factor = -2 * p.inverse_lengthscale[j];
            write_lanes(out.points, 2 * p.d, j, with_alpha * factor);
            write_lanes(out.points, 2 * p.d, p.d + j, 2 * with_beta * factor);
        }
    }

    // Entries of row a left of the diagonal; the row of the test point has all of them.
    Index before(Index a) const { return a < p.k ? a : p.k; }

    void write_lanes(T* values, Index stride, Index position, V v) const {
        for (int l = 0; l < count; ++l) values[(first + l) * stride + position] = v[l];
    }
    void write_parameter(const MomentSlopes& out, Index place, V of_mean, V of_explained) const {
        const Index size = p.d + 2;
        write_lanes(out.parameters, 2 * size, place, of_mean);
        write_lanes(out.parameters, 2 * size, size + place, of_explained);
    }
};

template <class In, class Profile> Index conditionals_scratch(const ConditionalProblem<In>& p) {
    return ConditionalPanel<In, Profile>::bytes(p);
}

template <class In, class Profile>
void conditionals(const ConditionalProblem<In>& p, Range points, const Moments& results, const MomentSlopes& gradients,
                  void* memory) {
    ConditionalPanel<In, Profile> panel(p, memory);
    for (Index q = points.begin; q < points.end; q += kLanes<double>) {
        panel.solve(q, smaller(points.end - q, kLanes<double>), gradients.parameters != nullptr);
        panel.write(results);
        if (gradients.alpha) panel.write_gradients(gradients);
    }
}

template <class In, class Profile>
void density(const ConditionalProblem<In>& p, Range points, const Density& density, void* memory) {
    ConditionalPanel<In, Profile> panel(p, memory);
    panel.clear_sums();
    for (Index q = points.begin; q < points.end; q += kLanes<double>) {
        panel.solve(q, smaller(points.end - q, kLanes<double>), density.slopes);
        panel.add_density(density.slopes);
    }
    panel.write_sums(density);
}

}  // namespace
}  // namespace CAGP_VARIANT
