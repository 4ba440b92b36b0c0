// The Python module: checks every array, cuts the rows into tasks, runs them in threads, adds up their partial sums.
//
// Wrong shapes, sizes and indices are a ValueError here, before any loop sees them; wrong dtypes are a TypeError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "far_blocks.h"
#include "sweeps.h"

namespace nb = nanobind;

namespace {

template <class T> using Array = nb::ndarray<T, nb::device::cpu>;
template <class T> using MaybeArray = std::optional<Array<T>>;
using Index = std::int64_t;

std::vector<const Variant*> runnable_variants() {
    std::vector<const Variant*> variants{cagp_variant_baseline()};
#ifdef CAGP_HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) variants.push_back(cagp_variant_avx2());
#endif
    return variants;
}

// The named instruction set, or the best one this machine runs.
const Variant& variant(const std::string& name) {
    static const std::vector<const Variant*> variants = runnable_variants();
    if (name.empty()) return *variants.back();
    for (const Variant* v : variants)
        if (name == v->name) return *v;
    throw std::invalid_argument("instruction set '" + name + "' is not one this machine runs");
}

template <class T> const Sweeps<T>& sweeps(const Variant& v, int kind) {
    if (kind < 0 || kind >= v.num_kernels)
        throw std::invalid_argument("kind is " + std::to_string(kind) + ", expected 0 to " +
                                    std::to_string(v.num_kernels - 1) + ": a place in kernels()");
    if constexpr (sizeof(T) == 4)
        return v.kernels[kind].f32;
    else
        return v.kernels[kind].f64;
}
template <class T> Index panel_rows(const Variant& v) { return sizeof(T) == 4 ? v.rows_float : v.rows_double; }
// Whole blocks that share a panel, at least one.
template <class T> Index panel_blocks(const Variant& v, const Blocks<T>& w) {
    const Index rows = w.offsets[w.count];
    return rows == 0 ? 1 : std::max<Index>(1, panel_rows<T>(v) * w.count / rows);
}

// ---- checks ----

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

template <class Sizes> std::string words(const Sizes& sizes) {
    std::string text;
    for (Index size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return "(" + text + (sizes.size() == 1 ? ",)" : ")");
}
template <class A> std::vector<Index> shape_of(const A& array) {
    std::vector<Index> shape;
    for (std::size_t axis = 0; axis < array.ndim(); ++axis) shape.push_back(Index(array.shape(axis)));
    return shape;
}

// The sizes of an array that other arrays have to agree with.
template <class A> std::vector<Index> sizes_of(const A& array, const char* name, std::size_t ndim) {
    const std::vector<Index> shape = shape_of(array);
    if (shape.size() != ndim)
        throw std::invalid_argument(std::string(name) + " has shape " + words(shape) + ", expected " +
                                    std::to_string(ndim) + " dimensions");
    return shape;
}

template <class A> void check_shape(const A& array, const char* name, std::initializer_list<Index> expected) {
    const std::vector<Index> shape = shape_of(array);
    if (!std::equal(shape.begin(), shape.end(), expected.begin(), expected.end()))
        throw std::invalid_argument(std::string(name) + " has shape " + words(shape) + ", expected " + words(expected));
}

// The data of a contiguous array of the given shape.
template <class A> auto* data_of(const A& array, const char* name, std::initializer_list<Index> expected) {
    check_shape(array, name, expected);
    Index step = 1;
    for (std::size_t axis = array.ndim(); axis-- > 0 && array.size() > 0;) {
        if (array.shape(axis) != 1 && array.stride(axis) != step)
            throw std::invalid_argument(std::string(name) + " is not contiguous; pass a contiguous copy");
        step *= Index(array.shape(axis));
    }
    return array.data();
}
// Null where there is none.
template <class A>
auto* data_of(const std::optional<A>& array, const char* name, std::initializer_list<Index> expected) {
    return array ? data_of(*array, name, expected) : nullptr;
}

void check_rows(const Index* rows, Index count, const char* name, Index least, Index n) {
    const Index* wrong = std::find_if(rows, rows + count, [=](Index row) { return row < least || row >= n; });
    if (wrong != rows + count)
        throw std::invalid_argument(std::string(name) + " has the value " + std::to_string(*wrong) + ", expected " +
                                    std::to_string(least) + " to " + std::to_string(n - 1) +
                                    (least < 0 ? ": rows of X, or -1 for none" : ": rows of X"));
}

// ---- tasks ----

// Threads that are joined whatever happens.
struct Pool {
    std::vector<std::thread> threads;
    ~Pool() { join(); }
    void join() {
        for (std::thread& t : threads)
            if (t.joinable()) t.join();
    }
};

// Runs task(0) ... task(count - 1) on up to `threads` threads. Each thread is handed its own scratch memory. An
// exception in a task, or a thread that cannot be started, ends all threads before it reaches the caller.
void run_tasks(Index count, int threads, Index scratch_bytes, const std::function<void(Index, void*)>& task) {
    if (threads < 1)
        throw std::invalid_argument("threads is " + std::to_string(threads) + ", expected a positive integer");
    std::atomic<Index> next{0};
    std::exception_ptr failure;
    std::atomic<bool> failed{false};
    auto work = [&] {
        try {
            std::unique_ptr<char[]> scratch(new char[scratch_bytes]);
            for (Index t; (t = next.fetch_add(1)) < count;) task(t, scratch.get());
        } catch (...) {
            if (!failed.exchange(true)) failure = std::current_exception();
            next = count;
        }
    };
    const Index wanted = std::min<Index>(threads, count);
    Pool pool;
    pool.threads.reserve(wanted);
    try {
        while (Index(pool.threads.size()) + 1 < wanted) pool.threads.emplace_back(work);
    } catch (const std::exception& error) {
        next = count;  // the threads that were started end after the task at hand
        throw std::runtime_error("could start only " + std::to_string(pool.threads.size() + 1) + " of " +
                                 std::to_string(wanted) + " threads (" + error.what() +
                                 "); use fewer, e.g. torch.set_num_threads(1)");
    }
    work();
    pool.join();
    if (failure) std::rethrow_exception(failure);
}

// A range of rows for each task, a whole number of panels each but for the last.
struct Tasks {
    Index rows, panels, count, panel;
    Tasks(Index n, Index panel_size, Index most)
        : rows(n), panels((n + panel_size - 1) / panel_size), count(std::max<Index>(1, std::min(most, panels))),
          panel(panel_size) {}
    Range operator[](Index t) const { return {begin(t), begin(t + 1)}; }

  private:
    Index begin(Index t) const { return std::min(rows, panels * t / count * panel); }
};

std::vector<std::int32_t> by_place(std::vector<float> points, const float* scale, Index n, Index d, int threads);

// Enough tasks to balance threads that do not run equally fast.
constexpr Index kForwardTasks = 256;
// Rows that a task of the dense matrix owns at least: each task transposes all of Z.
constexpr Index kMatrixRows = 8;
// Every gradient task keeps partial sums as long as Z: few enough that they stay small next to the data.
constexpr Index kGradientTasks = 32;
constexpr Index kPartialBytes = Index(1) << 26;

template <class T> Problem<T> problem(const Array<const T>& X, const Array<const T>& Z, double alpha) {
    const Index n = sizes_of(X, "X", 2)[0], d = X.shape(1), m = sizes_of(Z, "Z", 2)[0];
    return {data_of(X, "X", {n, d}), data_of(Z, "Z", {m, d}), n, m, d, alpha};
}

template <class T>
Blocks<T> blocks(const Problem<T>& p, const Array<const T>& values, const Array<const Index>& offsets) {
    const Index size = sizes_of(offsets, "offsets", 1)[0];
    require(size >= 2, "offsets must hold at least one block");
    const Index* o = data_of(offsets, "offsets", {size});
    require(o[0] == 0 && o[size - 1] == p.m, "offsets must run from 0 to the number of rows of Z");
    require(std::is_sorted(o, o + size), "offsets must not decrease");
    return {data_of(values, "values", {p.m}), o, size - 1, nullptr, T(0), nullptr};
}

template <class T>
void matrix(int kind, Array<const T> X, Array<const T> Z, double alpha, Array<T> out, int threads,
            const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    const Problem<T> p = problem<T>(X, Z, alpha);
    T* K = data_of(out, "out", {p.n, p.m});
    const Tasks tasks(p.n, kMatrixRows, kForwardTasks);
    nb::gil_scoped_release release;
    run_tasks(tasks.count, threads, s.scratch_bytes(p.d),
              [&](Index t, void* scratch) { s.matrix(p, tasks[t], K, scratch); });
}

// k(X, Z) W, or k(X, X) W with each pair of points visited once when Z is not given.
template <class T>
void block(int kind, Array<const T> X, MaybeArray<const T> Z, double alpha, Array<const T> values,
           Array<const Index> offsets, Array<T> out, int threads, const std::string& isa, double reach) {
    const Variant& v = variant(isa);
    const Sweeps<T>& s = sweeps<T>(v, kind);
    const Problem<T> p = problem<T>(X, Z ? *Z : X, alpha);
    Blocks<T> w = blocks(p, values, offsets);
    T* KW = data_of(out, "out", {p.n, w.count});
    const Tasks tasks =
        Z ? Tasks(p.n, panel_rows<T>(v), kForwardTasks) : Tasks(w.count, panel_blocks(v, w), kForwardTasks);
    nb::gil_scoped_release release;
    const FarBlocks<T> far(p, w, reach, Z.has_value(), [=](std::vector<float> points) {
        return by_place(std::move(points), std::vector<float>(p.d, 1.0f).data(), p.n, p.d, threads);
    });
    run_tasks(tasks.count, threads, s.scratch_bytes(p.d),
              [&](Index t, void* scratch) { (Z ? s.block : s.symmetric)(p, w, tasks[t], KW, scratch); });
}

// The partial sums of all tasks, added up in the order of the tasks.
template <class T> class PartialSums {
  public:
    PartialSums(Index tasks, const Problem<T>& p, bool values, bool X, bool Z)
        : d_(p.d), m_(p.m), square_(tasks * p.d), alpha_(tasks), values_(values ? tasks * p.m : 0),
          Z_(Z ? tasks * p.m * p.d : 0), tasks_(tasks), X_(X) {}

    Gradients<T> of_task(Index t, T* X) {
        return {square_.data() + t * d_, alpha_.data() + t, values_.empty() ? nullptr : values_.data() + t * m_,
                X_ ? X : nullptr, Z_.empty() ? nullptr : Z_.data() + t * m_ * d_};
    }
    void total(double* square, double* alpha, T* values, T* Z) const {
        add_up(square_, d_, square);
        add_up(alpha_, 1, alpha);
        if (values) add_up(values_, m_, values);
        if (Z) add_up(Z_, m_ * d_, Z);
    }

  private:
    template <class U> void add_up(const std::vector<U>& parts, Index size, U* out) const {
        for (Index e = 0; e < size; ++e) {
            double sum = 0;
            for (Index t = 0; t < tasks_; ++t) sum += double(parts[t * size + e]);
            out[e] = U(sum);
        }
    }
    Index d_, m_;
    std::vector<double> square_, alpha_;
    std::vector<T> values_, Z_;
    Index tasks_;
    bool X_;
};

template <class T> Index gradient_tasks(const Problem<T>& p, bool Z, int threads) {
    const Index bytes = std::max<Index>(1, p.m * Index(sizeof(T)) * (Z ? 1 + p.d : 1));
    return std::clamp<Index>(kPartialBytes / bytes, threads, std::max<Index>(threads, kGradientTasks));
}

// The results of a gradient: those of the kernel's parameters, and those of the inputs where they are wanted.
template <class T> struct GradientArrays {
    double *square, *alpha;  // (d), (1)
    T *X, *Z;                // (n, d), (m, d), or null
    GradientArrays(const Problem<T>& p, const Array<double>& square_, const Array<double>& alpha_,
                   const MaybeArray<T>& X_, const MaybeArray<T>& Z_)
        : square(data_of(square_, "grad_square", {p.d})), alpha(data_of(alpha_, "grad_alpha", {1})),
          X(data_of(X_, "grad_X", {p.n, p.d})), Z(data_of(Z_, "grad_Z", {p.m, p.d})) {}
};

template <class T>
void matrix_gradient(int kind, Array<const T> X, Array<const T> Z, double alpha, Array<const T> grad_out,
                     Array<double> grad_square, Array<double> grad_alpha, MaybeArray<T> grad_X, MaybeArray<T> grad_Z,
                     int threads, const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    const Problem<T> p = problem<T>(X, Z, alpha);
    const T* of_out = data_of(grad_out, "grad_out", {p.n, p.m});
    const GradientArrays<T> out(p, grad_square, grad_alpha, grad_X, grad_Z);
    const Tasks tasks(p.n, kMatrixRows, gradient_tasks(p, grad_Z.has_value(), threads));
    nb::gil_scoped_release release;
    PartialSums<T> parts(tasks.count, p, false, grad_X.has_value(), grad_Z.has_value());
    run_tasks(tasks.count, threads, s.scratch_bytes(p.d), [&](Index t, void* scratch) {
        s.matrix_gradient(p, tasks[t], of_out, parts.of_task(t, out.X), scratch);
    });
    parts.total(out.square, out.alpha, nullptr, out.Z);
}

// Without Z the gradient of the inputs is that of both sides together, in grad_Z.
template <class T>
void block_gradient(int kind, Array<const T> X, MaybeArray<const T> Z, double alpha, Array<const T> values,
                    Array<const Index> offsets, Array<const T> grad_out, Array<double> grad_square,
                    Array<double> grad_alpha, Array<T> grad_values, MaybeArray<T> grad_X, MaybeArray<T> grad_Z,
                    int threads, const std::string& isa, double reach) {
    const Variant& v = variant(isa);
    const Sweeps<T>& s = sweeps<T>(v, kind);
    const Problem<T> p = problem<T>(X, Z ? *Z : X, alpha);
    Blocks<T> w = blocks(p, values, offsets);
    const T* of_out = data_of(grad_out, "grad_out", {p.n, w.count});
    T* of_values = data_of(grad_values, "grad_values", {p.m});
    require(Z.has_value() || !grad_X.has_value(), "without Z the gradient of the inputs is grad_Z");
    const GradientArrays<T> out(p, grad_square, grad_alpha, grad_X, grad_Z);
    const Index most = gradient_tasks(p, grad_Z.has_value(), threads);
    const Tasks tasks = Z ? Tasks(p.n, panel_rows<T>(v), most) : Tasks(w.count, panel_blocks(v, w), most);
    nb::gil_scoped_release release;
    const FarBlocks<T> far(p, w, reach, Z.has_value(), [=](std::vector<float> points) {
        return by_place(std::move(points), std::vector<float>(p.d, 1.0f).data(), p.n, p.d, threads);
    });
    PartialSums<T> parts(tasks.count, p, true, grad_X.has_value(), grad_Z.has_value());
    run_tasks(tasks.count, threads, s.scratch_bytes(p.d), [&](Index t, void* scratch) {
        (Z ? s.block_gradient : s.symmetric_gradient)(p, w, tasks[t], of_out, parts.of_task(t, out.X), scratch);
    });
    parts.total(out.square, out.alpha, of_values, out.Z);
}

// The nearest rows do not depend on the kernel: every kernel's table has them.
template <class T>
void nearest(Array<const T> X, Array<const T> Z, MaybeArray<const Index> left_out, MaybeArray<const Index> before,
             Array<Index> rows, int threads, const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), 0);
    const Problem<T> p = problem<T>(X, Z, 1.0);
    const Index k = sizes_of(rows, "rows", 2)[1];
    require(k >= 1, "rows must have at least one column: k");
    const Nearest wanted{k, data_of(left_out, "left_out", {p.n}), data_of(before, "before", {p.n}),
                         data_of(rows, "rows", {p.n, k})};
    const Tasks tasks(p.n, 32, kForwardTasks);
    nb::gil_scoped_release release;
    run_tasks(tasks.count, threads, s.nearest_scratch_bytes(p.d, wanted.k),
              [&](Index t, void* scratch) { s.nearest(p, tasks[t], wanted, scratch); });
}

// The neighbours of test points among the rows of X; the test points themselves, and all values, are left to the
// caller.
template <class T>
ConditionalProblem<T> conditional_problem(const Array<const T>& X, const Array<const double>& inverse_lengthscale,
                                          const Array<const Index>& neighbours, double alpha, double outputscale) {
    ConditionalProblem<T> p{};
    const Index n = sizes_of(X, "X", 2)[0];
    p.d = X.shape(1), p.t = sizes_of(neighbours, "neighbours", 2)[0], p.k = neighbours.shape(1);
    p.X = data_of(X, "X", {n, p.d});
    p.inverse_lengthscale = data_of(inverse_lengthscale, "inverse_lengthscale", {p.d});
    p.neighbours = data_of(neighbours, "neighbours", {p.t, p.k});
    p.alpha = alpha, p.outputscale = outputscale;
    check_rows(p.neighbours, p.t * p.k, "neighbours", -1, n);
    return p;
}

// Test points that a task handles at least, to hide handing it out; a multiple of the lanes of every instruction set.
constexpr Index kTestPoints = 16;

template <class T>
void conditionals(int kind, Array<const T> points, Array<const T> X, Array<const double> inverse_lengthscale,
                  Array<const Index> neighbours, double alpha, double outputscale, Array<const double> noise,
                  MaybeArray<const double> residual, MaybeArray<const T> targets, MaybeArray<const double> gram,
                  MaybeArray<const double> cross, Array<double> mean, Array<double> explained, Array<double> misfit,
                  Array<double> rows, MaybeArray<double> solution_r, MaybeArray<double> solution_c,
                  MaybeArray<double> of_parameters, MaybeArray<double> of_points, int threads, const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    auto p = conditional_problem<T>(X, inverse_lengthscale, neighbours, alpha, outputscale);
    p.points = data_of(points, "points", {p.t, p.d});
    check_shape(noise, "noise", {p.t, p.k});  // of any strides, zero included: one value for all
    p.noise = {noise.data(), noise.stride(0), noise.stride(1)};
    require(residual.has_value() != targets.has_value(), "residual (of neighbours) and targets (of rows): one of both");
    p.residual = data_of(residual, "residual", {p.t, p.k}),
    p.targets = data_of(targets, "targets", {Index(X.shape(0))});
    p.gram = data_of(gram, "gram", {p.t, p.k, p.k}), p.cross = data_of(cross, "cross", {p.t, p.k});
    const Moments moments{data_of(mean, "mean", {p.t}), data_of(explained, "explained", {p.t}),
                          data_of(misfit, "misfit", {p.t}), data_of(rows, "rows", {p.t})};
    require(solution_r.has_value() == solution_c.has_value(), "solution_r and solution_c: both or none");
    require(solution_r || !of_parameters, "of_parameters needs solution_r and solution_c");
    require(of_parameters || !of_points, "of_points needs of_parameters");
    const MomentSlopes slopes{
        data_of(solution_r, "solution_r", {p.t, p.k}), data_of(solution_c, "solution_c", {p.t, p.k}),
        data_of(of_parameters, "of_parameters", {p.t, 2, p.d + 2}), data_of(of_points, "of_points", {p.t, 2, p.d})};
    const Tasks tasks(p.t, kTestPoints, kForwardTasks);
    nb::gil_scoped_release release;
    run_tasks(tasks.count, threads, s.conditionals_scratch_bytes(p),
              [&](Index t, void* scratch) { s.conditionals(p, tasks[t], moments, slopes, scratch); });
}

// Adds to sums; see Density. Tasks do not depend on the threads, and neither does the result.
template <class T>
void density(int kind, Array<const Index> test_rows, Array<const T> X, Array<const T> targets,
             Array<const double> inverse_lengthscale, Array<const Index> neighbours, double alpha, double outputscale,
             double noise, bool slopes, Array<double> sums, int threads, const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    auto p = conditional_problem<T>(X, inverse_lengthscale, neighbours, alpha, outputscale);
    const Index n = X.shape(0);
    p.test_rows = data_of(test_rows, "test_rows", {p.t}), p.targets = data_of(targets, "targets", {n});
    check_rows(p.test_rows, p.t, "test_rows", 0, n);
    p.noise = {&noise, 0, 0};
    const Index size = p.d + 4;
    double* out = data_of(sums, "sums", {size});
    const Tasks tasks(p.t, kTestPoints, kForwardTasks);
    nb::gil_scoped_release release;
    std::vector<double> parts(tasks.count * size);
    run_tasks(tasks.count, threads, s.conditionals_scratch_bytes(p),
              [&](Index t, void* scratch) { s.density(p, tasks[t], {parts.data() + t * size, slopes}, scratch); });
    for (Index t = 0; t < tasks.count; ++t)
        for (Index e = 0; e < size; ++e) out[e] += parts[t * size + e];
}

// Gradients of a function of mean and explained, whose own gradients in them are g and h. Those of noise, residual,
// cross and gram follow from a = C^-1 r and b = C^-1 c: -b (g a + h b), g b, -(g a + 2 h b), g (a b' + b a') / 2 + h b
// b'.
void conditionals_gradient(Array<const double> solution_r, Array<const double> solution_c,
                           Array<const double> grad_mean, Array<const double> grad_explained,
                           MaybeArray<const double> of_parameters, MaybeArray<const double> of_points,
                           MaybeArray<double> grad_parameters, MaybeArray<double> grad_points,
                           MaybeArray<double> grad_noise, MaybeArray<double> grad_residual,
                           MaybeArray<double> grad_gram, MaybeArray<double> grad_cross, int threads) {
    const Index t = sizes_of(solution_r, "solution_r", 2)[0], k = solution_r.shape(1);
    const double *alpha = data_of(solution_r, "solution_r", {t, k}), *beta = data_of(solution_c, "solution_c", {t, k});
    const double* of_mean = data_of(grad_mean, "grad_mean", {t});
    const double* of_explained = data_of(grad_explained, "grad_explained", {t});
    require(of_parameters.has_value() == grad_parameters.has_value(),
            "of_parameters and grad_parameters: both or none");
    require(of_points.has_value() == grad_points.has_value(), "of_points and grad_points: both or none");
    const Index size = grad_parameters ? sizes_of(*grad_parameters, "grad_parameters", 1)[0] : 0;
    const Index d = grad_points ? sizes_of(*grad_points, "grad_points", 2)[1] : 0;
    const double* slopes = data_of(of_parameters, "of_parameters", {t, 2, size});
    const double* point_slopes = data_of(of_points, "of_points", {t, 2, d});
    double* parameters = data_of(grad_parameters, "grad_parameters", {size});
    double *points = data_of(grad_points, "grad_points", {t, d}), *noise = data_of(grad_noise, "grad_noise", {t, k});
    double *residual = data_of(grad_residual, "grad_residual", {t, k}),
           *gram = data_of(grad_gram, "grad_gram", {t, k, k});
    double* cross = data_of(grad_cross, "grad_cross", {t, k});
    const Tasks tasks(t, kTestPoints, kForwardTasks);
    nb::gil_scoped_release release;
    for (Index q = 0; q < t; ++q)
        for (Index e = 0; e < size; ++e)
            parameters[e] += of_mean[q] * slopes[2 * q * size + e] + of_explained[q] * slopes[(2 * q + 1) * size + e];
    run_tasks(tasks.count, gram ? threads : 1, 0, [&](Index task, void*) {  // without gram too little for more threads
        for (Index q = tasks[task].begin; q < tasks[task].end; ++q) {
            const double g = of_mean[q], h = of_explained[q], *a = alpha + q * k, *b = beta + q * k;
            for (Index e = 0; points && e < d; ++e)
                points[q * d + e] = g * point_slopes[2 * q * d + e] + h * point_slopes[(2 * q + 1) * d + e];
            for (Index e = 0; noise && e < k; ++e) noise[q * k + e] = -b[e] * (g * a[e] + h * b[e]);
            for (Index e = 0; residual && e < k; ++e) residual[q * k + e] = g * b[e];
            for (Index e = 0; cross && e < k; ++e) cross[q * k + e] = -(g * a[e] + 2 * h * b[e]);
            for (Index i = 0; gram && i < k; ++i) {
                const double with_a = g * b[i] / 2, with_b = g * a[i] / 2 + h * b[i];
                for (Index e = 0; e < k; ++e) gram[(q * k + i) * k + e] = with_a * a[e] + with_b * b[e];
            }
        }
    });
}

// ---- the tree of tree.h ----

using Label = std::int32_t;

// Levels whose nodes are tasks of their own; each node of the last one is a task with all that lies below it.
constexpr int kTreeTopLevels = 8;
// Leaves below such a node, at least: 2 to this power.
constexpr int kTreeTaskLevels = 8;

Index tree_nodes(Index n) {
    require(n >= 0 && n < Index(1) << 31, "n must be a number of rows below 2^31");
    return (Index(2) << tree_levels(n)) - 1;
}

void build(const TreeBuild& tree, int threads) {
    std::iota(tree.rows, tree.rows + tree.n, Label(0));
    const Index scratch_bytes = tree_build_scratch(tree.d);
    const int top = std::clamp(tree.levels - kTreeTaskLevels, 0, kTreeTopLevels);
    for (int level = 0; level < top; ++level)
        run_tasks(Index(1) << level, threads, scratch_bytes,
                  [&](Index j, void* scratch) { tree_split(tree, level, j, scratch); });
    run_tasks(Index(1) << top, threads, scratch_bytes,
              [&](Index j, void* scratch) { tree_subtree(tree, top, j, scratch); });
}

// The sizes of a tree from those of its arrays.
template <class Built, class Points, class Rows, class Boxes, class Least>
Built tree_of(const Points& points, const Rows& rows, const char* rows_name, const Boxes& boxes, const Least& least) {
    Built tree{};
    tree.n = sizes_of(rows, rows_name, 1)[0];
    const Index nodes = tree_nodes(tree.n);
    tree.d = sizes_of(boxes, "boxes", 3)[2];
    tree.levels = tree_levels(tree.n);
    tree.points = data_of(points, "points", {tree.n * tree.d + kTreePadding});
    tree.boxes = data_of(boxes, "boxes", {nodes, 2, tree.d});
    tree.least = data_of(least, "least", {nodes});
    return tree;
}

// Takes the rows one after the other in `points`, and turns the arrays into a tree.
void tree_build(Array<float> points, Array<Label> rows, Array<float> boxes, Array<Label> least,
                Array<const float> scale, int threads) {
    TreeBuild tree = tree_of<TreeBuild>(points, rows, "rows", boxes, least);
    tree.rows = data_of(rows, "rows", {tree.n});
    tree.scale = data_of(scale, "scale", {tree.d});
    nb::gil_scoped_release release;
    require(std::all_of(tree.points, tree.points + tree.n * tree.d, [](float x) { return std::isfinite(x); }),
            "points must be finite: a row that is not has no place in a tree");
    build(tree, threads);
}

// The least label in every node, for labels in the order of the slots.
void tree_minima(Array<const Label> labels, Array<Label> least, int threads) {
    const Index n = sizes_of(labels, "labels", 1)[0];
    const Label* of_slots = data_of(labels, "labels", {n});
    Label* of_nodes = data_of(least, "least", {tree_nodes(n)});
    const int levels = tree_levels(n);
    nb::gil_scoped_release release;
    for (int level = levels; level >= 0; --level) {
        const Tasks tasks(Index(1) << level, 4096, kForwardTasks);
        run_tasks(tasks.count, threads, 0, [&](Index t, void*) {
            tree_least(of_slots, n, levels, level, tasks[t].begin, tasks[t].end, of_nodes);
        });
    }
}

// Points by place, so that those that follow each other are near each other: in the order of a tree of their own.
std::vector<Label> by_place(std::vector<float> points, const float* scale, Index n, Index d, int threads) {
    points.resize(n * d + kTreePadding);
    std::vector<Label> rows(n), least(tree_nodes(n));
    std::vector<float> boxes(least.size() * 2 * d);
    build({points.data(), rows.data(), boxes.data(), least.data(), scale, n, d, tree_levels(n)}, threads);
    return rows;
}

// Test points that a task answers, at least.
constexpr Index kSearchPoints = 32;

void tree_nearest(Array<const float> points, Array<const Label> labels, Array<const float> boxes,
                  Array<const Label> least, Array<const float> scale, Array<const float> test_points,
                  MaybeArray<const Index> left_out, MaybeArray<const Index> before, Array<Index> found,
                  MaybeArray<Index> visited, int threads, const std::string& isa) {
    const Variant& v = variant(isa);
    Tree tree = tree_of<Tree>(points, labels, "labels", boxes, least);
    tree.labels = data_of(labels, "labels", {tree.n});
    const Index t = sizes_of(found, "found", 2)[0], k = found.shape(1);
    require(k >= 1, "found must have at least one column: k");
    tree_nodes(t);
    TreeSearch wanted{data_of(scale, "scale", {tree.d}),
                      data_of(test_points, "test_points", {t, tree.d}),
                      nullptr,
                      data_of(left_out, "left_out", {t}),
                      data_of(before, "before", {t}),
                      k,
                      data_of(found, "found", {t, k}),
                      data_of(visited, "visited", {t})};
    const Tasks tasks(t, kSearchPoints, kForwardTasks);
    nb::gil_scoped_release release;
    std::vector<float> places(wanted.points, wanted.points + t * tree.d);
    for (float& x : places)
        if (!std::isfinite(x)) x = 0;
    const std::vector<Label> order = by_place(std::move(places), wanted.scale, t, tree.d, threads);
    wanted.order = order.data();
    run_tasks(tasks.count, threads, v.tree_search_scratch(k),
              [&](Index task, void* scratch) { v.tree_search(tree, wanted, tasks[task], scratch); });
}

template <class T> void define(nb::module_& m) {
    using namespace nb::literals;
    // Arrays are never converted: a converted copy of an output would swallow the result.
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    const auto maybe = [](const char* name) { return nb::arg(name).noconvert().none(); };
    m.def("matrix", &matrix<T>, "kind"_a, array("X"), array("Z"), "alpha"_a, array("out"), "threads"_a, "isa"_a = "");
    m.def("matrix_gradient", &matrix_gradient<T>, "kind"_a, array("X"), array("Z"), "alpha"_a, array("grad_out"),
          array("grad_square"), array("grad_alpha"), maybe("grad_X"), maybe("grad_Z"), "threads"_a, "isa"_a = "");
    m.def("block", &block<T>, "kind"_a, array("X"), maybe("Z"), "alpha"_a, array("values"), array("offsets"),
          array("out"), "threads"_a, "isa"_a = "", "reach"_a = std::numeric_limits<double>::infinity());
    m.def("block_gradient", &block_gradient<T>, "kind"_a, array("X"), maybe("Z"), "alpha"_a, array("values"),
          array("offsets"), array("grad_out"), array("grad_square"), array("grad_alpha"), array("grad_values"),
          maybe("grad_X"), maybe("grad_Z"), "threads"_a, "isa"_a = "",
          "reach"_a = std::numeric_limits<double>::infinity());
    m.def("nearest", &nearest<T>, array("X"), array("Z"), maybe("left_out"), maybe("before"), array("rows"),
          "threads"_a, "isa"_a = "");
    m.def("conditionals", &conditionals<T>, "kind"_a, array("points"), array("X"), array("inverse_lengthscale"),
          array("neighbours"), "alpha"_a, "outputscale"_a, array("noise"), maybe("residual"), maybe("targets"),
          maybe("gram"), maybe("cross"), array("mean"), array("explained"), array("misfit"), array("rows"),
          maybe("solution_r"), maybe("solution_c"), maybe("of_parameters"), maybe("of_points"), "threads"_a,
          "isa"_a = "");
    m.def("density", &density<T>, "kind"_a, array("test_rows"), array("X"), array("targets"),
          array("inverse_lengthscale"), array("neighbours"), "alpha"_a, "outputscale"_a, "noise"_a, "slopes"_a,
          array("sums"), "threads"_a, "isa"_a = "");
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Variant* v : runnable_variants()) names.push_back(v->name);
    return names;
}

std::vector<std::pair<std::string, bool>> kernels() {
    std::vector<std::pair<std::string, bool>> list;
    const Variant& v = variant("");
    for (int kind = 0; kind < v.num_kernels; ++kind) list.emplace_back(v.kernels[kind].name, v.kernels[kind].has_alpha);
    return list;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled products with stationary kernels; called through cagp.engine.";
    m.attr("sanitizer") = CAGP_SANITIZER;
    m.def("instruction_sets", &instruction_sets,
          "The instruction sets this build has and this machine runs, best last.");
    m.def("kernels", &kernels,
          "The compiled kernels, each a name and whether it has a parameter alpha; kinds are places in it.");
    using namespace nb::literals;
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    const auto maybe = [](const char* name) { return nb::arg(name).noconvert().none(); };
    m.attr("tree_padding") = kTreePadding;
    m.def("tree_nodes", &tree_nodes, "n"_a, "The number of nodes of a tree over n rows.");
    m.def("tree_build", &tree_build, array("points"), array("rows"), array("boxes"), array("least"), array("scale"),
          "threads"_a);
    m.def("tree_minima", &tree_minima, array("labels"), array("least"), "threads"_a);
    m.def("tree_nearest", &tree_nearest, array("points"), array("labels"), array("boxes"), array("least"),
          array("scale"), array("test_points"), maybe("left_out"), maybe("before"), array("found"), maybe("visited"),
          "threads"_a, "isa"_a = "");
    m.def("conditionals_gradient", &conditionals_gradient, array("solution_r"), array("solution_c"), array("grad_mean"),
          array("grad_explained"), maybe("of_parameters"), maybe("of_points"), maybe("grad_parameters"),
          maybe("grad_points"), maybe("grad_noise"), maybe("grad_residual"), maybe("grad_gram"), maybe("grad_cross"),
          "threads"_a);
    define<float>(m);
    define<double>(m);
}
