// The search in the tree of tree.h, compiled once for each instruction set (see simd.h).
//
// This file is compiled without fused multiplications (CMakeLists.txt). Every operation then rounds the same way in
// every instruction set, and in the distance of a box as in that of a row. Rounding keeps the order of numbers, so that
// no row of a box is nearer than the box, in floating-point numbers too: the search is exact, and always gives the
// same bits.
#include "simd.h"
#include "sweeps.h"

namespace CAGP_VARIANT {
namespace {

using Index = std::int64_t;

// A squared distance and a label in one number. Distances are not negative, so their bits rise as they do (NaN last).
using Found = std::uint64_t;
constexpr Found kFarthest = ~Found(0) - 1;  // beyond every row
constexpr Found kNever = ~Found(0);         // beyond that

inline Found found_at(float r2, std::int32_t label) {
    std::uint32_t bits;
    std::memcpy(&bits, &r2, sizeof bits);
    return Found(bits) << 32 | std::uint32_t(label);
}
inline float distance_of(Found found) {
    const std::uint32_t bits = std::uint32_t(found >> 32);
    float r2;
    std::memcpy(&r2, &bits, sizeof r2);
    return r2;
}

// Test points whose searches take turns. In a large tree nearly every node and leaf has to come from memory: each
// search asks for the next one it needs, and while that is on its way the others go on.
constexpr int kTurns = 16;

class Search {
  public:
    void prepare(const Tree& t, const TreeSearch& w, Found* memory) {
        tree = t, wanted = w, d = t.d, k = w.k, first_leaf = Index(1) << t.levels, nearest = memory;
    }

    void start(Index q) {
        number = q, point = wanted.points + q * d;
        left_out = wanted.left_out ? wanted.left_out[q] : -1;
        before = wanted.before ? wanted.before[q] : Index(1) << 32;
        size = leaves = 0, worst = kFarthest, waiting = 0, node = 1;
    }

    // Looks at the present node and chooses the next one; false when the test point is answered.
    bool advance() {
        if (node < first_leaf)
            node = nearer_child();
        else
            visit(node - first_leaf), ++leaves, node = 0;
        while (waiting > 0 && node == 0) {
            --waiting;
            if (with_label(distances[waiting], nodes[waiting]) < worst) node = nodes[waiting];
        }
        if (node > 0) {
            ask();
            return true;
        }
        if (wanted.visited) wanted.visited[number] = leaves;
        Index* out = wanted.found + number * k;
        for (Index e = 0; e < k; ++e) out[e] = e < size ? Index(std::uint32_t(nearest[e])) : -1;
        return false;
    }

  private:
    // The nearer child is visited next, if it can be near enough, and the other one waits.
    Index nearer_child() {
        const float left = distance(2 * node), right = distance(2 * node + 1);
        const bool swapped = right < left;
        const Index near = 2 * node + swapped, far = 2 * node + !swapped;
        const float farther = swapped ? left : right;
        if (with_label(farther, far) < worst) distances[waiting] = farther, nodes[waiting++] = far;
        return with_label(swapped ? right : left, near) < worst ? near : 0;
    }

    // Starts to load what the present node needs: the boxes of its children, or the rows of a leaf.
    void ask() const {
        if (node < first_leaf) {
            load_soon(tree.boxes + (2 * node - 1) * 2 * d, 4 * d);
            if (wanted.before) load_soon(tree.least + 2 * node - 1, 2);
        } else {
            const Index begin = tree_slot(tree.n, tree.levels, node - first_leaf);
            const Index m = tree_slot(tree.n, tree.levels, node - first_leaf + 1) - begin;
            load_soon(tree.points + begin * d, m * d);
            load_soon(tree.labels + begin, m);
        }
    }
    // The first number is read, not only asked for: a processor may drop a request whose page it does not know yet.
    template <class T> static void load_soon(const T* numbers, Index count) {
        constexpr Index line = 64 / sizeof(T);
        if (count == 0) return;
        for (Index e = line; e < count; e += line) __builtin_prefetch(numbers + e);
        static_cast<void>(*static_cast<const volatile T*>(numbers));
    }

    // The squared distance of the node's box.
    float distance(Index at) const {
        const float* low = tree.boxes + (at - 1) * 2 * d;
        const float* high = low + d;
        float r2 = 0;
        for (Index c = 0; c < d; ++c) {
            const float below = low[c] - point[c], above = point[c] - high[c];
            const float gap = below > above ? below : above;
            const float outside = (gap > 0 ? gap : 0) * wanted.scale[c];
            r2 += outside * outside;
        }
        return r2;
    }

    // Nothing in a node at this distance comes before this in the order of distances and labels. Its least label is
    // read from memory only where it decides: among rows before another one, and as far away as the worst row found.
    Found with_label(float r2, Index at) const {
        const Found nearest_of_all = found_at(r2, 0);
        if (!wanted.before && nearest_of_all >> 32 != worst >> 32) return nearest_of_all;
        const std::int32_t least = tree.least[at - 1];
        return least >= before ? kNever : found_at(r2, least);
    }

    void visit(Index leaf) {
        const Index begin = tree_slot(tree.n, tree.levels, leaf);
        const int m = int(tree_slot(tree.n, tree.levels, leaf + 1) - begin);
        const float* rows = tree.points + begin * d;
        const float limit = size < k ? __builtin_inff() : distance_of(worst);
        float r2[kTreeLeaf + kLanes<float>];
        Bits<float> near{};
        for (int l = 0; l < m; l += kLanes<float>) {
            Vec<float> sum{};
            for (Index c = 0; c < d; ++c) {
                const Vec<float> difference = (load(rows + c * m + l) - point[c]) * wanted.scale[c];
                sum += difference * difference;
            }
            store<float>(r2 + l, sum);
            near |= ~(sum > limit);  // also where it is NaN
        }
        if (!any(near)) return;
        int count = 0;
        Found batch[kTreeLeaf + 1];
        const std::int32_t* labels = tree.labels + begin;
        for (int l = 0; l < m; ++l) {
            batch[count] = found_at(r2[l], labels[l]);
            count += (batch[count] < worst) & (labels[l] < before) & (labels[l] != left_out);
        }
        sort(batch, count);
        merge(batch, count);
    }

    static void sort(Found* batch, int count) {
        for (int i = 1; i < count; ++i) {
            const Found moved = batch[i];
            int e = i;
            for (; e > 0 && moved < batch[e - 1]; --e) batch[e] = batch[e - 1];
            batch[e] = moved;
        }
    }

    // The k first of those found and a sorted batch, from the last to the first: those before the batch stay.
    void merge(const Found* batch, int count) {
        Index i = size;
        while (i + count > k) {
            if (count == 0 || (i > 0 && nearest[i - 1] > batch[count - 1]))
                --i;
            else
                --count;
        }
        size = i + count;
        for (Index e = size; count > 0;)
            nearest[--e] = i > 0 && nearest[i - 1] > batch[count - 1] ? nearest[--i] : batch[--count];
        if (size == k) worst = nearest[k - 1];
    }

    Tree tree{};
    TreeSearch wanted{};
    Index d = 0, k = 0, first_leaf = 0;
    Index number = 0;  // of the test point
    const float* point = nullptr;
    Index left_out = -1, before = 0, size = 0, leaves = 0;
    Found* nearest = nullptr;
    Found worst = kFarthest;
    Index node = 0;  // the present one
    // Nodes still to visit, and their distances.
    int waiting = 0;
    float distances[kTreeLevels];
    Index nodes[kTreeLevels];
};

}  // namespace

Index tree_search_scratch(Index k) { return 64 + kTurns * (k + 1) * Index(sizeof(Found)); }

void tree_search(const Tree& tree, const TreeSearch& wanted, Range places, void* scratch) {
    auto address = (reinterpret_cast<std::uintptr_t>(scratch) + 63) & ~std::uintptr_t(63);
    Search searches[kTurns];
    int running = 0;
    for (Index next = places.begin; next < places.end && running < kTurns; ++next) {
        searches[running].prepare(tree, wanted, reinterpret_cast<Found*>(address) + running * (wanted.k + 1));
        searches[running++].start(wanted.order[next]);
    }
    Index next = places.begin + running;
    Search* turn[kTurns];
    for (int s = 0; s < running; ++s) turn[s] = searches + s;
    while (running > 0)
        for (int s = 0; s < running; ++s) {
            if (turn[s]->advance()) continue;
            if (next < places.end)
                turn[s]->start(wanted.order[next++]);
            else
                turn[s--] = turn[--running];
        }
}

}  // namespace CAGP_VARIANT
