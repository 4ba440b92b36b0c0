// What one task does, and the table through which the module calls the code of one instruction set.
//
// All inputs arrive divided by their lengthscales. A task owns a range of rows and writes nothing outside of it, except
// into partial sums of its own, which the caller adds up in the order of the tasks: results do not depend on which
// thread ran what.
#pragma once

#include <cstdint>

enum class Kind : int { rbf, matern12, matern32, matern52, rational_quadratic };
constexpr int kNumKinds = 5;

template <class T> struct Problem {
    const T *X, *Z;  // (n, d), (m, d) in lengthscale units
    std::int64_t n, m, d;
    double alpha;
};

// Gradients of one task. Pointers that were not asked for are null.
template <class T> struct Gradients {
    double* square;  // (d): sum of dL/dr2 * difference^2, from which the lengthscales' gradient follows
    double* alpha;   // (1)
    T* values;       // (m): of the block weights; this task's part
    T* X;            // (n, d): of the scaled inputs; rows of this task only
    T* Z;            // (m, d): this task's part
};

template <class T> struct Sweeps {
    std::int64_t (*scratch_bytes)(std::int64_t d);
    // out (n, m) = k(X, Z)
    void (*matrix)(const Problem<T>&, std::int64_t begin, std::int64_t end, T* out, void* scratch);
    void (*matrix_gradient)(const Problem<T>&, std::int64_t begin, std::int64_t end, const T* grad_out,
                            const Gradients<T>&, void* scratch);
    // out (n, i) = k(X, Z) W, W block-sparse
    void (*block)(const Problem<T>&, const T* values, const std::int64_t* offsets, std::int64_t i, std::int64_t begin,
                  std::int64_t end, T* out, void* scratch);
    void (*block_gradient)(const Problem<T>&, const T* values, const std::int64_t* offsets, std::int64_t i,
                           std::int64_t begin, std::int64_t end, const T* grad_out, const Gradients<T>&, void* scratch);
};

struct Variant {
    const char* name;
    int rows_float, rows_double;  // rows that share a panel: tasks should own a multiple of these
    Sweeps<float> f32[kNumKinds];
    Sweeps<double> f64[kNumKinds];
};

extern "C" const Variant* cagp_variant_baseline();
extern "C" const Variant* cagp_variant_avx2();
