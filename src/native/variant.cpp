// The loops over pairs of points, compiled once for each instruction set (see simd.h).
//
// One side of each product lies in the vector lanes: a panel of up to kRows points, transposed, whose distances to one
// point of the other side are computed together. Distances are sums of squared differences, never the expansion of the
// square, which would lose close points in float32.
#include "conditionals.h"
#include "profiles.h"
#include "sweeps.h"

namespace CAGP_VARIANT {

// tree_search.cpp, which is compiled with other options
std::int64_t tree_search_scratch(std::int64_t k);
void tree_search(const Tree&, const TreeSearch&, Range, void*);

namespace {

constexpr int kUnroll = 4;  // vectors per full panel: enough independent chains to hide the latency of exp
constexpr int kChunk = 32;  // points of the looped side whose cotangents are kept between the two gradient passes
template <class T> constexpr int kRows = kUnroll * kLanes<T>;

// One value for each lane of a panel of U vectors.
template <class T, int U = kUnroll> struct Panel {
    Vec<T> v[U];
};

// The rows of a panel: consecutive ones, or those at consecutive places of an order.
struct PanelRows {
    Index begin;
    const std::int32_t* order = nullptr;
    Index operator[](int l) const { return order ? order[begin + l] : begin + l; }
};

// The working memory of a task: two transposed panels (points, their gradient), the box of the first, and the
// cotangents of a chunk.
template <class T> struct Scratch {
    T *points, *gradient, *box;
    Panel<T>* cotangents;
    Scratch(void* memory, Index d) {
        auto address = (reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63);
        cotangents = reinterpret_cast<Panel<T>*>(address);
        points = reinterpret_cast<T*>(cotangents + kChunk);
        gradient = points + d * kRows<T>;
        box = gradient + d * kRows<T>;
    }
    static Index bytes(Index d) {
        return 64 + kChunk * Index(sizeof(Panel<T>)) + 2 * d * (kRows<T> + 1) * Index(sizeof(T));
    }
    void clear_gradient(Index d) const { std::memset(gradient, 0, d * kRows<T> * sizeof(T)); }
    // Adds the panel's gradient to its rows of the result.
    void add_gradient(PanelRows rows, int count, Index d, T* result) const {
        for (int l = 0; l < count; ++l)
            for (Index k = 0; k < d; ++k) result[rows[l] * d + k] += gradient[k * kRows<T> + l];
    }
};

// The rows of a panel, transposed; lanes beyond `count` repeat the last one.
template <class T> void transpose(const T* points, PanelRows rows, int count, Index d, T* panel) {
    for (int l = 0; l < kRows<T>; ++l) {
        const T* row = points + rows[l < count ? l : count - 1] * d;
        for (Index k = 0; k < d; ++k) panel[k * kRows<T> + l] = row[k];
    }
}

// Which blocks matter to a transposed panel: those whose box is within reach of its own.
template <class T> class Nearby {
  public:
    Nearby(const Blocks<T>& blocks, const Scratch<T>& scratch, Index d_) : w(blocks), box(scratch.box), d(d_) {
        for (Index k = 0; w.boxes && k < d; ++k) {
            const T* x = scratch.points + k * kRows<T>;
            T low = x[0], high = x[0];
            for (int l = 1; l < kRows<T>; ++l) low = x[l] < low ? x[l] : low, high = x[l] > high ? x[l] : high;
            box[k] = low, box[d + k] = high;
        }
    }
    bool operator()(Index j) const {
        if (!w.boxes) return true;
        const T* other = w.boxes + j * 2 * d;
        T r2 = 0;
        for (Index k = 0; k < d; ++k) {
            const T below = other[k] - box[d + k], above = box[k] - other[d + k];
            const T gap = below > above ? below : above;
            if (gap > 0) r2 += gap * gap;
        }
        return !(r2 > w.reach2);
    }

  private:
    const Blocks<T>& w;
    T* const box;
    const Index d;
};

// Squared distances of the panel to C points at once: C * U sums that do not wait for each other.
template <class T, int U, int C>
inline void squared_distances(const T* panel, const T* points, Index d, Panel<T, U> (&r2)[C]) {
    for (int c = 0; c < C; ++c) r2[c] = {};
    for (Index k = 0; k < d; ++k) {
        for (int u = 0; u < U; ++u) {
            const Vec<T> x = load(panel + k * kRows<T> + u * kLanes<T>);
            for (int c = 0; c < C; ++c) {
                const Vec<T> difference = x - points[c * d + k];
                r2[c].v[u] += difference * difference;
            }
        }
    }
}

// Calls visit(c, squared distances of the panel to point c) for c in [begin, end), in order, C (1 or 2) at a time:
// two suit a short visit, one a long one (as in the gradients), which would run out of registers.
template <class T, int U, int C, class Visit>
inline void for_each_point(const T* panel, const T* points, Index begin, Index end, Index d, const Visit& visit) {
    Index c = begin;
    for (; c + C <= end; c += C) {
        Panel<T, U> r2[C];
        squared_distances<T, U, C>(panel, points + c * d, d, r2);
        visit(c, r2[0]);
        if (C == 2) visit(c + 1, r2[C - 1]);
    }
    if (C > 1 && c < end) for_each_point<T, U, 1>(panel, points, c, end, d, visit);
}

// The first `count` lanes from values `stride` apart; zero in the others.
template <class T, int U> inline Panel<T, U> gather(const T* values, int count, Index stride) {
    T lane[U * kLanes<T>] = {};
    for (int l = 0; l < count; ++l) lane[l] = values[l * stride];
    Panel<T, U> panel;
    std::memcpy(&panel, lane, sizeof panel);
    return panel;
}

template <class T, int U> inline void scatter(const Panel<T, U>& panel, int count, Index stride, T* values) {
    T lane[U * kLanes<T>];
    std::memcpy(lane, &panel, sizeof panel);
    for (int l = 0; l < count; ++l) values[l * stride] = lane[l];
}

// The same for one value of each row of a panel.
template <class T, int U> inline Panel<T, U> gather(const T* values, int count, Index stride, PanelRows rows) {
    if (!rows.order) return gather<T, U>(values + rows.begin * stride, count, stride);
    T lane[U * kLanes<T>] = {};
    for (int l = 0; l < count; ++l) lane[l] = values[rows[l] * stride];
    Panel<T, U> panel;
    std::memcpy(&panel, lane, sizeof panel);
    return panel;
}

template <class T, int U>
inline void scatter(const Panel<T, U>& panel, int count, Index stride, T* values, PanelRows rows) {
    if (!rows.order) return scatter(panel, count, stride, values + rows.begin * stride);
    T lane[U * kLanes<T>];
    std::memcpy(lane, &panel, sizeof panel);
    for (int l = 0; l < count; ++l) values[rows[l] * stride] = lane[l];
}

template <class T, int U> inline T sum(const Panel<T, U>& panel) {
    Vec<T> total = panel.v[0];
    for (int u = 1; u < U; ++u) total += panel.v[u];
    return sum_lanes<T>(total);
}

// Second pass of the gradient: given cotangents[c] = dL/dr2 of each panel point against each of `count` looped points,
// adds dL/dr2 * difference^2 to square, and 2 * dL/dr2 * difference to the gradients of both sides where asked for.
template <class T, int U>
void distance_gradients(const Scratch<T>& scratch, const T* points, int count, Index d, double* square,
                        bool panel_gradient, T* point_gradient) {
    for (Index k = 0; k < d; ++k) {
        Panel<T, U> x, squares{}, sums{};
        for (int u = 0; u < U; ++u) x.v[u] = load(scratch.points + k * kRows<T> + u * kLanes<T>);
        if (!panel_gradient && !point_gradient) {
            for (int c = 0; c < count; ++c) {
                const Vec<T> z = splat<T>(points[c * d + k]);
                for (int u = 0; u < U; ++u) {
                    Vec<T> difference = x.v[u] - z;
                    squares.v[u] += (scratch.cotangents[c].v[u] * difference) * difference;
                }
            }
        } else {
            for (int c = 0; c < count; ++c) {
                const Vec<T> z = splat<T>(points[c * d + k]);
                Panel<T, U> product;
                for (int u = 0; u < U; ++u) {
                    Vec<T> difference = x.v[u] - z;
                    product.v[u] = scratch.cotangents[c].v[u] * difference;
                    squares.v[u] += product.v[u] * difference;
                    sums.v[u] += product.v[u];
                }
                if (point_gradient) point_gradient[c * d + k] -= 2 * sum(product);
            }
            for (int u = 0; u < U; ++u) {
                T* g = scratch.gradient + k * kRows<T> + u * kLanes<T>;
                store<T>(g, load(g) + 2 * sums.v[u]);
            }
        }
        for (int u = 1; u < U; ++u) squares.v[0] += squares.v[u];
        square[k] += sum_lanes_double<T>(squares.v[0]);
    }
}

// ---- k(X, Z): the columns lie in the lanes, so that a row of the result is written in one piece ----

template <class T, class Profile> void matrix(const Problem<T>& p, Range rows, T* out, void* memory) {
    const Profile profile(p.alpha);
    const Scratch<T> scratch(memory, p.d);
    for (Index column = 0; column < p.m; column += kRows<T>) {
        const int count = smaller(p.m - column, kRows<T>);
        transpose(p.Z, {column}, count, p.d, scratch.points);
        auto visit = [&](Index row, const Panel<T>& r2) {
            Panel<T> k;
            for (int u = 0; u < kUnroll; ++u) k.v[u] = profile.value(r2.v[u]);
            std::memcpy(out + row * p.m + column, &k, count * sizeof(T));
        };
        for_each_point<T, kUnroll, 2>(scratch.points, p.X, rows.begin, rows.end, p.d, visit);
    }
}

template <class T, class Profile>
void matrix_gradient(const Problem<T>& p, Range rows, const T* grad_out, const Gradients<T>& gradients, void* memory) {
    const Profile profile(p.alpha);
    const Scratch<T> scratch(memory, p.d);
    for (Index column = 0; column < p.m; column += kRows<T>) {
        const int lanes = smaller(p.m - column, kRows<T>);
        transpose(p.Z, {column}, lanes, p.d, scratch.points);
        scratch.clear_gradient(p.d);
        for (Index first = rows.begin; first < rows.end; first += kChunk) {
            const int count = smaller(rows.end - first, kChunk);
            Vec<T> alpha{};
            auto visit = [&](Index row, const Panel<T>& r2) {
                Panel<T> g{};
                std::memcpy(&g, grad_out + row * p.m + column, lanes * sizeof(T));
                for (int u = 0; u < kUnroll; ++u) {
                    Vec<T> slope_alpha{};
                    const Value<T> value = profile.value_and_slope(r2.v[u], slope_alpha);
                    scratch.cotangents[row - first].v[u] = g.v[u] * value.slope;
                    if (Profile::has_alpha) alpha += g.v[u] * slope_alpha;
                }
            };
            for_each_point<T, kUnroll, 1>(scratch.points, p.X, first, first + count, p.d, visit);
            if (Profile::has_alpha) *gradients.alpha += sum_lanes_double<T>(alpha);
            distance_gradients<T, kUnroll>(scratch, p.X + first * p.d, count, p.d, gradients.square,
                                           gradients.Z != nullptr, gradients.X ? gradients.X + first * p.d : nullptr);
        }
        if (gradients.Z) scratch.add_gradient({column}, lanes, p.d, gradients.Z);
    }
}

// ---- k(X, Z) W: the rows lie in the lanes, and a block of columns is summed before anything is written ----

// The product of a panel of rows with block j.
template <class T, int U, class Profile>
inline Panel<T, U> block_sum(const Profile& profile, const T* panel, const Problem<T>& p, const Blocks<T>& w, Index j) {
    Panel<T, U> total{};
    auto visit = [&](Index c, const Panel<T, U>& r2) {
        for (int u = 0; u < U; ++u) total.v[u] += profile.value(r2.v[u]) * w.values[c];
    };
    for_each_point<T, U, 2>(panel, p.Z, w.offsets[j], w.offsets[j + 1], p.d, visit);
    return total;
}

// Both gradient passes of a panel of rows against block j, given the cotangent g of their product.
template <class T, int U, class Profile>
void block_sum_gradient(const Profile& profile, const Scratch<T>& scratch, const Problem<T>& p, const Blocks<T>& w,
                        Index j, const Panel<T, U>& g, const Gradients<T>& gradients, bool panel_gradient) {
    for (Index first = w.offsets[j]; first < w.offsets[j + 1]; first += kChunk) {
        const int count = smaller(w.offsets[j + 1] - first, kChunk);
        Vec<T> alpha{};
        auto visit = [&](Index c, const Panel<T, U>& r2) {
            const T weight = w.values[c];
            Panel<T, U> product;
            for (int u = 0; u < U; ++u) {
                Vec<T> slope_alpha{};
                const Value<T> value = profile.value_and_slope(r2.v[u], slope_alpha);
                product.v[u] = g.v[u] * value.k;
                scratch.cotangents[c - first].v[u] = g.v[u] * weight * value.slope;
                if (Profile::has_alpha) alpha += g.v[u] * weight * slope_alpha;
            }
            gradients.values[c] += sum(product);
        };
        for_each_point<T, U, 1>(scratch.points, p.Z, first, first + count, p.d, visit);
        if (Profile::has_alpha) *gradients.alpha += sum_lanes_double<T>(alpha);
        distance_gradients<T, U>(scratch, p.Z + first * p.d, count, p.d, gradients.square, panel_gradient,
                                 gradients.Z ? gradients.Z + first * p.d : nullptr);
    }
}

template <class T, class Profile>
void block(const Problem<T>& p, const Blocks<T>& w, Range rows, T* out, void* memory) {
    const Profile profile(p.alpha);
    const Scratch<T> scratch(memory, p.d);
    for (Index row = rows.begin; row < rows.end; row += kRows<T>) {
        const int count = smaller(rows.end - row, kRows<T>);
        const PanelRows panel{row, w.order};
        transpose(p.X, panel, count, p.d, scratch.points);
        const Nearby<T> near(w, scratch, p.d);
        for (Index j = 0; j < w.count; ++j) {
            Panel<T> total{};
            if (near(j)) total = block_sum<T, kUnroll>(profile, scratch.points, p, w, j);
            scatter(total, count, w.count, out + j, panel);
        }
    }
}

template <class T, class Profile>
void block_gradient(const Problem<T>& p, const Blocks<T>& w, Range rows, const T* grad_out,
                    const Gradients<T>& gradients, void* memory) {
    const Profile profile(p.alpha);
    const Scratch<T> scratch(memory, p.d);
    for (Index row = rows.begin; row < rows.end; row += kRows<T>) {
        const int count = smaller(rows.end - row, kRows<T>);
        const PanelRows panel{row, w.order};
        transpose(p.X, panel, count, p.d, scratch.points);
        scratch.clear_gradient(p.d);
        const Nearby<T> near(w, scratch, p.d);
        for (Index j = 0; j < w.count; ++j) {
            if (!near(j)) continue;
            const auto g = gather<T, kUnroll>(grad_out + j, count, w.count, panel);
            block_sum_gradient<T, kUnroll>(profile, scratch, p, w, j, g, gradients, gradients.X != nullptr);
        }
        if (gradients.X) scratch.add_gradient(panel, count, p.d, gradients.X);
    }
}

// ---- k(X, X) W with each pair visited once ----
//
// A panel never holds rows of a block in part together with rows of another: it is either some whole blocks, or a piece
// of one. Its rows meet each column c of a later block j once, and k(r, c) serves out[r, j] and out[c, block of r].

// Rows of a panel that belong to one block; `lanes` is one there and zero elsewhere.
template <class T, int U> struct Segment {
    Index block;
    Panel<T, U> lanes;
};

template <class T, int U> struct SymmetricPanel {
    Index row, first, last;  // its first row, and its blocks [first, last)
    int count, segments;
    Panel<T, U> weights;  // of its rows; zero in unused lanes
    Segment<T, U> segment[kRows<T>];

    SymmetricPanel(const Blocks<T>& w, Index row_, int count_, Index first_, Index last_)
        : row(row_), first(first_), last(last_), count(count_), segments(int(last_ - first_)),
          weights(gather<T, U>(w.values + row_, count_, 1)) {
        for (int s = 0; s < segments; ++s) {
            T lane[U * kLanes<T>] = {};
            for (int l = 0; l < count; ++l)
                lane[l] = T(row + l >= w.offsets[first + s] && row + l < w.offsets[first + s + 1]);
            segment[s].block = first + s;
            std::memcpy(&segment[s].lanes, lane, sizeof lane);
        }
    }
};

template <class T, int U, class Profile>
void symmetric_panel(const Problem<T>& p, const Blocks<T>& w, Index row, int count, Index first, Index last, T* out,
                     const Scratch<T>& scratch) {
    const Profile profile(p.alpha);
    const SymmetricPanel<T, U> panel(w, row, count, first, last);
    transpose(p.X, {row}, count, p.d, scratch.points);
    const Nearby<T> near(w, scratch, p.d);
    for (Index j = first; j < last; ++j)
        scatter(block_sum<T, U>(profile, scratch.points, p, w, j), count, w.count, out + row * w.count + j);
    for (Index j = last; j < w.count; ++j) {
        Panel<T, U> total{};
        auto visit = [&](Index c, const Panel<T, U>& r2) {
            Panel<T, U> k;
            for (int u = 0; u < U; ++u) {
                k.v[u] = profile.value(r2.v[u]);
                total.v[u] += k.v[u] * w.values[c];
                k.v[u] *= panel.weights.v[u];
            }
            for (int s = 0; s < panel.segments; ++s) {
                Panel<T, U> inside = k;
                if (panel.segments > 1)
                    for (int u = 0; u < U; ++u) inside.v[u] *= panel.segment[s].lanes.v[u];
                out[c * w.count + panel.segment[s].block] += sum(inside);
            }
        };
        if (near(j)) for_each_point<T, U, 2>(scratch.points, p.X, w.offsets[j], w.offsets[j + 1], p.d, visit);
        scatter(total, count, w.count, out + row * w.count + j);
    }
}

template <class T, int U, class Profile>
void symmetric_panel_gradient(const Problem<T>& p, const Blocks<T>& w, Index row, int count, Index first, Index last,
                              const T* grad_out, const Gradients<T>& gradients, const Scratch<T>& scratch) {
    const Profile profile(p.alpha);
    const SymmetricPanel<T, U> panel(w, row, count, first, last);
    transpose(p.X, {row}, count, p.d, scratch.points);
    scratch.clear_gradient(p.d);
    const Nearby<T> near(w, scratch, p.d);
    const bool inputs = gradients.Z != nullptr;
    for (Index j = first; j < last; ++j) {
        const auto g = gather<T, U>(grad_out + row * w.count + j, count, w.count);
        block_sum_gradient<T, U>(profile, scratch, p, w, j, g, gradients, inputs);
    }
    Panel<T, U> values{};  // gradient of the panel's own weights
    for (Index j = last; j < w.count; ++j) {
        if (!near(j)) continue;
        const auto g = gather<T, U>(grad_out + row * w.count + j, count, w.count);
        for (Index begin = w.offsets[j]; begin < w.offsets[j + 1]; begin += kChunk) {
            const int columns = smaller(w.offsets[j + 1] - begin, kChunk);
            Vec<T> alpha{};
            auto visit = [&](Index c, const Panel<T, U>& r2) {
                const T weight = w.values[c];
                const T* mirrored = grad_out + c * w.count;
                Panel<T, U> h{}, product;  // h: cotangent of out[c, block of r]
                for (int s = 0; s < panel.segments; ++s)
                    for (int u = 0; u < U; ++u)
                        h.v[u] += panel.segment[s].lanes.v[u] * mirrored[panel.segment[s].block];
                for (int u = 0; u < U; ++u) {
                    Vec<T> slope_alpha{};
                    const Value<T> value = profile.value_and_slope(r2.v[u], slope_alpha);
                    const Vec<T> cotangent = g.v[u] * weight + h.v[u] * panel.weights.v[u];
                    product.v[u] = g.v[u] * value.k;
                    values.v[u] += h.v[u] * value.k;
                    scratch.cotangents[c - begin].v[u] = cotangent * value.slope;
                    if (Profile::has_alpha) alpha += cotangent * slope_alpha;
                }
                gradients.values[c] += sum(product);
            };
            for_each_point<T, U, 1>(scratch.points, p.X, begin, begin + columns, p.d, visit);
            if (Profile::has_alpha) *gradients.alpha += sum_lanes_double<T>(alpha);
            distance_gradients<T, U>(scratch, p.X + begin * p.d, columns, p.d, gradients.square, inputs,
                                     inputs ? gradients.Z + begin * p.d : nullptr);
        }
    }
    T lane[U * kLanes<T>];
    std::memcpy(lane, &values, sizeof lane);
    for (int l = 0; l < count; ++l) gradients.values[row + l] += lane[l];
    if (inputs) scratch.add_gradient({row}, count, p.d, gradients.Z);
}

// Cuts a range of blocks into panels and calls visit(row, count, first block, last block) for each.
template <class T, class Visit> void for_each_panel(const Blocks<T>& w, Range blocks, const Visit& visit) {
    for (Index first = blocks.begin; first < blocks.end;) {
        Index last = first + 1;
        while (last < blocks.end && last - first < kRows<T> && w.offsets[last + 1] - w.offsets[first] <= kRows<T>)
            ++last;
        for (Index row = w.offsets[first]; row < w.offsets[last]; row += kRows<T>)
            visit(row, smaller(w.offsets[last] - row, kRows<T>), first, last);
        first = last;
    }
}

// Calls visit(U) with the number of vectors that `count` lanes fill.
template <class T, class Visit> void with_vectors(int count, const Visit& visit) {
    static_assert(kUnroll == 4, "every number of vectors needs a case");
    switch ((count + kLanes<T> - 1) / kLanes<T>) {
        case 1: return visit(Constant<1>{});
        case 2: return visit(Constant<2>{});
        case 3: return visit(Constant<3>{});
        default: return visit(Constant<4>{});
    }
}

template <class T, class Profile>
void symmetric(const Problem<T>& p, const Blocks<T>& w, Range blocks, T* out, void* memory) {
    const Scratch<T> scratch(memory, p.d);
    for (Index c = w.offsets[blocks.begin]; c < p.n; ++c)  // mirrored values are summed over the panels of a block
        for (Index j = blocks.begin; j < blocks.end; ++j) out[c * w.count + j] = 0;
    for_each_panel<T>(w, blocks, [&](Index row, int count, Index first, Index last) {
        with_vectors<T>(count,
                        [&](auto u) { symmetric_panel<T, u, Profile>(p, w, row, count, first, last, out, scratch); });
    });
}

template <class T, class Profile>
void symmetric_gradient(const Problem<T>& p, const Blocks<T>& w, Range blocks, const T* grad_out,
                        const Gradients<T>& gradients, void* memory) {
    const Scratch<T> scratch(memory, p.d);
    for_each_panel<T>(w, blocks, [&](Index row, int count, Index first, Index last) {
        with_vectors<T>(count, [&](auto u) {
            symmetric_panel_gradient<T, u, Profile>(p, w, row, count, first, last, grad_out, gradients, scratch);
        });
    });
}

// ---- the nearest rows ----

// Test points that meet a panel of rows while it lies in the cache.
constexpr int kTogether = 32;

// The k nearest rows so far, by increasing distance.
template <class T> struct Shortlist {
    T* distance;
    Index* row;
    Index k;
    void clear() {
        for (Index e = 0; e < k; ++e) distance[e] = Format<T>::largest, row[e] = -1;
    }
    T worst() const { return distance[k - 1]; }
    void insert(T r2, Index candidate) {
        Index e = k - 1;
        for (; e > 0 && r2 < distance[e - 1]; --e) distance[e] = distance[e - 1], row[e] = row[e - 1];
        distance[e] = r2, row[e] = candidate;
    }
};

template <class T> Index nearest_scratch(Index d, Index k) {
    return Scratch<T>::bytes(d) + 64 + kTogether * k * Index(sizeof(T));
}

template <class T> void nearest(const Problem<T>& p, Range rows, const Nearest& wanted, void* memory) {
    const Scratch<T> scratch(memory, p.d);
    T* distances = scratch.gradient + p.d * kRows<T>;
    for (Index first = rows.begin; first < rows.end; first += kTogether) {
        const int count = smaller(rows.end - first, kTogether);
        auto shortlist = [&](Index q) -> Shortlist<T> {
            return {distances + (q - first) * wanted.k, wanted.rows + q * wanted.k, wanted.k};
        };
        for (Index q = first; q < first + count; ++q) shortlist(q).clear();
        for (Index z = 0; z < p.m; z += kRows<T>) {
            const int lanes = smaller(p.m - z, kRows<T>);
            transpose(p.Z, {z}, lanes, p.d, scratch.points);
            auto visit = [&](Index q, const Panel<T>& r2) {
                Shortlist<T> found = shortlist(q);
                const Vec<T> worst = splat<T>(found.worst());
                Bits<T> near = r2.v[0] < worst;
                for (int u = 1; u < kUnroll; ++u) near |= r2.v[u] < worst;
                if (!any(near)) return;
                T lane[kRows<T>];
                std::memcpy(lane, &r2, sizeof lane);
                for (int l = 0; l < lanes; ++l) {
                    const Index row = z + l;
                    if (!(lane[l] < found.worst()) || (wanted.left_out && row == wanted.left_out[q])) continue;
                    if (wanted.before && row >= wanted.before[q]) break;
                    found.insert(lane[l], row);
                }
            };
            for_each_point<T, kUnroll, 2>(scratch.points, p.X, first, first + count, p.d, visit);
        }
    }
}

// Conditionals are computed in double, whatever the rows are.
template <class T, class Profile, class DoubleProfile> constexpr Sweeps<T> sweeps() {
    Sweeps<T> s{};
    s.scratch_bytes = Scratch<T>::bytes;
    s.matrix = matrix<T, Profile>;
    s.matrix_gradient = matrix_gradient<T, Profile>;
    s.block = block<T, Profile>;
    s.block_gradient = block_gradient<T, Profile>;
    s.symmetric = symmetric<T, Profile>;
    s.symmetric_gradient = symmetric_gradient<T, Profile>;
    s.nearest_scratch_bytes = nearest_scratch<T>;
    s.nearest = nearest<T>;
    s.conditionals_scratch_bytes = conditionals_scratch<T, DoubleProfile>;
    s.conditionals = conditionals<T, DoubleProfile>;
    s.density = density<T, DoubleProfile>;
    return s;
}

template <class List> struct Table;
template <template <class> class... Profiles> struct Table<ProfileList<Profiles...>> {
    static constexpr CompiledKernel kernels[] = {{Profiles<double>::name, Profiles<double>::has_alpha,
                                                  sweeps<float, Profiles<float>, Profiles<double>>(),
                                                  sweeps<double, Profiles<double>, Profiles<double>>()}...};
};
using Kernels = Table<CompiledProfiles>;

#define CAGP_STRING_(x) #x
#define CAGP_STRING(x) CAGP_STRING_(x)
#define CAGP_JOIN_(a, b) a##b
#define CAGP_JOIN(a, b) CAGP_JOIN_(a, b)

constexpr Variant kVariant = {CAGP_STRING(CAGP_VARIANT),
                              kRows<float>,
                              kRows<double>,
                              Kernels::kernels,
                              int(sizeof Kernels::kernels / sizeof Kernels::kernels[0]),
                              tree_search_scratch,
                              tree_search};

}  // namespace
}  // namespace CAGP_VARIANT

extern "C" const Variant* CAGP_JOIN(cagp_variant_, CAGP_VARIANT)() { return &CAGP_VARIANT::kVariant; }
