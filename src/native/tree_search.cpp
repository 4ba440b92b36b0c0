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

class Search {
  public:
    Search(const Tree& t, const TreeSearch& w, void* memory)
        : tree(t), wanted(w), d(t.d), k(w.k), first_leaf(Index(1) << t.levels) {
        auto address = (reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63);
        nearest = reinterpret_cast<Found*>(address);
    }

    void answer(Index q) {
        point = wanted.points + q * d;
        left_out = wanted.left_out ? wanted.left_out[q] : -1;
        before = wanted.before ? wanted.before[q] : Index(1) << 32;
        size = leaves = 0, worst = kFarthest;
        // Nodes still to visit, and how near they can be. The nearer child is visited at once, the other one waits.
        Found bounds[kTreeLevels];
        Index nodes[kTreeLevels];
        int waiting = 0;
        for (Index node = 1; node > 0;) {
            while (node < first_leaf) {
                const Found left = bound(2 * node), right = bound(2 * node + 1);
                const bool swapped = right < left;
                const Found far = swapped ? left : right;
                if (far < worst) bounds[waiting] = far, nodes[waiting++] = 2 * node + !swapped;
                node = (swapped ? right : left) < worst ? 2 * node + swapped : 0;
                if (node == 0) break;
            }
            if (node > 0) visit(node - first_leaf), ++leaves;
            node = 0;
            while (waiting > 0 && node == 0)
                if (bounds[--waiting] < worst) node = nodes[waiting];
        }
        if (wanted.visited) wanted.visited[q] = leaves;
        Index* out = wanted.found + q * k;
        for (Index e = 0; e < k; ++e) out[e] = e < size ? Index(std::uint32_t(nearest[e])) : -1;
    }

  private:
    // Nothing in the node comes before this in the order of distances and labels.
    Found bound(Index node) const {
        const std::int32_t least = tree.least[node - 1];
        if (least >= before) return kNever;
        const float* low = tree.boxes + (node - 1) * 2 * d;
        const float* high = low + d;
        float r2 = 0;
        for (Index c = 0; c < d; ++c) {
            const float below = low[c] - point[c], above = point[c] - high[c];
            const float gap = below > above ? below : above;
            const float outside = (gap > 0 ? gap : 0) * wanted.scale[c];
            r2 += outside * outside;
        }
        return found_at(r2, least);
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

    const Tree& tree;
    const TreeSearch& wanted;
    const Index d, k, first_leaf;
    Found* nearest;
    const float* point = nullptr;
    Index left_out = -1, before = 0, size = 0, leaves = 0;
    Found worst = kFarthest;
};

}  // namespace

Index tree_search_scratch(Index k) { return 64 + (k + 1) * Index(sizeof(Found)); }

void tree_search(const Tree& tree, const TreeSearch& wanted, Range places, void* scratch) {
    Search search(tree, wanted, scratch);
    for (Index e = places.begin; e < places.end; ++e) search.answer(wanted.order[e]);
}

}  // namespace CAGP_VARIANT
