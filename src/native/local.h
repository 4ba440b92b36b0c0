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

    // After solve(): gradients, given those of mean and explained.
    void gradient(const LocalCotangents<T>& given, const LocalGradients<T>& out) {
        V g{}, h{};
        for (int l = 0; l < count; ++l) {
            g[l] = given.mean[first + l];
            h[l] = given.explained[first + l];
        }
        back_substitute();
        V scale_sum{}, alpha_sum{};
        for (Index j = 0; j < p.d; ++j) squares[j] = question[j] = V{};
        for (Index a = 0; a < p.k; ++a) {
            // Of C: -(g (alpha beta' + beta alpha') / 2 + h beta beta'); of c: g alpha + 2 h beta; of r: g beta.
            const V of_c = g * alpha[a] + 2 * (h * beta[a]), of_noise = -beta[a] * (g * alpha[a] + h * beta[a]);
            const V ga = g * alpha[a] + 2 * (h * beta[a]), gb = g * beta[a];
            scale_sum += of_noise;
            write_lanes(out.noise, a, of_noise);
            write_lanes(out.residual, a, gb);
            if (out.cross) write_lanes(out.cross, a, -of_c);
            if (out.gram) write_gram(out.gram, a, a, -of_noise);
            for (Index b = 0; b < a; ++b) {
                const V pair = -(ga * beta[b] + gb * alpha[b]);  // both triangles of C together
                if (out.gram) write_gram(out.gram, a, b, pair * T(-0.5));
                V slope_alpha{};
                const Value<T> value = profile.value_and_slope(squared_distance(a, b), slope_alpha);
                scale_sum += pair * value.k;
                cotangent[b] = pair * scale * value.slope;
                if (Profile::has_alpha) alpha_sum += pair * scale * slope_alpha;
            }
            V slope_alpha{};
            const Value<T> value = profile.value_and_slope(squared_norm(a), slope_alpha);
            scale_sum += of_c * value.k;
            const V of_question = of_c * scale * value.slope;
            if (Profile::has_alpha) alpha_sum += of_c * scale * slope_alpha;
            const V* x = points + a * p.d;
            for (Index j = 0; j < p.d; ++j) {
                V sum = of_question * x[j] * x[j];
                for (Index b = 0; b < a; ++b) {
                    const V difference = x[j] - points[b * p.d + j];
                    sum += cotangent[b] * difference * difference;
                }
                squares[j] += sum;
                question[j] -= 2 * of_question * x[j];
            }
        }
        for (Index j = 0; j < p.d; ++j) out.square[j] += sum_lanes_double<T>(squares[j]);
        *out.scale += sum_lanes_double<T>(scale_sum);
        if (Profile::has_alpha) *out.alpha += sum_lanes_double<T>(alpha_sum);
        if (out.questions)
            for (int l = 0; l < count; ++l)
                for (Index j = 0; j < p.d; ++j) out.questions[(first + l) * p.d + j] = question[j][l] * p.inverse_lengthscale[j];
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
                present[a][l] = T(n >= 0);
                row(p.k + 1)[a][l] = n >= 0 ? p.residual[q * p.k + a] : T(0);
                border[a][l] = n >= 0 ? p.noise[q * p.k + a] : T(1);
                const T* z = n >= 0 ? p.X + n * p.d : x;
                for (Index j = 0; j < p.d; ++j) points[a * p.d + j][l] = (z[j] - x[j]) * p.inverse_lengthscale[j];
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

    V correction(const T* values, Index size, Index position) const {
        V v{};
        for (int l = 0; l < count; ++l) v[l] = values[(first + l) * size + position];
        return v;
    }

    void covariances() {
        V *c = row(p.k);
        for (Index a = 0; a < p.k; ++a) {
            V* entries = row(a);
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
                for (int s = 0; s < kSimultaneous; ++s)
                    entries[b + s] = present[a] * present[b + s] * (profile.value(r2[s]) * scale);
            }
            for (; b < a; ++b) entries[b] = present[a] * present[b] * (profile.value(squared_distance(a, b)) * scale);
            entries[a] = present[a] * scale + border[a];
            border[a] = entries[a];  // from here on: the prior variance, against which a pivot is measured
            c[a] = present[a] * (profile.value(squared_norm(a)) * scale);
            if (p.gram)
                for (Index e = 0; e <= a; ++e) entries[e] -= present[a] * present[e] * correction(p.gram, p.k * p.k, a * p.k + e);
            if (p.cross) c[a] -= present[a] * correction(p.cross, p.k, a);
        }
    }

    // Column by column: the entries below a pivot are dot products that do not wait for each other.
    void factorise() {
        for (Index j = 0; j < p.k; ++j) {
            const V* pivot_row = row(j);
            V pivot = pivot_row[j];
            for (Index e = 0; e < j; ++e) pivot -= pivot_row[e] * pivot_row[e];
            const V one = splat<T>(T(1));
            const auto counts = pivot > border[j] * (256 * Precision<T>::epsilon);
            inverse[j] = counts ? one / sqrt(counts ? pivot : one) : V{};
            Index i = j + 1;
            for (; i + kSimultaneous <= p.k + 2; i += kSimultaneous) columns<kSimultaneous>(i, j);
            for (; i < p.k + 2; ++i) columns<1>(i, j);
        }
    }

    template <int C> void columns(Index i, Index j) {
        const V* pivot_row = row(j);
        V sum[C];
        for (int s = 0; s < C; ++s) sum[s] = row(i + s)[j];
        for (Index e = 0; e < j; ++e) {
            const V v = pivot_row[e];
            for (int s = 0; s < C; ++s) sum[s] -= row(i + s)[e] * v;
        }
        for (int s = 0; s < C; ++s) row(i + s)[j] = sum[s] * inverse[j];
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
void local(const LocalProblem<T>& p, Range questions, T* mean, T* explained, void* memory) {
    LocalPanel<T, Profile> panel(p, memory);
    for (Index q = questions.begin; q < questions.end; q += kLanes<T>) {
        panel.solve(q, smaller(questions.end - q, kLanes<T>));
        panel.write(mean, explained);
    }
}

template <class T, class Profile>
void local_gradient(const LocalProblem<T>& p, Range questions, const LocalCotangents<T>& given,
                    const LocalGradients<T>& gradients, void* memory) {
    LocalPanel<T, Profile> panel(p, memory);
    for (Index q = questions.begin; q < questions.end; q += kLanes<T>) {
        panel.solve(q, smaller(questions.end - q, kLanes<T>));
        panel.gradient(given, gradients);
    }
}

}  // namespace
}  // namespace CAGP_VARIANT
