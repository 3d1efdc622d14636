// Sixteen-lane arithmetic and the one tile product that every matrix kernel here is made of.
//
// Numbers lie in 32-bit cells: one float32, or two neighbouring bfloat16. Written with compiler vector extensions,
// so any CPU can run it; AVX-512 and AVX512_BF16 replace the two operations that matter where the CPU has them.
// Every output number is a sum in a fixed order of its own row and column only, whatever else is computed with it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace headrace {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Cells __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

template <class V>
inline V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
inline void store(void* to, V v) {
  std::memcpy(to, &v, sizeof v);
}

inline Floats broadcast(float x) { return Floats{} + x; }
inline Cells broadcast(uint32_t x) { return Cells{} + x; }
inline float as_float(uint32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline uint32_t as_bits(float x) { uint32_t bits; std::memcpy(&bits, &x, 4); return bits; }

inline uint16_t to_bf16(float x) {  // nearest, ties to even; NaN stays NaN
  const uint32_t bits = as_bits(x);
  if (x != x) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// e^x for x <= 0: relative error below 2e-7, exactly 1 at 0, exactly 0 below -87, NaN for NaN.
inline Floats exp_nonpositive(Floats x) {
  const float kRound = 12582912.f;  // adding and subtracting 1.5 * 2^23 rounds to an integer
  const Floats n = (x * 1.44269504088896341f + kRound) - kRound;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
  return x < -87.f ? Floats{} : p * (Floats)exponent;
}

// The same for results that are rounded to bfloat16: relative error below 1.1e-4, half the work.
inline Floats exp_coarse(Floats x) {
  const Floats t = x * 1.44269504088896341f;
#if defined(__AVX512F__)
  const Floats n = (Floats)_mm512_roundscale_ps((__m512)t, 0);
#else
  const Floats n = (t + 12582912.f) - 12582912.f;
#endif
  const Floats r = t - n;  // e^x = 2^n 2^r, |r| <= 1/2
  const Floats p = ((broadcast(0.05500891f) * r + 0.24221099f) * r + 0.69328293f) * r + 1.f;
#if defined(__AVX512F__)
  const Floats scaled = (Floats)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  const Floats scaled = p * (Floats)((__builtin_convertvector(n, Ints) + 127) << 23);
#endif
  return x < -87.f ? Floats{} : scaled;
}

// 1 / (1 + e^-x), the logistic function.
inline Floats logistic(Floats x) {
  const Floats e = exp_nonpositive(x < 0.f ? x : -x);
  return (x < 0.f ? e : broadcast(1.f)) / (1.f + e);
}

// Absolute error below 2e-7; NaN for NaN.
inline Floats hyperbolic_tangent(Floats x) {
  const Floats magnitude = x < 0.f ? -x : x;
  const Floats e = exp_nonpositive(-2.f * magnitude);
  const Floats far = (1.f - e) / (1.f + e);
  const Floats square = x * x;  // near 0 the difference above would lose digits: Taylor's series
  const Floats near = x + x * square * (-3.33333333e-1f + square * (1.33333333e-1f + square * -5.39682540e-2f));
  return magnitude < 0.125f ? near : x < 0.f ? -far : far;
}

inline float sum(Floats v) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  return v[0];
}

inline float maximum(Floats v) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) v[i] = v[i] > v[i + half] ? v[i] : v[i + half];
  return v[0];
}

struct Float32 {
  using Element = float;
  static constexpr int kPack = 1;  // numbers in a cell
  static float get(const Element* x) { return *x; }
  static void put(Element* to, float x) { *to = x; }
  static Floats get16(const Element* x) { return load<Floats>(x); }
  static void put16(Element* to, Floats v) { store(to, v); }
  static void put16_part(Element* cells, int, const Element* x) { store(cells, load<Floats>(x)); }
  static Cells first_only(Cells cells) { return cells; }
  static Floats exp(Floats x) { return exp_nonpositive(x); }
  static Floats multiply_add(Floats sum, Cells column, uint32_t row) {
    return sum + (Floats)column * as_float(row);
  }
};

struct Bfloat16 {
  using Element = uint16_t;
  static constexpr int kPack = 2;
  static float get(const Element* x) { return as_float(uint32_t(*x) << 16); }
  static void put(Element* to, float x) { *to = to_bf16(x); }
  static Floats get16(const Element* x) {
    typedef uint16_t Halves __attribute__((vector_size(32)));
    return (Floats)(__builtin_convertvector(load<Halves>(x), Cells) << 16);
  }
  static void put16(Element* to, Floats v) {
#if defined(__AVX512BF16__)
    const __m256bh halves = _mm512_cvtneps_pbh((__m512)v);
    std::memcpy(to, &halves, sizeof halves);
#else
    for (int i = 0; i < kLanes; ++i) to[i] = to_bf16(v[i]);
#endif
  }
  // 16 numbers into the first or second halves of 16 cells. The other halves are not touched: they may be another thread's.
  static void put16_part(Element* cells, int part, const Element* x) {
#if defined(__AVX512BW__)
    typedef uint16_t Halves __attribute__((vector_size(32)));
    const Cells wide = __builtin_convertvector(load<Halves>(x), Cells) << (16 * part);
    _mm512_mask_storeu_epi16(cells, part ? 0xaaaaaaaau : 0x55555555u, (__m512i)wide);
#else
    for (int i = 0; i < kLanes; ++i) cells[2 * i + part] = x[i];
#endif
  }
  static Cells first_only(Cells cells) { return cells & 0xffffu; }  // zero the odd numbers
  static Floats exp(Floats x) { return exp_coarse(x); }
  static Floats multiply_add(Floats sum, Cells column, uint32_t row) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)column, (__m512bh)broadcast(row));
#else
    sum += (Floats)(column << 16) * as_float(row << 16);
    return sum + (Floats)(column & 0xffff0000u) * as_float(row & 0xffff0000u);
#endif
  }
};

// What rms_norm multiplies x [size] with, before its weights.
template <class T>
inline float norm_factor(const typename T::Element* x, int size, float epsilon) {
  Floats squares = {};
  for (int i = 0; i < size; i += kLanes) {
    const Floats v = T::get16(x + i);
    squares += v * v;
  }
  return 1.f / std::sqrt(sum(squares) / size + epsilon);
}

struct FetchNothing {
  void operator()(int) const {}
};

// acc[M rows][N * 16 columns] += rows[M][depth] * panel[depth][columns], in cells.
// Row m's cell k lies at rows[m * kRowStride + k * kDepthStride], column cells of step k at panel[k * panel_stride].
// Each further pair of columns lies pair_stride behind the one before it. fetch(k) is called in every step: there memory
// that is read later can be asked for.
template <class T, int M, int N, int kRowStride, int kDepthStride, class Fetch = FetchNothing>
[[gnu::always_inline]] inline void tile_product(const uint32_t* rows, const uint32_t* panel,
                                                ptrdiff_t panel_stride, int depth,
                                                Floats (&acc)[M][N], const Fetch& fetch = {},
                                                ptrdiff_t pair_stride = 2 * kLanes) {
  for (int k = 0; k < depth; ++k) {
    Cells columns[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) columns[n] = load<Cells>(panel + n / 2 * pair_stride + n % 2 * kLanes);
    fetch(k);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const uint32_t row = rows[m * kRowStride];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) acc[m][n] = T::multiply_add(acc[m][n], columns[n], row);
    }
    rows += kDepthStride;
    panel += panel_stride;
  }
}

// Calls body.template operator()<M>() with M = rows, 1 <= rows <= 12.
constexpr int kMaxTileRows = 12;
template <class Body>
inline void with_tile_rows(int rows, Body&& body) {
  switch (rows) {
    case 1: return body(std::integral_constant<int, 1>{});
    case 2: return body(std::integral_constant<int, 2>{});
    case 3: return body(std::integral_constant<int, 3>{});
    case 4: return body(std::integral_constant<int, 4>{});
    case 5: return body(std::integral_constant<int, 5>{});
    case 6: return body(std::integral_constant<int, 6>{});
    case 7: return body(std::integral_constant<int, 7>{});
    case 8: return body(std::integral_constant<int, 8>{});
    case 9: return body(std::integral_constant<int, 9>{});
    case 10: return body(std::integral_constant<int, 10>{});
    case 11: return body(std::integral_constant<int, 11>{});
    default: return body(std::integral_constant<int, 12>{});
  }
}

}  // namespace headrace
