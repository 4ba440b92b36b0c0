// A balanced k-d tree over rows of float32, without pointers: what its builder, its search and the module share.
//
// Nodes are numbered as in a heap: the root is 1, the children of v are 2 v and 2 v + 1. Level l has 2^l nodes. Node j
// of level l holds the slots [n j / 2^l, n (j + 1) / 2^l), rounded down, so that the place of every node follows from
// its number. The nodes of the last level are the leaves, with kTreeLeaf rows at most.
//
// The tree is the same for any number of threads: a node is cut at its median by (coordinate, row), which has no ties,
// along the widest side of its box, and the rows of a leaf are in their own order.
#pragma once

#include <cstdint>

constexpr int kTreeLeaf = 32;     // rows in a leaf, at most; the leaves of a large tree have half as many at least
constexpr int kTreePadding = 16;  // numbers after the last row, which a vector may read and nobody uses
constexpr int kTreeLevels = 32;   // more than 2^31 rows need

struct Tree {
    const float* points;  // leaf by leaf, and inside a leaf column by column; then kTreePadding numbers
    const std::int32_t*
        labels;          // (n): a number for each slot, by which ties are broken: its row, or its place in an order
    const float* boxes;  // (nodes, 2, d): the least and the greatest coordinates in each node
    const std::int32_t* least;  // (nodes): the least label in each node
    std::int64_t n, d;
    int levels;  // below the root
};

// The same arrays while the tree is built. At first `points` holds the rows one after the other, and `rows` counts up.
struct TreeBuild {
    float* points;
    std::int32_t* rows;
    float* boxes;
    std::int32_t* least;
    const float* scale;  // (d): a side of a box is as wide as its length times this
    std::int64_t n, d;
    int levels;
};

// The k labels nearest to each test point by the squared distance sum ((x - z) scale)^2, ties by the smaller label; -1
// where there are fewer.
struct TreeSearch {
    const float* scale;            // (d)
    const float* points;           // (t, d)
    const std::int32_t* order;     // (t): in which the test points are answered
    const std::int64_t* left_out;  // (t): a label that does not count, or null
    const std::int64_t* before;    // (t): only labels below this one count, or null
    std::int64_t k;
    std::int64_t* found;    // (t, k)
    std::int64_t* visited;  // (t): the leaves that were looked through, or null
};

static inline int tree_levels(std::int64_t n) {
    int levels = 0;
    while (((n - 1) >> levels) >= kTreeLeaf) ++levels;
    return levels;
}
// The first slot of node j of a level.
static inline std::int64_t tree_slot(std::int64_t n, int level, std::int64_t j) { return (n * j) >> level; }

std::int64_t tree_build_scratch(std::int64_t d);
// Finds the box of a node of some level and moves its rows to its two children.
void tree_split(const TreeBuild& tree, int level, std::int64_t j, void* scratch);
// The same for all nodes below it, down to the leaves.
void tree_subtree(const TreeBuild& tree, int level, std::int64_t j, void* scratch);
// The least label of a range of nodes of a level, whose children are known already.
void tree_least(const std::int32_t* labels, std::int64_t n, int levels, int level, std::int64_t begin, std::int64_t end,
                std::int32_t* least);
