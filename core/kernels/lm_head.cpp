// Logits in float32, and embedding lookup, from one packed copy of the vocabulary matrix.
//
// Packed: [ceil(vocabulary / 32)][hidden / pack][32] cells (see simd.h): the cells of one step of the product lie next
// to each other for 32 tokens. Rows past the vocabulary are zero and never returned.
#include <vector>

#include "simd.h"

namespace headrace {

constexpr int kPanel = 2 * kLanes;

// [M][depth] rows -> [depth][M], so that one pointer serves all rows of a tile.
inline void interleave(const uint32_t* x, int depth, int rows, uint32_t* out) {
  for (int k = 0; k < depth; ++k)
    for (int m = 0; m < rows; ++m) out[k * rows + m] = x[ptrdiff_t(m) * depth + k];
}

template <class T, int M>
inline void panel_logits(const uint32_t* rows, const uint32_t* panel, int depth, int columns, float* out,
                         ptrdiff_t stride) {
  Floats acc[M][2] = {};
  tile_product<T, M, 2, 1, M>(rows, panel, kPanel, depth, acc);
  for (int m = 0; m < M; ++m) {
    if (columns == kPanel) {
      store(out + m * stride, acc[m][0]);
      store(out + m * stride + kLanes, acc[m][1]);
    } else {
      std::memcpy(out + m * stride, acc[m], columns * sizeof(float));
    }
  }
}

template <class T>
void lm_head(const uint32_t* x, const uint32_t* packed, float* out, int num_rows, int depth, int vocabulary) {
  std::vector<uint32_t> rows(size_t(num_rows) * depth);
  for (int row = 0; row < num_rows; row += kMaxTileRows) {
    const int m = num_rows - row < kMaxTileRows ? num_rows - row : kMaxTileRows;
    interleave(x + ptrdiff_t(row) * depth, depth, m, rows.data() + ptrdiff_t(row) * depth);
  }
  const int num_panels = (vocabulary + kPanel - 1) / kPanel;
#pragma omp parallel for schedule(dynamic, 16)
  for (int p = 0; p < num_panels; ++p) {
    const int column = p * kPanel, columns = vocabulary - column < kPanel ? vocabulary - column : kPanel;
    const uint32_t* panel = packed + ptrdiff_t(p) * depth * kPanel;
    for (int row = 0; row < num_rows; row += kMaxTileRows) {
      const int m = num_rows - row < kMaxTileRows ? num_rows - row : kMaxTileRows;
      with_tile_rows(m, [&](auto tile_rows) {
        panel_logits<T, tile_rows>(rows.data() + ptrdiff_t(row) * depth, panel, depth, columns,
                                   out + ptrdiff_t(row) * vocabulary + column, vocabulary);
      });
    }
  }
}

inline void embed_token(const uint32_t* packed, int token, int depth, uint32_t* out) {
  const uint32_t* cells = packed + ptrdiff_t(token / kPanel) * depth * kPanel + token % kPanel;
  for (int k = 0; k < depth; ++k) out[k] = cells[ptrdiff_t(k) * kPanel];
}

// Largest logit of a row and where it first stands; NaN and 0 if the row holds a NaN.
inline void row_argmax(const float* row, int width, float* value, int32_t* index) {
  Floats best = broadcast(-INFINITY);
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Floats v = load<Floats>(row + i);
    best = (v > best) | (v != v) ? v : best;  // nothing compares greater than a NaN, so it stays
  }
  float largest = -INFINITY;
  for (int lane = 0; lane < kLanes; ++lane)
    if (best[lane] > largest || best[lane] != best[lane]) largest = best[lane];
  for (; i < width; ++i)
    if (row[i] > largest || row[i] != row[i]) largest = row[i];
  int first = 0;
  while (first < width && row[first] != largest) ++first;
  *value = largest;
  *index = first < width ? first : 0;
}

}  // namespace headrace

extern "C" void headrace_lm_head_float32(const uint32_t* x, const uint32_t* packed, float* out, int num_rows,
                                         int depth, int vocabulary) {
  headrace::lm_head<headrace::Float32>(x, packed, out, num_rows, depth, vocabulary);
}

extern "C" void headrace_lm_head_bfloat16(const uint32_t* x, const uint32_t* packed, float* out, int num_rows,
                                          int depth, int vocabulary) {
  headrace::lm_head<headrace::Bfloat16>(x, packed, out, num_rows, depth, vocabulary);
}

extern "C" void headrace_argmax(const float* logits, float* values, int32_t* indices, int num_rows, int width) {
#pragma omp parallel for schedule(static)
  for (int row = 0; row < num_rows; ++row)
    headrace::row_argmax(logits + ptrdiff_t(row) * width, width, values + row, indices + row);
}

extern "C" void headrace_embed(const uint32_t* packed, const int32_t* tokens, uint32_t* out, int num_tokens,
                               int depth) {
#pragma omp parallel for schedule(static)
  for (int i = 0; i < num_tokens; ++i)
    headrace::embed_token(packed, tokens[i], depth, out + ptrdiff_t(i) * depth);
}
