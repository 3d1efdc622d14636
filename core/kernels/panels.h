// The matrix product that all of linear.cpp is made of: rows of x times panels of a packed weight.
//
// Packed weight: a panel of 32 columns is one stream of memory. Rows of x are first normalized, brought into the form
// that the weight's format multiplies, and interleaved a tile (up to 12 rows) at a time, by all threads together; then
// each thread multiplies its panels with all tiles. A result is summed over the inputs in order, by one thread: it does
// not depend on the other rows of the step.
//
// A format says how a panel and an interleaved row look:
//   Activations                        what x and the results are: Float32 or Bfloat16
//   row_words, panel_words(inputs)     32-bit words of a row and of a panel
//   interleave(product, tile, out)     rows of x -> words
//   multiply<M>(rows, panel, inputs, fetcher, sums)
#pragma once

#include <memory>

#include "prefetch.h"

namespace headrace {

constexpr int kPanel = 2 * kLanes;

struct Product {
  const void* x;           // [rows, inputs]
  const float* norm;       // [inputs], or null: x is taken as it is
  const uint32_t* weight;  // packed
  const float* bias;       // [columns], or null
  const void* other;       // [rows, columns], `add` only
  void* out;               // [rows, columns]
  int32_t rows;
  int32_t inputs;
  int32_t columns;         // of out
  float epsilon;
  Upcoming* upcoming;      // fetched beside the weights, or null
};

struct Tile {  // rows of a product that are computed together
  int first_row;
  int rows;
};

struct Tiles {  // rows cut into tiles of nearly equal size
  explicit Tiles(int rows) : rows(rows), count((rows + kMaxTileRows - 1) / kMaxTileRows) {}
  int begin(int tile) const { return int(int64_t(rows) * tile / count); }
  Tile operator[](int tile) const { return {begin(tile), begin(tile + 1) - begin(tile)}; }
  int rows, count;
};

// A row of x as 16 normalized numbers at a time.
template <class T>
struct NormedRow {
  NormedRow(const Product& p, int row)
      : x(static_cast<const typename T::Element*>(p.x) + ptrdiff_t(row) * p.inputs),
        norm(p.norm),
        factor(p.norm ? norm_factor<T>(x, p.inputs, p.epsilon) : 1.f) {}
  Floats get16(int i) const {
    const Floats v = T::get16(x + i);
    return norm ? v * factor * load<Floats>(norm + i) : v;
  }
  const typename T::Element* x;
  const float* norm;
  float factor;
};

// Weights of the activations' own type. Panel [inputs / pack][32] cells (see simd.h), tile [inputs / pack][rows] cells.
template <class T>
struct Plain {
  using Activations = T;
  static ptrdiff_t row_words(int inputs) { return inputs / T::kPack; }
  static ptrdiff_t panel_words(int inputs) { return ptrdiff_t(inputs / T::kPack) * kPanel; }

  static void interleave(const Product& p, Tile tile, uint32_t* out) {
    constexpr int kCells = kLanes / T::kPack;  // cells of 16 numbers
    for (int m = 0; m < tile.rows; ++m) {
      const NormedRow<T> row(p, tile.first_row + m);
      for (int i = 0; i < p.inputs; i += kLanes) {
        alignas(64) typename T::Element numbers[kLanes];
        uint32_t cells[kCells];
        T::put16(numbers, row.get16(i));
        std::memcpy(cells, numbers, sizeof cells);
        uint32_t* to = out + ptrdiff_t(i / T::kPack) * tile.rows + m;
        for (int c = 0; c < kCells; ++c) to[ptrdiff_t(c) * tile.rows] = cells[c];
      }
    }
  }

  template <int M>
  [[gnu::always_inline]] static void multiply(const uint32_t* rows, const uint32_t* panel, int inputs,
                                              Fetcher& fetcher, Floats (&sums)[M][2]) {
    constexpr int kStretch = 32;
    for (int left = inputs / T::kPack; left > 0; left -= kStretch, rows += kStretch * M, panel += kStretch * kPanel) {
      const int depth = left < kStretch ? left : kStretch;
      tile_product<T, M, 2, 1, M>(rows, panel, kPanel, depth, sums, fetcher.stretch(depth));
    }
  }
};

// sums [M][2] of one tile and one panel. A function of its own, inlined and unrolled throughout, or the sums are kept in
// memory: measured 2.3 times as long for 128 rows. What is done with the sums is left outside: it is compiled once a row.
template <class Format, int M>
[[gnu::noinline]] void multiply_tile(const uint32_t* rows, const uint32_t* panel, int inputs, Fetcher& fetcher,
                                    Floats (*out)[2]) {
  Floats sums[M][2] = {};
  Format::template multiply<M>(rows, panel, inputs, fetcher, sums);
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    out[m][0] = sums[m][0];
    out[m][1] = sums[m][1];
  }
}

// For every panel and row of the product: finish(panel, row, first 16 sums, second 16 sums).
template <class Format, class Finish>
void multiply(const Product& p, int num_panels, const Finish& finish) {
  const ptrdiff_t row_words = Format::row_words(p.inputs), panel_words = Format::panel_words(p.inputs);
  const Tiles tiles(p.rows);
  std::unique_ptr<uint32_t[]> interleaved(new uint32_t[size_t(p.rows) * row_words]);
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int tile = 0; tile < tiles.count; ++tile)
      Format::interleave(p, tiles[tile], interleaved.get() + tiles.begin(tile) * row_words);
    Fetcher fetcher(p.upcoming, panel_words * ptrdiff_t(sizeof(uint32_t)), tiles.count);
#pragma omp for schedule(static)
    for (int panel = 0; panel < num_panels; ++panel) {
      const uint32_t* weight = p.weight + panel * panel_words;
      fetcher.begin_panel(weight);
      for (int tile = 0; tile < tiles.count; ++tile) {
        const int first_row = tiles.begin(tile);
        const uint32_t* rows = interleaved.get() + first_row * row_words;
        Floats sums[kMaxTileRows][2];
        with_tile_rows(tiles[tile].rows,
                       [&](auto count) { multiply_tile<Format, count>(rows, weight, p.inputs, fetcher, sums); });
        for (int m = 0; m < tiles[tile].rows; ++m) finish(panel, first_row + m, sums[m][0], sums[m][1]);
      }
    }
  }
}

}  // namespace headrace
