// What a task does, and the table through which the module calls the code of one instruction set.
//
// All inputs arrive divided by their lengthscales. A task writes nothing that another task writes, except into partial
// sums of its own, which the caller adds up in the order of the tasks: results do not depend on which thread ran what.
#pragma once

#include <cstdint>

#include "tree.h"

template <class T> struct Problem {
    const T *X, *Z;  // (n, d), (m, d) in lengthscale units
    std::int64_t n, m, d;
    double alpha;
};

// Block-sparse W (m, i): column j holds values[offsets[j] .. offsets[j + 1]) in those rows.
template <class T> struct Blocks {
    const T* values;
    const std::int64_t* offsets;
    std::int64_t count;
    // Where some blocks may be too far away to matter: the least and the greatest coordinates in each, (count, 2, d),
    // the squared distance from which on they are left out, and an order in which nearby rows of X follow each other
    // (null for their own). Null boxes: nothing is left out.
    const T* boxes;
    T reach2;
    const std::int32_t* order;
};

// Gradients of one task. Pointers that were not asked for are null.
template <class T> struct Gradients {
    double* square;  // (d): sum of dL/dr2 * difference^2, from which the lengthscales' gradient follows
    double* alpha;   // (1)
    T* values;       // (m): of the block weights; this task's part
    T* X;            // (n, d): of the scaled inputs; rows of this task only
    T* Z;            // (m, d): this task's part
};

struct Range {
    std::int64_t begin, end;
};

// Values of neighbours, (t, k); steps of zero where they are all the same.
template <class T> struct Strided {
    const T* data;
    std::int64_t row, column;
};

// Test points with a few rows of their own each: mean = c'C^-1 r and explained = c'C^-1 c with
// C = scale k(N, N) + noise - gram, c = scale k(N, x) - cross. Inputs are not divided by the lengthscales here.
// Rows of type T are read as they are stored; everything else, and all arithmetic, is double: what is left of the prior
// variance is often less than round-off of float.
template <class T> struct ConditionalProblem {
    const T* points;                    // (t, d): the test points, or null:
    const std::int64_t* test_rows;      // (t): the rows of X that are the test points
    const T* X;                         // (n, d)
    const double* inverse_lengthscale;  // (d)
    const std::int64_t* neighbours;     // (t, k): rows of X, nearest first; -1 for none
    Strided<double> noise;
    const double* residual;      // (t, k), or null:
    const T* targets;            // (n): the residuals of the rows of X, the same for all test points
    const double *gram, *cross;  // (t, k, k), (t, k), or null
    std::int64_t t, k, d;
    double alpha, outputscale;
};
// One number for each test point.
struct Moments {
    double *mean, *explained;  // c'C^-1 r and c'C^-1 c
    double *misfit, *rows;     // r'C^-1 r and the number of rows in it; without gradients
};
// From these follow the gradients of any function of mean and explained. Pointers that were not asked for are null: all
// of them, or `parameters` and those after it.
struct MomentSlopes {
    double *alpha, *beta;  // (t, k): C^-1 r and C^-1 c
    double* parameters;  // (t, 2, d + 2): of mean and explained; sums over r2's slopes times difference^2, alpha, scale
    double* points;      // (t, 2, d)
};
// What a task adds up over test points that are rows: their negative log predictive densities, and the slopes of that
// sum in the squared distances of each column, in alpha, in the scale, and in noise that all rows share.
struct Density {
    double* sums;  // (d + 4), in this order
    bool slopes;   // false: the first alone
};

// The k rows of Z nearest to each row of X, by increasing distance; -1 where there are fewer.
struct Nearest {
    std::int64_t k;
    const std::int64_t* left_out;  // (n): a row of Z that does not count for this test point, or null
    const std::int64_t* before;    // (n): only rows of Z before this one count, or null
    std::int64_t* rows;            // (n, k)
};

template <class T> struct Sweeps {
    std::int64_t (*scratch_bytes)(std::int64_t d);
    // out (n, m) = k(X, Z), for a range of rows
    void (*matrix)(const Problem<T>&, Range rows, T* out, void* scratch);
    void (*matrix_gradient)(const Problem<T>&, Range rows, const T* grad_out, const Gradients<T>&, void* scratch);
    // out (n, i) = k(X, Z) W, for a range of rows
    void (*block)(const Problem<T>&, const Blocks<T>&, Range rows, T* out, void* scratch);
    void (*block_gradient)(const Problem<T>&, const Blocks<T>&, Range rows, const T* grad_out, const Gradients<T>&,
                           void* scratch);
    // out (n, i) = k(X, X) W with each pair of points visited once, for a range of blocks: the task computes their rows
    // from its first block on to the right, and their columns below. Gradients of the inputs go to Z.
    void (*symmetric)(const Problem<T>&, const Blocks<T>&, Range blocks, T* out, void* scratch);
    void (*symmetric_gradient)(const Problem<T>&, const Blocks<T>&, Range blocks, const T* grad_out,
                               const Gradients<T>&, void* scratch);
    std::int64_t (*nearest_scratch_bytes)(std::int64_t d, std::int64_t k);
    void (*nearest)(const Problem<T>&, Range rows, const Nearest&, void* scratch);
    std::int64_t (*conditionals_scratch_bytes)(const ConditionalProblem<T>&);
    void (*conditionals)(const ConditionalProblem<T>&, Range points, const Moments&, const MomentSlopes&,
                         void* scratch);
    // For test points that are rows (test_rows), with targets, one noise, and neither gram nor cross.
    void (*density)(const ConditionalProblem<T>&, Range points, const Density&, void* scratch);
};

// A kernel by the name that Python has for it (src/cagp/kernel_registry.py).
struct CompiledKernel {
    const char* name;
    bool has_alpha;  // whether it has a parameter besides the lengthscales
    Sweeps<float> f32;
    Sweeps<double> f64;
};

struct Variant {
    const char* name;
    int rows_float, rows_double;    // points that share a panel of lanes
    const CompiledKernel* kernels;  // the same ones, in the same order, in every variant: the list in profiles.h
    int num_kernels;
    std::int64_t (*tree_search_scratch)(std::int64_t k);
    // The test points at a range of places in the order of the search.
    void (*tree_search)(const Tree&, const TreeSearch&, Range places, void* scratch);
};

extern "C" const Variant* cagp_variant_baseline();
extern "C" const Variant* cagp_variant_avx2();
