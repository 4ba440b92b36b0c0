// Builds the tree of tree.h in place: the rows are moved, nothing is copied but the rows of a leaf.
//
// Compiled once, for every machine: most of the time goes into moving memory.
#include "tree.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace {

using Index = std::int64_t;
using Key = std::uint64_t;

constexpr Index kBins = 2048;    // of a histogram
constexpr Index kGather = 2048;  // keys among which the median is looked for one by one
constexpr Index kBlock = 128;    // slots that are compared before any is moved
constexpr Index kStripes = 16;   // rows whose least and greatest values are found independently of each other

// A number for a coordinate and a row, in whose order both rise: no two rows have the same.
inline Key key_of(float x, std::int32_t row) {
    const float canonical = x + 0.0f;  // -0 counts as 0
    std::uint32_t bits;
    std::memcpy(&bits, &canonical, sizeof bits);
    bits ^= std::uint32_t(std::int32_t(bits) >> 31) | 0x80000000u;
    return Key(bits) << 32 | std::uint32_t(row);
}

struct Scratch {
    Key* keys;            // kGather
    std::int32_t* count;  // kBins
    Index *left, *right;  // kBlock each: slots on the wrong side
    float *low, *high;    // kStripes rows each
    float* leaf;          // the rows of a leaf
    Scratch(void* memory, Index d) {
        auto address = (reinterpret_cast<std::uintptr_t>(memory) + 63) & ~std::uintptr_t(63);
        keys = reinterpret_cast<Key*>(address);
        left = reinterpret_cast<Index*>(keys + kGather);
        right = left + kBlock;
        count = reinterpret_cast<std::int32_t*>(right + kBlock);
        low = reinterpret_cast<float*>(count + kBins);
        high = low + kStripes * d;
        leaf = high + kStripes * d;
    }
    static Index bytes(Index d) {
        return 64 + kGather * Index(sizeof(Key)) + 2 * kBlock * Index(sizeof(Index)) +
               kBins * Index(sizeof(std::int32_t)) + (2 * kStripes + kTreeLeaf) * d * Index(sizeof(float));
    }
};

class Node {
  public:
    Node(const TreeBuild& t, int level, Index j, void* memory)
        : tree(t), scratch(memory, t.d), d(t.d), begin(tree_slot(t.n, level, j)), end(tree_slot(t.n, level, j + 1)),
          number((Index(1) << level) + j), box(t.boxes + (number - 1) * 2 * t.d) {}

    // The box and the least row; kStripes rows at a time, so that the loop is one over vectors for any d.
    void measure() {
        const float infinity = std::numeric_limits<float>::infinity();
        const Index stripe = kStripes * d;
        std::fill(scratch.low, scratch.low + stripe, infinity);
        std::fill(scratch.high, scratch.high + stripe, -infinity);
        const float *x = tree.points + begin * d, *last = tree.points + end * d;
        float *low = scratch.low, *high = scratch.high;
        const auto widen = [=](const float* values, Index size) {
            for (Index e = 0; e < size; ++e) {
                low[e] = values[e] < low[e] ? values[e] : low[e];
                high[e] = values[e] > high[e] ? values[e] : high[e];
            }
        };
        for (; last - x >= stripe && stripe > 0; x += stripe) widen(x, stripe);
        widen(x, last - x);
        for (Index c = 0; c < d; ++c) {
            box[c] = infinity, box[d + c] = -infinity;
            for (Index s = 0; s < kStripes; ++s) {
                box[c] = std::min(box[c], low[s * d + c]);
                box[d + c] = std::max(box[d + c], high[s * d + c]);
            }
        }
        std::int32_t least = std::numeric_limits<std::int32_t>::max();
        for (Index slot = begin; slot < end; ++slot) least = std::min(least, tree.rows[slot]);
        tree.least[number - 1] = least;
    }

    // Moves the rows with the smaller coordinates along the widest side to the slots before the middle.
    void cut(Index middle) {
        axis = 0;
        double widest = -1;
        for (Index c = 0; c < d; ++c) {
            const double width = (double(box[d + c]) - double(box[c])) * double(tree.scale[c]);
            if (width > widest) widest = width, axis = c;
        }
        if (d > 0) move(middle, median(middle - begin));
    }

    // Puts the rows of a leaf into their own order, and their coordinates column by column.
    void finish() {
        const Index m = end - begin;
        for (Index l = 0; l < m; ++l) scratch.keys[l] = Key(std::uint32_t(tree.rows[begin + l])) << 32 | Key(l);
        std::sort(scratch.keys, scratch.keys + m);
        float* x = tree.points + begin * d;
        std::copy(x, x + m * d, scratch.leaf);
        for (Index l = 0; l < m; ++l) {
            const float* row = scratch.leaf + Index(std::uint32_t(scratch.keys[l])) * d;
            for (Index c = 0; c < d; ++c) x[c * m + l] = row[c];
            tree.rows[begin + l] = std::int32_t(scratch.keys[l] >> 32);
        }
    }

  private:
    Key key(Index slot) const { return key_of(tree.points[slot * d + axis], tree.rows[slot]); }

    // The key with `rank` smaller ones. Each histogram narrows the range of keys it can be in by 11 of 64 bits, or to
    // few enough keys to look at; with distinct coordinates the first one or two do.
    Key median(Index rank) {
        Key first = key_of(box[axis], 0), range = key_of(box[d + axis], -1) - first;
        Index inside = end - begin;
        while (inside > kGather) {
            int shift = 0;
            while ((range >> shift) >= Key(kBins)) ++shift;
            std::fill(scratch.count, scratch.count + kBins, 0);
            for (Index slot = begin; slot < end; ++slot) {
                const Key offset = key(slot) - first;
                if (offset <= range) ++scratch.count[offset >> shift];
            }
            Index bin = 0;
            while (rank >= scratch.count[bin]) rank -= scratch.count[bin++];
            inside = scratch.count[bin];
            first += Key(bin) << shift;
            range = std::min(range - (Key(bin) << shift), (Key(1) << shift) - 1);
        }
        Index size = 0;
        for (Index slot = begin; slot < end; ++slot) {
            const Key candidate = key(slot);
            if (candidate - first <= range) scratch.keys[size++] = candidate;
        }
        std::nth_element(scratch.keys, scratch.keys + rank, scratch.keys + size);
        return scratch.keys[rank];
    }

    // As many rows before the middle do not belong there as rows behind it: they change places.
    void move(Index middle, Key pivot) {
        Index from_left = begin, from_right = middle;
        Index l = 0, num_left = 0, r = 0, num_right = 0;
        for (;;) {
            while (l == num_left && from_left < middle) {
                const Index stop = std::min(from_left + kBlock, middle);
                for (l = num_left = 0; from_left < stop; ++from_left)
                    scratch.left[num_left] = from_left, num_left += !(key(from_left) < pivot);
            }
            while (r == num_right && from_right < end) {
                const Index stop = std::min(from_right + kBlock, end);
                for (r = num_right = 0; from_right < stop; ++from_right)
                    scratch.right[num_right] = from_right, num_right += key(from_right) < pivot;
            }
            if (l == num_left || r == num_right) return;
            for (; l < num_left && r < num_right; ++l, ++r) exchange(scratch.left[l], scratch.right[r]);
        }
    }

    void exchange(Index a, Index b) {
        std::swap(tree.rows[a], tree.rows[b]);
        for (Index c = 0; c < d; ++c) std::swap(tree.points[a * d + c], tree.points[b * d + c]);
    }

    const TreeBuild& tree;
    const Scratch scratch;
    const Index d, begin, end, number;
    float* const box;
    Index axis = 0;
};

}  // namespace

Index tree_build_scratch(Index d) { return Scratch::bytes(d); }

void tree_split(const TreeBuild& tree, int level, Index j, void* scratch) {
    Node node(tree, level, j, scratch);
    node.measure();
    node.cut(tree_slot(tree.n, level + 1, 2 * j + 1));
}

void tree_subtree(const TreeBuild& tree, int level, Index j, void* scratch) {
    if (level == tree.levels) {
        Node leaf(tree, level, j, scratch);
        leaf.measure();
        leaf.finish();
        return;
    }
    tree_split(tree, level, j, scratch);
    tree_subtree(tree, level + 1, 2 * j, scratch);
    tree_subtree(tree, level + 1, 2 * j + 1, scratch);
}

void tree_least(const std::int32_t* labels, Index n, int levels, int level, Index begin, Index end,
                std::int32_t* least) {
    for (Index j = begin; j < end; ++j) {
        std::int32_t found = std::numeric_limits<std::int32_t>::max();
        const Index number = (Index(1) << level) + j;
        if (level == levels)
            for (Index slot = tree_slot(n, level, j); slot < tree_slot(n, level, j + 1); ++slot)
                found = std::min(found, labels[slot]);
        else
            found = std::min(least[2 * number - 1], least[2 * number]);
        least[number - 1] = found;
    }
}
