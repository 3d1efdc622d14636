// RMS norms that stand between products, where no product can take them in:
//
//   norm_add    out = other + rms_norm(x)                  behind attention or MLP, into the residual stream
//   norm_heads  queries and keys of a row of qkv, in place, before they are rotated
//
// Sums are float32; each result is rounded once. A row is computed by one thread.
#include "simd.h"

namespace headrace {

struct NormAdd {
  const void* x;      // [rows, size]
  const float* norm;  // [size]
  const void* other;  // [rows, size]
  void* out;          // [rows, size]
  int32_t rows;
  int32_t size;
  float epsilon;
};

struct NormHeads {
  void* qkv;                // [rows, stride]: queries, keys, values
  const float* query_norm;  // [query_size]
  const float* key_norm;    // [key_size]
  int32_t rows;
  int32_t stride;
  int32_t queries;          // pieces of a row that are normalized for themselves, each of query_size
  int32_t query_size;
  int32_t keys;
  int32_t key_size;
  float epsilon;
};

template <class T>
void norm_add(const NormAdd& n) {
  using E = typename T::Element;
#pragma omp parallel for schedule(static)
  for (int row = 0; row < n.rows; ++row) {
    const ptrdiff_t start = ptrdiff_t(row) * n.size;
    const E* x = static_cast<const E*>(n.x) + start;
    const E* other = static_cast<const E*>(n.other) + start;
    E* out = static_cast<E*>(n.out) + start;
    const float factor = norm_factor<T>(x, n.size, n.epsilon);
    for (int i = 0; i < n.size; i += kLanes)
      T::put16(out + i, T::get16(other + i) + T::get16(x + i) * factor * load<Floats>(n.norm + i));
  }
}

template <class T>
inline void norm_pieces(typename T::Element* x, const float* norm, int count, int size, float epsilon) {
  for (int piece = 0; piece < count; ++piece, x += size) {
    const float factor = norm_factor<T>(x, size, epsilon);
    for (int i = 0; i < size; i += kLanes) T::put16(x + i, T::get16(x + i) * factor * load<Floats>(norm + i));
  }
}

template <class T>
void norm_heads(const NormHeads& n) {
#pragma omp parallel for schedule(static)
  for (int row = 0; row < n.rows; ++row) {
    auto* queries = static_cast<typename T::Element*>(n.qkv) + ptrdiff_t(row) * n.stride;
    norm_pieces<T>(queries, n.query_norm, n.queries, n.query_size, n.epsilon);
    norm_pieces<T>(queries + n.queries * n.query_size, n.key_norm, n.keys, n.key_size, n.epsilon);
  }
}

}  // namespace headrace

using headrace::Bfloat16;
using headrace::Float32;

extern "C" void headrace_norm_add_float32(const headrace::NormAdd* n) { headrace::norm_add<Float32>(*n); }
extern "C" void headrace_norm_add_bfloat16(const headrace::NormAdd* n) { headrace::norm_add<Bfloat16>(*n); }
extern "C" void headrace_norm_heads_float32(const headrace::NormHeads* n) { headrace::norm_heads<Float32>(*n); }
extern "C" void headrace_norm_heads_bfloat16(const headrace::NormHeads* n) { headrace::norm_heads<Bfloat16>(*n); }
