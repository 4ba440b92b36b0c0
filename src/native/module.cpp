// The Python module: checks shapes, cuts the rows into tasks, runs them in threads, adds up their partial sums.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sweeps.h"

namespace nb = nanobind;

namespace {

template <class T> using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T> using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
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
    if (kind < 0 || kind >= kNumKinds) throw std::invalid_argument("unknown kernel kind");
    if constexpr (sizeof(T) == 4)
        return v.f32[kind];
    else
        return v.f64[kind];
}
template <class T> Index panel_rows(const Variant& v) { return sizeof(T) == 4 ? v.rows_float : v.rows_double; }
// Whole blocks that share a panel, at least one.
template <class T> Index panel_blocks(const Variant& v, const Blocks<T>& w) {
    return std::max<Index>(1, panel_rows<T>(v) * w.count / w.offsets[w.count]);
}

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

// Runs task(0) ... task(count - 1) on up to `threads` threads. Each thread is handed its own scratch memory.
void run_tasks(Index count, int threads, Index scratch_bytes, const std::function<void(Index, void*)>& task) {
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
    std::vector<std::thread> pool;
    for (Index t = 1; t < std::min<Index>(threads, count); ++t) pool.emplace_back(work);
    work();
    for (std::thread& t : pool) t.join();
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

// Enough tasks to balance threads that do not run equally fast.
constexpr Index kForwardTasks = 256;
// Rows that a task of the dense matrix owns at least: each task transposes all of Z.
constexpr Index kMatrixRows = 8;
// Every gradient task keeps partial sums as long as Z: few enough that they stay small next to the data.
constexpr Index kGradientTasks = 32;
constexpr Index kPartialBytes = Index(1) << 26;

template <class T> Problem<T> problem(const Matrix<const T>& X, const Matrix<const T>& Z, double alpha) {
    require(X.shape(1) == Z.shape(1), "X and Z must have equally many columns");
    return {X.data(), Z.data(), Index(X.shape(0)), Index(Z.shape(0)), Index(X.shape(1)), alpha};
}

template <class T>
Blocks<T> blocks(const Problem<T>& p, const Array<const T>& values, const Array<const Index>& offsets) {
    require(Index(values.shape(0)) == p.m, "values must have one entry per row of Z");
    require(offsets.shape(0) >= 2, "offsets must hold at least one block");
    const Index* o = offsets.data();
    require(o[0] == 0 && o[offsets.shape(0) - 1] == p.m, "offsets must run from 0 to the number of rows of Z");
    require(std::is_sorted(o, o + offsets.shape(0)), "offsets must not decrease");
    return {values.data(), o, Index(offsets.shape(0)) - 1};
}

template <class T>
void matrix(int kind, Matrix<const T> X, Matrix<const T> Z, double alpha, Matrix<T> out, int threads,
            const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    const Problem<T> p = problem<T>(X, Z, alpha);
    require(Index(out.shape(0)) == p.n && Index(out.shape(1)) == p.m, "out must be (n, m)");
    const Tasks tasks(p.n, kMatrixRows, kForwardTasks);
    nb::gil_scoped_release release;
    run_tasks(tasks.count, threads, s.scratch_bytes(p.d),
              [&](Index t, void* scratch) { s.matrix(p, tasks[t], out.data(), scratch); });
}

// k(X, Z) W, or k(X, X) W with each pair of points visited once when Z is not given.
template <class T>
void block(int kind, Matrix<const T> X, std::optional<Matrix<const T>> Z, double alpha, Array<const T> values,
           Array<const Index> offsets, Matrix<T> out, int threads, const std::string& isa) {
    const Variant& v = variant(isa);
    const Sweeps<T>& s = sweeps<T>(v, kind);
    const Problem<T> p = problem<T>(X, Z ? *Z : X, alpha);
    const Blocks<T> w = blocks(p, values, offsets);
    require(Index(out.shape(0)) == p.n && Index(out.shape(1)) == w.count, "out must be (n, i)");
    const Tasks tasks = Z ? Tasks(p.n, panel_rows<T>(v), kForwardTasks) : Tasks(w.count, panel_blocks(v, w), kForwardTasks);
    nb::gil_scoped_release release;
    run_tasks(tasks.count, threads, s.scratch_bytes(p.d), [&](Index t, void* scratch) {
        (Z ? s.block : s.symmetric)(p, w, tasks[t], out.data(), scratch);
    });
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
    const Index bytes = p.m * Index(sizeof(T)) * (Z ? 1 + p.d : 1);
    return std::clamp<Index>(kPartialBytes / bytes, threads, std::max<Index>(threads, kGradientTasks));
}

template <class T>
void matrix_gradient(int kind, Matrix<const T> X, Matrix<const T> Z, double alpha, Matrix<const T> grad_out,
                     Array<double> grad_square, Array<double> grad_alpha, std::optional<Matrix<T>> grad_X,
                     std::optional<Matrix<T>> grad_Z, int threads, const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    const Problem<T> p = problem<T>(X, Z, alpha);
    require(Index(grad_out.shape(0)) == p.n && Index(grad_out.shape(1)) == p.m, "grad_out must be (n, m)");
    const Tasks tasks(p.n, kMatrixRows, gradient_tasks(p, grad_Z.has_value(), threads));
    nb::gil_scoped_release release;
    PartialSums<T> parts(tasks.count, p, false, grad_X.has_value(), grad_Z.has_value());
    T* gX = grad_X ? grad_X->data() : nullptr;
    run_tasks(tasks.count, threads, s.scratch_bytes(p.d), [&](Index t, void* scratch) {
        s.matrix_gradient(p, tasks[t], grad_out.data(), parts.of_task(t, gX), scratch);
    });
    parts.total(grad_square.data(), grad_alpha.data(), nullptr, grad_Z ? grad_Z->data() : nullptr);
}

// Without Z the gradient of the inputs is that of both sides together, in grad_Z.
template <class T>
void block_gradient(int kind, Matrix<const T> X, std::optional<Matrix<const T>> Z, double alpha, Array<const T> values,
                    Array<const Index> offsets, Matrix<const T> grad_out, Array<double> grad_square,
                    Array<double> grad_alpha, Array<T> grad_values, std::optional<Matrix<T>> grad_X,
                    std::optional<Matrix<T>> grad_Z, int threads, const std::string& isa) {
    const Variant& v = variant(isa);
    const Sweeps<T>& s = sweeps<T>(v, kind);
    const Problem<T> p = problem<T>(X, Z ? *Z : X, alpha);
    const Blocks<T> w = blocks(p, values, offsets);
    require(Index(grad_out.shape(0)) == p.n && Index(grad_out.shape(1)) == w.count, "grad_out must be (n, i)");
    require(Z.has_value() || !grad_X.has_value(), "without Z the inputs' gradient is grad_Z");
    const Index most = gradient_tasks(p, grad_Z.has_value(), threads);
    const Tasks tasks = Z ? Tasks(p.n, panel_rows<T>(v), most) : Tasks(w.count, panel_blocks(v, w), most);
    nb::gil_scoped_release release;
    PartialSums<T> parts(tasks.count, p, true, grad_X.has_value(), grad_Z.has_value());
    T* gX = grad_X ? grad_X->data() : nullptr;
    run_tasks(tasks.count, threads, s.scratch_bytes(p.d), [&](Index t, void* scratch) {
        (Z ? s.block_gradient : s.symmetric_gradient)(p, w, tasks[t], grad_out.data(), parts.of_task(t, gX), scratch);
    });
    parts.total(grad_square.data(), grad_alpha.data(), grad_values.data(), grad_Z ? grad_Z->data() : nullptr);
}

// The nearest rows do not depend on the kernel: any kind's table has them.
template <class T>
void nearest(Matrix<const T> X, Matrix<const T> Z, std::optional<Array<const Index>> left_out,
             std::optional<Array<const Index>> before, Matrix<Index> rows, int threads, const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), 0);
    const Problem<T> p = problem<T>(X, Z, 1.0);
    require(Index(rows.shape(0)) == p.n && rows.shape(1) >= 1, "rows must be (n, k)");
    require(!left_out || Index(left_out->shape(0)) == p.n, "left_out must be (n,)");
    require(!before || Index(before->shape(0)) == p.n, "before must be (n,)");
    const Nearest wanted{Index(rows.shape(1)), left_out ? left_out->data() : nullptr, before ? before->data() : nullptr,
                         rows.data()};
    const Tasks tasks(p.n, 32, kForwardTasks);
    nb::gil_scoped_release release;
    run_tasks(tasks.count, threads, s.nearest_scratch_bytes(p.d, wanted.k),
              [&](Index t, void* scratch) { s.nearest(p, tasks[t], wanted, scratch); });
}

template <class T> using Cube = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
template <class T> using StridedMatrix = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;
template <class T> using AnyArray = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

void require_rows(const Index* rows, Index count, Index least, Index n, const char* message) {
    require(std::all_of(rows, rows + count, [=](Index row) { return row >= least && row < n; }), message);
}

// Questions' neighbours among the rows of X; the questions themselves, and all values, are left to the caller.
template <class T>
LocalProblem<T> local_problem(const Matrix<const T>& X, const Array<const T>& inverse_lengthscale,
                              const Matrix<const Index>& neighbours, double alpha, double outputscale) {
    LocalProblem<T> p{};
    p.X = X.data(), p.inverse_lengthscale = inverse_lengthscale.data(), p.neighbours = neighbours.data();
    p.t = neighbours.shape(0), p.k = neighbours.shape(1), p.d = X.shape(1);
    p.alpha = alpha, p.outputscale = outputscale;
    require(Index(inverse_lengthscale.shape(0)) == p.d, "columns must agree");
    require_rows(p.neighbours, p.t * p.k, -1, X.shape(0), "neighbours must be rows of X, or -1");
    return p;
}

// The data of an array of the given shape; null where there is none.
template <class A, class... Sizes> auto* data_of(const A& array, Sizes... sizes) {
    std::size_t place = 0;
    require(((array.shape(place++) == std::size_t(sizes)) && ...), "arrays of questions, neighbours and slopes must agree");
    return array.data();
}
template <class A, class... Sizes> auto* data_of(const std::optional<A>& array, Sizes... sizes) {
    return array ? data_of(*array, sizes...) : nullptr;
}

// Questions that a task answers at least, to hide handing it out; a multiple of the lanes of every instruction set.
constexpr Index kLocalQuestions = 16;

template <class T>
void local(int kind, Matrix<const T> questions, Matrix<const T> X, Array<const T> inverse_lengthscale,
           Matrix<const Index> neighbours, double alpha, double outputscale, StridedMatrix<const T> noise,
           AnyArray<const T> residual, std::optional<Cube<const T>> gram, std::optional<Matrix<const T>> cross,
           Array<T> mean, Array<T> explained, Array<T> misfit, Array<T> rows, std::optional<Matrix<T>> solution_r,
           std::optional<Matrix<T>> solution_c, std::optional<Cube<T>> of_parameters,
           std::optional<Cube<T>> of_questions, int threads, const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    auto p = local_problem<T>(X, inverse_lengthscale, neighbours, alpha, outputscale);
    p.questions = data_of(questions, p.t, p.d);
    p.noise = {data_of(noise, p.t, p.k), noise.stride(0), noise.stride(1)};
    if (residual.ndim() == 1) {  // of the rows of X
        p.targets = data_of(residual, X.shape(0));
    } else {
        require(residual.ndim() == 2, "residual must have one or two dimensions");
        p.residual = data_of(residual, p.t, p.k);
    }
    p.gram = data_of(gram, p.t, p.k, p.k), p.cross = data_of(cross, p.t, p.k);
    const LocalResults<T> results{data_of(mean, p.t), data_of(explained, p.t), data_of(misfit, p.t), data_of(rows, p.t)};
    require(solution_r.has_value() == solution_c.has_value(), "both solutions or none");
    require(solution_r || !of_parameters, "slopes come with the solutions");
    require(of_parameters || !of_questions, "slopes of questions come with those of parameters");
    const LocalGradients<T> gradients{data_of(solution_r, p.t, p.k), data_of(solution_c, p.t, p.k),
                                      data_of(of_parameters, p.t, 2, p.d + 2), data_of(of_questions, p.t, 2, p.d)};
    const Tasks tasks(p.t, kLocalQuestions, kForwardTasks);
    nb::gil_scoped_release release;
    run_tasks(tasks.count, threads, s.local_scratch_bytes(p),
              [&](Index t, void* scratch) { s.local(p, tasks[t], results, gradients, scratch); });
}

// Adds to sums; see LocalDensity. Tasks do not depend on the threads, and neither does the result.
template <class T>
void local_density(int kind, Array<const Index> asked, Matrix<const T> X, Array<const T> targets,
                   Array<const T> inverse_lengthscale, Matrix<const Index> neighbours, double alpha, double outputscale,
                   double noise, bool slopes, Array<double> sums, int threads, const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    auto p = local_problem<T>(X, inverse_lengthscale, neighbours, alpha, outputscale);
    p.asked = data_of(asked, p.t), p.targets = data_of(targets, X.shape(0));
    require_rows(p.asked, p.t, 0, X.shape(0), "questions must be rows of X");
    const T noise_of_all = T(noise);
    p.noise = {&noise_of_all, 0, 0};
    const Index size = p.d + 4;
    double* out = data_of(sums, size);
    const Tasks tasks(p.t, kLocalQuestions, kForwardTasks);
    nb::gil_scoped_release release;
    std::vector<double> parts(tasks.count * size);
    run_tasks(tasks.count, threads, s.local_scratch_bytes(p), [&](Index t, void* scratch) {
        s.local_density(p, tasks[t], {parts.data() + t * size, slopes}, scratch);
    });
    for (Index t = 0; t < tasks.count; ++t)
        for (Index e = 0; e < size; ++e) out[e] += parts[t * size + e];
}

// Gradients of a function of mean and explained, whose own gradients in them are g and h. Of noise, residual, cross and
// gram they follow from a = C^-1 r and b = C^-1 c: -b (g a + h b), g b, -(g a + 2 h b), g (a b' + b a') / 2 + h b b'.
template <class T>
void local_gradient(Matrix<const T> solution_r, Matrix<const T> solution_c, Array<const T> grad_mean,
                    Array<const T> grad_explained, std::optional<Cube<const T>> of_parameters,
                    std::optional<Cube<const T>> of_questions, std::optional<Array<double>> grad_parameters,
                    std::optional<Matrix<T>> grad_questions, std::optional<Matrix<T>> grad_noise,
                    std::optional<Matrix<T>> grad_residual, std::optional<Cube<T>> grad_gram,
                    std::optional<Matrix<T>> grad_cross, int threads) {
    const Index t = solution_r.shape(0), k = solution_r.shape(1);
    const T *alpha = solution_r.data(), *beta = data_of(solution_c, t, k);
    const T *of_mean = data_of(grad_mean, t), *of_explained = data_of(grad_explained, t);
    const Index size = grad_parameters ? grad_parameters->shape(0) : 0, d = grad_questions ? grad_questions->shape(1) : 0;
    require(of_parameters.has_value() == grad_parameters.has_value(), "slopes of parameters are for their gradients");
    require(of_questions.has_value() == grad_questions.has_value(), "slopes of questions are for their gradients");
    const T *slopes = data_of(of_parameters, t, 2, size), *question_slopes = data_of(of_questions, t, 2, d);
    double* parameters = data_of(grad_parameters, size);
    T *questions = data_of(grad_questions, t, d), *noise = data_of(grad_noise, t, k);
    T *residual = data_of(grad_residual, t, k), *gram = data_of(grad_gram, t, k, k), *cross = data_of(grad_cross, t, k);
    const Tasks tasks(t, kLocalQuestions, kForwardTasks);
    nb::gil_scoped_release release;
    for (Index q = 0; q < t; ++q)
        for (Index e = 0; e < size; ++e)
            parameters[e] += double(of_mean[q]) * double(slopes[2 * q * size + e]) +
                             double(of_explained[q]) * double(slopes[(2 * q + 1) * size + e]);
    run_tasks(tasks.count, gram ? threads : 1, 0, [&](Index task, void*) {  // without gram too little for more threads
        for (Index q = tasks[task].begin; q < tasks[task].end; ++q) {
            const T g = of_mean[q], h = of_explained[q], *a = alpha + q * k, *b = beta + q * k;
            for (Index e = 0; questions && e < d; ++e)
                questions[q * d + e] = g * question_slopes[2 * q * d + e] + h * question_slopes[(2 * q + 1) * d + e];
            for (Index e = 0; noise && e < k; ++e) noise[q * k + e] = -b[e] * (g * a[e] + h * b[e]);
            for (Index e = 0; residual && e < k; ++e) residual[q * k + e] = g * b[e];
            for (Index e = 0; cross && e < k; ++e) cross[q * k + e] = -(g * a[e] + 2 * h * b[e]);
            for (Index i = 0; gram && i < k; ++i) {
                const T with_a = g * b[i] / 2, with_b = g * a[i] / 2 + h * b[i];
                for (Index e = 0; e < k; ++e) gram[(q * k + i) * k + e] = with_a * a[e] + with_b * b[e];
            }
        }
    });
}

template <class T> void define(nb::module_& m) {
    using namespace nb::literals;
    m.def("matrix", &matrix<T>, "kind"_a, "X"_a, "Z"_a, "alpha"_a, "out"_a, "threads"_a, "isa"_a = "");
    m.def("matrix_gradient", &matrix_gradient<T>, "kind"_a, "X"_a, "Z"_a, "alpha"_a, "grad_out"_a, "grad_square"_a,
          "grad_alpha"_a, "grad_X"_a.none(), "grad_Z"_a.none(), "threads"_a, "isa"_a = "");
    m.def("block", &block<T>, "kind"_a, "X"_a, "Z"_a.none(), "alpha"_a, "values"_a, "offsets"_a, "out"_a, "threads"_a,
          "isa"_a = "");
    m.def("block_gradient", &block_gradient<T>, "kind"_a, "X"_a, "Z"_a.none(), "alpha"_a, "values"_a, "offsets"_a,
          "grad_out"_a, "grad_square"_a, "grad_alpha"_a, "grad_values"_a, "grad_X"_a.none(), "grad_Z"_a.none(),
          "threads"_a, "isa"_a = "");
    m.def("nearest", &nearest<T>, "X"_a, "Z"_a, "left_out"_a.none(), "before"_a.none(), "rows"_a, "threads"_a,
          "isa"_a = "");
    m.def("local", &local<T>, "kind"_a, "questions"_a, "X"_a, "inverse_lengthscale"_a, "neighbours"_a, "alpha"_a,
          "outputscale"_a, "noise"_a, "residual"_a, "gram"_a.none(), "cross"_a.none(), "mean"_a, "explained"_a,
          "misfit"_a, "rows"_a, "solution_r"_a.none(), "solution_c"_a.none(), "of_parameters"_a.none(),
          "of_questions"_a.none(), "threads"_a, "isa"_a = "");
    m.def("local_density", &local_density<T>, "kind"_a, "asked"_a, "X"_a, "targets"_a, "inverse_lengthscale"_a,
          "neighbours"_a, "alpha"_a, "outputscale"_a, "noise"_a, "slopes"_a, "sums"_a, "threads"_a, "isa"_a = "");
    m.def("local_gradient", &local_gradient<T>, "solution_r"_a, "solution_c"_a, "grad_mean"_a, "grad_explained"_a,
          "of_parameters"_a.none(), "of_questions"_a.none(), "grad_parameters"_a.none(), "grad_questions"_a.none(),
          "grad_noise"_a.none(), "grad_residual"_a.none(), "grad_gram"_a.none(), "grad_cross"_a.none(), "threads"_a);
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled products with stationary kernels; called through cagp.engine.";
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Variant* v : runnable_variants()) names.push_back(v->name);
        return names;
    }, "The instruction sets this build has and this machine runs, best last.");
    define<float>(m);
    define<double>(m);
}
