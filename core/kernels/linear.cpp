// Matrix products with packed weights, and what surrounds them in a transformer layer, fused:
//
//   normed   out = rms_norm(x) * W + bias                 queries, keys and values; logits in float32
//   add      out = x * W + bias + other                   back into the residual stream
//   silu     out = silu(rms_norm(x) * G) * (rms_norm(x) * U)
//   gelu     the same with the tanh form of GELU
//
// rms_norm and bias are left out where their pointers are null.
//
// Packed weight, in cells (see simd.h): [ceil(columns / 32)][inputs / pack][32]. A panel of 32 columns is one stream of
// memory; for the gated products it holds 16 columns of G, then the same 16 of U. Rows of x are first normalized and interleaved
// ([inputs / pack][rows of a tile]) by all threads together, then each thread multiplies its panels with all tiles.
//
// A result is summed over the inputs in order, by one thread: it does not depend on the other rows of the step.
#include <memory>

#include "simd.h"

namespace headrace {

constexpr int kPanel = 2 * kLanes;
constexpr int kPrefetchSteps = 16;  // of 128 bytes: what one core has in flight from memory

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
};

struct Tiles {  // rows cut into tiles of nearly equal size
  explicit Tiles(int rows) : rows(rows), count((rows + kMaxTileRows - 1) / kMaxTileRows) {}
  int begin(int tile) const { return int(int64_t(rows) * tile / count); }
  int size(int tile) const { return begin(tile + 1) - begin(tile); }
  int rows, count;
};

// One tile of x -> [inputs / pack][rows] cells, normalized if there is a norm.
template <class T>
void interleave_tile(const Product& p, const Tiles& tiles, int tile, uint32_t* out) {
  using E = typename T::Element;
  constexpr int kCells = kLanes / T::kPack;  // cells of 16 numbers
  const int rows = tiles.size(tile);
  for (int m = 0; m < rows; ++m) {
    const E* x = static_cast<const E*>(p.x) + ptrdiff_t(tiles.begin(tile) + m) * p.inputs;
    const float factor = p.norm ? norm_factor<T>(x, p.inputs, p.epsilon) : 1.f;
    for (int i = 0; i < p.inputs; i += kLanes) {
      alignas(64) E numbers[kLanes];
      uint32_t cells[kCells];
      if (p.norm) {
        T::put16(numbers, T::get16(x + i) * factor * load<Floats>(p.norm + i));
        std::memcpy(cells, numbers, sizeof cells);
      } else {
        std::memcpy(cells, x + i, sizeof cells);
      }
      uint32_t* to = out + ptrdiff_t(i / T::kPack) * rows + m;
      for (int c = 0; c < kCells; ++c) to[ptrdiff_t(c) * rows] = cells[c];
    }
  }
}

// Finish(row, panel, first 16 sums, second 16 sums) stores one row of a panel.
template <class T, int M, class Finish>
inline void multiply_tile(const uint32_t* rows, const uint32_t* panel, int depth, int first_row, const Finish& finish) {
  Floats acc[M][2] = {};
  tile_product<T, M, 2, 1, M, kPrefetchSteps>(rows, panel, kPanel, depth, acc);
  for (int m = 0; m < M; ++m) finish(first_row + m, acc[m][0], acc[m][1]);
}

// For every panel and row of the product: finish(panel, row, sums, sums).
template <class T, class Finish>
void multiply(const Product& p, int num_panels, const Finish& finish) {
  const int depth = p.inputs / T::kPack;
  const Tiles tiles(p.rows);
  std::unique_ptr<uint32_t[]> interleaved(new uint32_t[size_t(p.rows) * depth]);
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int tile = 0; tile < tiles.count; ++tile)
      interleave_tile<T>(p, tiles, tile, interleaved.get() + ptrdiff_t(tiles.begin(tile)) * depth);
#pragma omp for schedule(static)
    for (int panel = 0; panel < num_panels; ++panel) {
      const uint32_t* weight = p.weight + ptrdiff_t(panel) * depth * kPanel;
      for (int tile = 0; tile < tiles.count; ++tile) {
        const int row = tiles.begin(tile);
        with_tile_rows(tiles.size(tile), [&](auto rows) {
          multiply_tile<T, rows>(interleaved.get() + ptrdiff_t(row) * depth, weight, depth, row,
                                 [&](int r, Floats a, Floats b) { finish(panel, r, a, b); });
        });
      }
    }
  }
}

// Store 16 sums at `column` of a row, as many as there are columns.
template <class T>
inline void put_some(typename T::Element* row, int column, int columns, Floats sums) {
  if (column + kLanes <= columns) return T::put16(row + column, sums);
  for (int i = 0; column + i < columns; ++i) T::put(row + column + i, sums[i]);
}

template <class T>
inline Floats get_some(const typename T::Element* row, int column, int columns) {
  if (column + kLanes <= columns) return T::get16(row + column);
  Floats some = {};
  for (int i = 0; column + i < columns; ++i) some[i] = T::get(row + column + i);
  return some;
}

inline Floats biased(const Product& p, int column, Floats sums) {
  return p.bias ? sums + get_some<Float32>(p.bias, column, p.columns) : sums;
}

inline Floats silu(Floats x) { return x * logistic(x); }

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), and (1 + tanh y) / 2 = logistic(2 y)  (Hendrycks and Gimpel, 2016)
inline Floats gelu(Floats x) { return x * logistic(1.59576912f * (x + 0.044715f * x * x * x)); }

template <class T, class Out>
void normed(const Product& p) {
  multiply<T>(p, (p.columns + kPanel - 1) / kPanel, [&](int panel, int r, Floats a, Floats b) {
    auto* row = static_cast<typename Out::Element*>(p.out) + ptrdiff_t(r) * p.columns;
    const int column = panel * kPanel;
    put_some<Out>(row, column, p.columns, biased(p, column, a));
    put_some<Out>(row, column + kLanes, p.columns, biased(p, column + kLanes, b));
  });
}

template <class T>
void add(const Product& p) {
  using E = typename T::Element;
  multiply<T>(p, (p.columns + kPanel - 1) / kPanel, [&](int panel, int r, Floats a, Floats b) {
    const E* other = static_cast<const E*>(p.other) + ptrdiff_t(r) * p.columns;
    E* row = static_cast<E*>(p.out) + ptrdiff_t(r) * p.columns;
    const int column = panel * kPanel;
    const auto finish = [&](int at, Floats sums) {
      put_some<T>(row, at, p.columns, biased(p, at, sums) + get_some<T>(other, at, p.columns));
    };
    finish(column, a);
    finish(column + kLanes, b);
  });
}

template <class T, Floats (*kActivation)(Floats)>
void gated(const Product& p) {
  multiply<T>(p, (p.columns + kLanes - 1) / kLanes, [&](int panel, int r, Floats gate, Floats up) {
    auto* row = static_cast<typename T::Element*>(p.out) + ptrdiff_t(r) * p.columns;
    put_some<T>(row, panel * kLanes, p.columns, kActivation(gate) * up);
  });
}

}  // namespace headrace

using headrace::Bfloat16;
using headrace::Float32;
using headrace::Product;

extern "C" void headrace_normed_float32(const Product* p) { headrace::normed<Float32, Float32>(*p); }
extern "C" void headrace_normed_bfloat16(const Product* p) { headrace::normed<Bfloat16, Bfloat16>(*p); }
extern "C" void headrace_logits_float32(const Product* p) { headrace::normed<Float32, Float32>(*p); }
extern "C" void headrace_logits_bfloat16(const Product* p) { headrace::normed<Bfloat16, Float32>(*p); }
extern "C" void headrace_add_float32(const Product* p) { headrace::add<Float32>(*p); }
extern "C" void headrace_add_bfloat16(const Product* p) { headrace::add<Bfloat16>(*p); }
extern "C" void headrace_silu_float32(const Product* p) { headrace::gated<Float32, headrace::silu>(*p); }
extern "C" void headrace_silu_bfloat16(const Product* p) { headrace::gated<Bfloat16, headrace::silu>(*p); }
extern "C" void headrace_gelu_float32(const Product* p) { headrace::gated<Float32, headrace::gelu>(*p); }
extern "C" void headrace_gelu_bfloat16(const Product* p) { headrace::gated<Bfloat16, headrace::gelu>(*p); }
