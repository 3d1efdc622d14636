// Root-mean-square normalization of each row: x / sqrt(mean(x^2) + epsilon) * weight, in float32 inside.
#include "simd.h"

namespace headrace {

constexpr int kParallelRows = 16;  // below, waking the other threads costs more than the work

template <class T>
inline void normalize_row(const typename T::Element* x, const float* weight, typename T::Element* out, int hidden,
                          float epsilon) {
  Floats squares = {};
  for (int i = 0; i < hidden; i += kLanes) {
    const Floats v = T::get16(x + i);
    squares += v * v;
  }
  const float factor = 1.f / std::sqrt(sum(squares) / hidden + epsilon);
  for (int i = 0; i < hidden; i += kLanes) T::put16(out + i, T::get16(x + i) * factor * load<Floats>(weight + i));
}

template <class T>
void rms_norm(const void* x, const float* weight, void* out, int num_rows, int hidden, float epsilon) {
  using E = typename T::Element;
#pragma omp parallel for schedule(static) if (num_rows >= kParallelRows)
  for (int row = 0; row < num_rows; ++row)
    normalize_row<T>(static_cast<const E*>(x) + ptrdiff_t(row) * hidden, weight,
                     static_cast<E*>(out) + ptrdiff_t(row) * hidden, hidden, epsilon);
}

}  // namespace headrace

extern "C" void headrace_rms_norm_float32(const void* x, const float* weight, void* out, int num_rows, int hidden,
                                          float epsilon) {
  headrace::rms_norm<headrace::Float32>(x, weight, out, num_rows, hidden, epsilon);
}

extern "C" void headrace_rms_norm_bfloat16(const void* x, const float* weight, void* out, int num_rows, int hidden,
                                           float epsilon) {
  headrace::rms_norm<headrace::Bfloat16>(x, weight, out, num_rows, hidden, epsilon);
}
