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

template <class T>
LocalProblem<T> local_problem(const Matrix<const T>& questions, const Matrix<const T>& X,
                              const Array<const T>& inverse_lengthscale, const Matrix<const Index>& neighbours,
                              double alpha, double outputscale) {
    const Index t = questions.shape(0), k = neighbours.shape(1), d = X.shape(1);
    require(Index(questions.shape(1)) == d && Index(inverse_lengthscale.shape(0)) == d, "columns must agree");
    require(Index(neighbours.shape(0)) == t, "neighbours must have one row per question");
    const Index *rows = neighbours.data(), n = X.shape(0);
    require(std::all_of(rows, rows + t * k, [n](Index row) { return row >= -1 && row < n; }),
            "neighbours must be rows of X, or -1");
    return {questions.data(), X.data(), inverse_lengthscale.data(), rows, nullptr, nullptr, nullptr, nullptr, t, k, d,
            alpha, outputscale};
}

template <class T, class M> auto* of_neighbours(const LocalProblem<T>& p, const M& values) {
    require(Index(values.shape(0)) == p.t && Index(values.shape(1)) == p.k, "values of neighbours must be (t, k)");
    return values.data();
}
template <class T, class M> auto* of_pairs(const LocalProblem<T>& p, const M& values) {
    require(Index(values.shape(0)) == p.t && Index(values.shape(1)) == p.k && Index(values.shape(2)) == p.k,
            "values of pairs of neighbours must be (t, k, k)");
    return values.data();
}
template <class T, class M> auto* of_questions(const LocalProblem<T>& p, const M& values) {
    require(Index(values.shape(0)) == p.t, "values of questions must be (t,)");
    return values.data();
}

// Questions that a task answers at least, to hide handing it out.
constexpr Index kLocalQuestions = 16;

template <class T>
void local(int kind, Matrix<const T> questions, Matrix<const T> X, Array<const T> inverse_lengthscale,
           Matrix<const Index> neighbours, double alpha, double outputscale, Matrix<const T> noise,
           Matrix<const T> residual, std::optional<Cube<const T>> gram, std::optional<Matrix<const T>> cross,
           Array<T> mean, Array<T> explained, std::optional<Matrix<T>> solution_r, std::optional<Matrix<T>> solution_c,
           int threads, const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    auto p = local_problem<T>(questions, X, inverse_lengthscale, neighbours, alpha, outputscale);
    p.noise = of_neighbours(p, noise), p.residual = of_neighbours(p, residual);
    if (gram) p.gram = of_pairs(p, *gram);
    if (cross) p.cross = of_neighbours(p, *cross);
    T *m = of_questions(p, mean), *e = of_questions(p, explained);
    require(solution_r.has_value() == solution_c.has_value(), "both solutions or none");
    LocalSolutions<T> solutions{nullptr, nullptr};
    if (solution_r) solutions = {of_neighbours(p, *solution_r), of_neighbours(p, *solution_c)};
    const Tasks tasks(p.t, kLocalQuestions, kForwardTasks);
    nb::gil_scoped_release release;
    run_tasks(tasks.count, threads, s.local_scratch_bytes(p),
              [&](Index t, void* scratch) { s.local(p, tasks[t], m, e, solutions, scratch); });
}

template <class T>
void local_gradient(int kind, Matrix<const T> questions, Matrix<const T> X, Array<const T> inverse_lengthscale,
                    Matrix<const Index> neighbours, double alpha, double outputscale, Matrix<T> solution_r,
                    Matrix<T> solution_c, Array<const T> grad_mean, Array<const T> grad_explained,
                    Array<double> grad_square, Array<double> grad_alpha, Array<double> grad_scale,
                    Matrix<T> grad_noise, Matrix<T> grad_residual, std::optional<Matrix<T>> grad_questions,
                    std::optional<Cube<T>> grad_gram, std::optional<Matrix<T>> grad_cross, int threads,
                    const std::string& isa) {
    const Sweeps<T>& s = sweeps<T>(variant(isa), kind);
    const auto p = local_problem<T>(questions, X, inverse_lengthscale, neighbours, alpha, outputscale);
    const LocalSolutions<T> solutions{of_neighbours(p, solution_r), of_neighbours(p, solution_c)};
    const LocalCotangents<T> given{of_questions(p, grad_mean), of_questions(p, grad_explained)};
    LocalGradients<T> gradients{};
    gradients.noise = of_neighbours(p, grad_noise), gradients.residual = of_neighbours(p, grad_residual);
    if (grad_questions) gradients.questions = of_questions(p, *grad_questions);
    if (grad_gram) gradients.gram = of_pairs(p, *grad_gram);
    if (grad_cross) gradients.cross = of_neighbours(p, *grad_cross);
    const Tasks tasks(p.t, kLocalQuestions, kForwardTasks);
    nb::gil_scoped_release release;
    const Index width = p.d + 2;
    std::vector<double> parts(tasks.count * width);
    run_tasks(tasks.count, threads, s.local_scratch_bytes(p), [&](Index t, void* scratch) {
        LocalGradients<T> mine = gradients;
        mine.square = parts.data() + t * width;
        mine.alpha = mine.square + p.d, mine.scale = mine.square + p.d + 1;
        s.local_gradient(p, tasks[t], solutions, given, mine, scratch);
    });
    for (Index t = 0; t < tasks.count; ++t) {
        const double* part = parts.data() + t * width;
        for (Index j = 0; j < p.d; ++j) grad_square.data()[j] += part[j];
        grad_alpha.data()[0] += part[p.d];
        grad_scale.data()[0] += part[p.d + 1];
    }
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
          "solution_r"_a.none(), "solution_c"_a.none(), "threads"_a, "isa"_a = "");
    m.def("local_gradient", &local_gradient<T>, "kind"_a, "questions"_a, "X"_a, "inverse_lengthscale"_a,
          "neighbours"_a, "alpha"_a, "outputscale"_a, "solution_r"_a, "solution_c"_a, "grad_mean"_a,
          "grad_explained"_a, "grad_square"_a, "grad_alpha"_a, "grad_scale"_a, "grad_noise"_a, "grad_residual"_a,
          "grad_questions"_a.none(), "grad_gram"_a.none(), "grad_cross"_a.none(), "threads"_a, "isa"_a = "");
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
