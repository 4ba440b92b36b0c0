// Conditioning on the few rows near each question: one question in each vector lane, so that everything small and
// serial (factorisation, solves) is done for a vector of questions at once.
//
// For a question x with rows N, everything is measured from x in lengthscale units, which keeps the digits of close
// rows. The factorisation works on C bordered by two more rows, c' and r', which come out as w' = (L^-1 c)' and
// u' = (L^-1 r)': mean = u'w, explained = w'w. A row whose variance given the rows before it is zero to round-off
// carries no information: its pivot counts as infinite, and it is left out.
#pragma once

#include "profiles.h"
#include "sweeps.h"

namespace CAGP_VARIANT {
namespace {

using Index = std::int64_t;

inline int smaller(Index a, int b) { return a < b ? int(a) : b; }

template <class T> struct Precision;
template <> struct Precision<float> {
    static constexpr float epsilon = 1.1920929e-7f;
};
template <> struct Precision<double> {
    static constexpr double epsilon = 2.220446049250313e-16;
};

// The questions of one panel: their rows, and the bordered matrix in its place.
template <class T, class Profile> class LocalPanel {
  public:
    static Index bytes(const LocalProblem<T>& p) {
        return 64 + Index(sizeof(V)) * (p.k * p.d + (p.k + 2) * p.k + 6 * p.k + 2 * p.d);
    }

    LocalPanel(const LocalProblem<T>& problem, void* memory) : p(problem), profile(problem.alpha), scale(T(p.outputscale)) {
        auto address = (reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63);
        points = reinterpret_cast<V*>(address);
        A = points + p.k * p.d;
        present = A + (p.k + 2) * p.k;
        inverse = present + p.k;
        alpha = inverse + p.k;
        beta = alpha + p.k;
        cotangent = beta + p.k;
        border = cotangent + p.k;
        squares = border + p.k;
        question = squares + p.d;
    }

    // Loads the questions [first, first + count), factorises, and solves.
    void solve(Index first_, int count_) {
        first = first_, count = count_;
        gather();
        load_targets();
        covariances();
        factorise();
    }

    void write(T* mean, T* explained) const {
        V m{}, e{};
        const V *w = row(p.k), *u = row(p.k + 1);
        for (Index a = 0; a < p.k; ++a) {
            m += w[a] * u[a];
            e += w[a] * w[a];
        }
        for (int l = 0; l < count; ++l) {
            mean[first + l] = m[l];
            explained[first + l] = e[l];
        }
    }

    // After solve().
    void write_solutions(const LocalSolutions<T>& out) {
        back_substitute();
        for (Index a = 0; a < p.k; ++a) {
            write_lanes(out.alpha, a, alpha[a]);
            write_lanes(out.beta, a, beta[a]);
        }
    }

    // Gradients of the questions [first, first + count), given their solutions and the gradients of the results.
    void gradient(Index first_, int count_, const LocalSolutions<T>& solutions, const LocalCotangents<T>& given,
                  const LocalGradients<T>& out) {
        first = first_, count = count_;
        gather();
        V g{}, h{};
        for (int l = 0; l < count; ++l) {  // zero in lanes without a question
            g[l] = given.mean[first + l];
            h[l] = given.explained[first + l];
        }
        for (Index a = 0; a < p.k; ++a) {
            alpha[a] = read_lanes(solutions.alpha, p.k, a);
            beta[a] = read_lanes(solutions.beta, p.k, a);
        }
        V scale_sum{}, alpha_sum{};
        for (Index j = 0; j < p.d; ++j) squares[j] = question[j] = V{};
        for (Index a = 0; a < p.k; ++a) {
            // Of C: -(g (alpha beta' + beta alpha') / 2 + h beta beta'); of c: g alpha + 2 h beta; of r: g beta.
            const V of_c = g * alpha[a] + 2 * (h * beta[a]), of_r = g * beta[a];
            const V of_noise = -beta[a] * (g * alpha[a] + h * beta[a]);
            scale_sum += of_noise;
            write_lanes(out.noise, a, of_noise);
            write_lanes(out.residual, a, of_r);
            if (out.cross) write_lanes(out.cross, a, -of_c);
            if (out.gram) write_gram(out.gram, a, a, -of_noise);
            auto visit = [&](Index b, V r2) {
                const V pair = -(of_c * beta[b] + of_r * alpha[b]);  // both triangles of C together
                if (out.gram) write_gram(out.gram, a, b, pair * T(-0.5));
                V slope_alpha{};
                const Value<T> value = profile.value_and_slope(r2, slope_alpha);
                scale_sum += pair * value.k;
                cotangent[b] = pair * scale * value.slope;
                if (Profile::has_alpha) alpha_sum += pair * scale * slope_alpha;
            };
            for_each_before(a, visit);
            V slope_alpha{};
            const Value<T> value = profile.value_and_slope(squared_norm(a), slope_alpha);
            scale_sum += of_c * value.k;
            const V of_question = of_c * scale * value.slope;
            if (Profile::has_alpha) alpha_sum += of_c * scale * slope_alpha;
            distance_gradients(a, of_question);
        }
        for (Index j = 0; j < p.d; ++j) out.square[j] += sum_lanes_double<T>(squares[j]);
        *out.scale += sum_lanes_double<T>(scale_sum);
        if (Profile::has_alpha) *out.alpha += sum_lanes_double<T>(alpha_sum);
        if (out.questions)
            for (int l = 0; l < count; ++l)
                for (Index j = 0; j < p.d; ++j)
                    out.questions[(first + l) * p.d + j] = question[j][l] * p.inverse_lengthscale[j];
    }

  private:
    using V = Vec<T>;
    static constexpr int kSimultaneous = 4;  // dot products that do not wait for each other

    const LocalProblem<T>& p;
    const Profile profile;
    const T scale;
    V *points, *A, *present, *inverse, *alpha, *beta, *cotangent, *border, *squares, *question;
    Index first = 0;
    int count = 0;

    V* row(Index a) { return A + a * p.k; }
    const V* row(Index a) const { return A + a * p.k; }

    void gather() {
        for (int l = 0; l < kLanes<T>; ++l) {  // lanes without a question repeat the last one
            const Index q = first + (l < count ? l : count - 1);
            const T* x = p.questions + q * p.d;
            for (Index a = 0; a < p.k; ++a) {
                const Index n = p.neighbours[q * p.k + a];
                const T* z = n >= 0 ? p.X + n * p.d : x;
                T* lane = reinterpret_cast<T*>(points + a * p.d) + l;
                for (Index j = 0; j < p.d; ++j) lane[j * kLanes<T>] = (z[j] - x[j]) * p.inverse_lengthscale[j];
            }
        }
    }

    void load_targets() {
        for (Index a = 0; a < p.k; ++a) {
            for (int l = 0; l < kLanes<T>; ++l) {
                const Index e = (first + (l < count ? l : count - 1)) * p.k + a;
                const bool there = p.neighbours[e] >= 0;
                present[a][l] = T(there);
                row(p.k + 1)[a][l] = there ? p.residual[e] : T(0);
                border[a][l] = there ? p.noise[e] : T(1);
            }
        }
    }

    V squared_norm(Index a) const {
        V r2{};
        for (Index j = 0; j < p.d; ++j) r2 += points[a * p.d + j] * points[a * p.d + j];
        return r2;
    }

    V squared_distance(Index a, Index b) const {
        V r2{};
        for (Index j = 0; j < p.d; ++j) {
            const V difference = points[a * p.d + j] - points[b * p.d + j];
            r2 += difference * difference;
        }
        return r2;
    }

    // Calls visit(b, squared distance of rows a and b) for b < a, several at a time.
    template <class Visit> void for_each_before(Index a, const Visit& visit) const {
        Index b = 0;
        for (; b + kSimultaneous <= a; b += kSimultaneous) {
            V r2[kSimultaneous] = {};
            for (Index j = 0; j < p.d; ++j) {
                const V x = points[a * p.d + j];
                for (int s = 0; s < kSimultaneous; ++s) {
                    const V difference = x - points[(b + s) * p.d + j];
                    r2[s] += difference * difference;
                }
            }
            for (int s = 0; s < kSimultaneous; ++s) visit(b + s, r2[s]);
        }
        for (; b < a; ++b) visit(b, squared_distance(a, b));
    }

    // Adds what the cotangents of row a with the rows before it, and with the question, say of squares and question.
    void distance_gradients(Index a, V of_question) {
        const V* x = points + a * p.d;
        for (Index j = 0; j < p.d; ++j) {
            V sum[2] = {of_question * x[j] * x[j], V{}};
            Index b = 0;
            for (; b + 2 <= a; b += 2)
                for (int s = 0; s < 2; ++s) {
                    const V difference = x[j] - points[(b + s) * p.d + j];
                    sum[s] += cotangent[b + s] * difference * difference;
                }
            if (b < a) {
                const V difference = x[j] - points[b * p.d + j];
                sum[0] += cotangent[b] * difference * difference;
            }
            squares[j] += sum[0] + sum[1];
            question[j] -= 2 * of_question * x[j];
        }
    }

    // Values of this panel's questions; zero in lanes without one.
    V read_lanes(const T* values, Index size, Index position) const {
        V v{};
        for (int l = 0; l < count; ++l) v[l] = values[(first + l) * size + position];
        return v;
    }

    void covariances() {
        V* c = row(p.k);
        for (Index a = 0; a < p.k; ++a) {
            V* entries = row(a);
            for_each_before(a, [&](Index b, V r2) { entries[b] = present[a] * present[b] * (profile.value(r2) * scale); });
            entries[a] = present[a] * scale + border[a];
            border[a] = entries[a];  // from here on: the prior variance, against which a pivot is measured
            c[a] = present[a] * (profile.value(squared_norm(a)) * scale);
            if (p.gram)
                for (Index e = 0; e <= a; ++e)
                    entries[e] -= present[a] * present[e] * read_lanes(p.gram, p.k * p.k, a * p.k + e);
            if (p.cross) c[a] -= present[a] * read_lanes(p.cross, p.k, a);
        }
    }

    // Two columns at a time: the entries below their pivots are dot products that do not wait for each other.
    void factorise() {
        Index j = 0;
        for (; j + 2 <= p.k; j += 2) {
            reduce<1, 1>(j, j);
            pivot(j);
            reduce<1, 1>(j + 1, j);  // the first column's entry in the second's row
            row(j + 1)[j] *= inverse[j];
            reduce<1, 1>(j + 1, j + 1);
            pivot(j + 1);
            Index i = j + 2;
            for (; i + kSimultaneous <= p.k + 2; i += kSimultaneous) two_columns<kSimultaneous>(i, j);
            for (; i < p.k + 2; ++i) two_columns<1>(i, j);
        }
        if (j < p.k) {
            reduce<1, 1>(j, j);
            pivot(j);
            for (Index i = j + 1; i < p.k + 2; ++i) {
                reduce<1, 1>(i, j);
                row(i)[j] *= inverse[j];
            }
        }
    }

    void pivot(Index j) {
        const V value = row(j)[j], one = splat<T>(T(1));
        const auto counts = value > border[j] * (256 * Precision<T>::epsilon);
        inverse[j] = counts ? one / sqrt(counts ? value : one) : V{};
    }

    template <int R> void two_columns(Index i, Index j) {
        reduce<R, 2>(i, j);
        const V between = row(j + 1)[j];
        for (int s = 0; s < R; ++s) {
            V* entries = row(i + s);
            entries[j] *= inverse[j];
            entries[j + 1] = (entries[j + 1] - entries[j] * between) * inverse[j + 1];
        }
    }

    // Rows [i, i + R) of columns [j, j + C) less their products with the columns before j (for a single column that is
    // the second of two: before itself).
    template <int R, int C> void reduce(Index i, Index j) {
        V sum[R][C];
        for (int s = 0; s < R; ++s)
            for (int c = 0; c < C; ++c) sum[s][c] = row(i + s)[j + c];
        for (Index e = 0; e < j; ++e) {
            V pivots[C];
            for (int c = 0; c < C; ++c) pivots[c] = row(j + c)[e];
            for (int s = 0; s < R; ++s) {
                const V v = row(i + s)[e];
                for (int c = 0; c < C; ++c) sum[s][c] -= v * pivots[c];
            }
        }
        for (int s = 0; s < R; ++s)
            for (int c = 0; c < C; ++c) row(i + s)[j + c] = sum[s][c];
    }

    // alpha = L^-T u = C^-1 r and beta = L^-T w = C^-1 c.
    void back_substitute() {
        for (Index a = 0; a < p.k; ++a) {
            alpha[a] = row(p.k + 1)[a];
            beta[a] = row(p.k)[a];
        }
        for (Index j = p.k; j-- > 0;) {
            alpha[j] *= inverse[j];
            beta[j] *= inverse[j];
            const V* entries = row(j);
            for (Index e = 0; e < j; ++e) {
                alpha[e] -= entries[e] * alpha[j];
                beta[e] -= entries[e] * beta[j];
            }
        }
    }

    void write_lanes(T* values, Index a, V v) const {
        for (int l = 0; l < count; ++l) values[(first + l) * p.k + a] = v[l];
    }
    void write_gram(T* values, Index a, Index b, V v) const {
        for (int l = 0; l < count; ++l)
            values[((first + l) * p.k + a) * p.k + b] = values[((first + l) * p.k + b) * p.k + a] = v[l];
    }
};

template <class T, class Profile> Index local_scratch(const LocalProblem<T>& p) { return LocalPanel<T, Profile>::bytes(p); }

template <class T, class Profile>
void local(const LocalProblem<T>& p, Range questions, T* mean, T* explained, const LocalSolutions<T>& solutions,
           void* memory) {
    LocalPanel<T, Profile> panel(p, memory);
    for (Index q = questions.begin; q < questions.end; q += kLanes<T>) {
        panel.solve(q, smaller(questions.end - q, kLanes<T>));
        panel.write(mean, explained);
        if (solutions.alpha) panel.write_solutions(solutions);
    }
}

template <class T, class Profile>
void local_gradient(const LocalProblem<T>& p, Range questions, const LocalSolutions<T>& solutions,
                    const LocalCotangents<T>& given, const LocalGradients<T>& gradients, void* memory) {
    LocalPanel<T, Profile> panel(p, memory);
    for (Index q = questions.begin; q < questions.end; q += kLanes<T>)
        panel.gradient(q, smaller(questions.end - q, kLanes<T>), solutions, given, gradients);
}

}  // namespace
}  // namespace CAGP_VARIANT
