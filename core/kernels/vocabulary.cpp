// Embedding lookup from the packed vocabulary matrix (see linear.cpp: panels of 32 tokens), and the best logit of a row.
#include "simd.h"

namespace headrace {

inline void embed_token(const uint32_t* packed, int token, int depth, uint32_t* out) {
  constexpr int kPanel = 2 * kLanes;
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

extern "C" void headrace_embed(const uint32_t* packed, const int32_t* tokens, uint32_t* out, int num_tokens,
                               int depth) {
#pragma omp parallel for schedule(static)
  for (int i = 0; i < num_tokens; ++i)
    headrace::embed_token(packed, tokens[i], depth, out + ptrdiff_t(i) * depth);
}

extern "C" void headrace_argmax(const float* logits, float* values, int32_t* indices, int num_rows, int width) {
#pragma omp parallel for schedule(static)
  for (int row = 0; row < num_rows; ++row)
    headrace::row_argmax(logits + ptrdiff_t(row) * width, width, values + row, indices + row);
}
