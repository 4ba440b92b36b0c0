// What a product with block-sparse W leaves out: the blocks that are farther from a panel of rows than the kernel
// reaches.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "sweeps.h"

// Finds the boxes of all blocks, and an order of the rows in which those of a panel are near each other, where the rows
// do not come block by block: order_of(points as float). Nothing is left out if all points are within reach of each
// other, or if some are not finite.
template <class T> class FarBlocks {
  public:
    template <class OrderOf>
    FarBlocks(const Problem<T>& p, Blocks<T>& w, double reach, bool with_order, const OrderOf& order_of) : d(p.d) {
        if (!std::isfinite(reach)) return;
        boxes.resize(w.count * 2 * d);
        std::vector<T> all(2 * d);
        clear(all.data());
        for (std::int64_t j = 0; j < w.count; ++j) {
            T* box = boxes.data() + j * 2 * d;
            clear(box);
            for (std::int64_t row = w.offsets[j]; row < w.offsets[j + 1]; ++row) widen(box, p.Z + row * d);
            if (w.offsets[j] < w.offsets[j + 1]) widen(all.data(), box), widen(all.data(), box + d);
        }
        if (with_order)
            for (std::int64_t row = 0; row < p.n; ++row) widen(all.data(), p.X + row * d);
        double r2 = 0;
        for (std::int64_t k = 0; k < d; ++k) r2 += std::pow(double(all[d + k]) - double(all[k]), 2);
        if (!finite || !(r2 > reach * reach)) return;
        if (with_order) {
            std::vector<float> points(p.X, p.X + p.n * d);
            const bool fits = std::all_of(points.begin(), points.end(), [](float x) { return std::isfinite(x); });
            if (fits) order = order_of(std::move(points));
        }
        w.boxes = boxes.data(), w.reach2 = T(reach * reach), w.order = order.empty() ? nullptr : order.data();
    }

  private:
    void clear(T* box) const {
        std::fill(box, box + d, std::numeric_limits<T>::infinity());
        std::fill(box + d, box + 2 * d, -std::numeric_limits<T>::infinity());
    }
    void widen(T* box, const T* x) {
        for (std::int64_t k = 0; k < d; ++k) {
            finite = finite && std::isfinite(x[k]);
            box[k] = std::min(box[k], x[k]), box[d + k] = std::max(box[d + k], x[k]);
        }
    }
    const std::int64_t d;
    bool finite = true;
    std::vector<T> boxes;
    std::vector<std::int32_t> order;
};
