// Matrix products of a transformer layer with packed weights (panels.h), and what surrounds them, fused:
//
//   normed   out = rms_norm(x) * W + bias                 queries, keys and values
//   logits   the same in float32
//   add      out = x * W + bias + other                   back into the residual stream
//   silu     out = silu(rms_norm(x) * G) * (rms_norm(x) * U)
//   gelu     the same with the tanh form of GELU
//
// rms_norm and bias are left out where their pointers are null. For the gated products a panel holds 16 columns of G,
// then the same 16 of U. Each product exists for every format of weights: plain, and quantized (quantized.h).
#include "quantized.h"

namespace headrace {

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

template <class Format, class Out>
void normed(const Product& p) {
  multiply<Format>(p, (p.columns + kPanel - 1) / kPanel, [&](int panel, int r, Floats a, Floats b) {
    auto* row = static_cast<typename Out::Element*>(p.out) + ptrdiff_t(r) * p.columns;
    const int column = panel * kPanel;
    put_some<Out>(row, column, p.columns, biased(p, column, a));
    put_some<Out>(row, column + kLanes, p.columns, biased(p, column + kLanes, b));
  });
}

template <class Format>
void add(const Product& p) {
  using T = typename Format::Activations;
  using E = typename T::Element;
  multiply<Format>(p, (p.columns + kPanel - 1) / kPanel, [&](int panel, int r, Floats a, Floats b) {
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

template <class Format, Floats (*kActivation)(Floats)>
void gated(const Product& p) {
  using T = typename Format::Activations;
  multiply<Format>(p, (p.columns + kLanes - 1) / kLanes, [&](int panel, int r, Floats gate, Floats up) {
    auto* row = static_cast<typename T::Element*>(p.out) + ptrdiff_t(r) * p.columns;
    put_some<T>(row, panel * kLanes, p.columns, kActivation(gate) * up);
  });
}

}  // namespace headrace

#define HEADRACE_PRODUCTS(name, Format)                                                                              \
  extern "C" void headrace_normed_##name(const headrace::Product* p) {                                               \
    headrace::normed<Format, Format::Activations>(*p);                                                               \
  }                                                                                                                  \
  extern "C" void headrace_logits_##name(const headrace::Product* p) { headrace::normed<Format, headrace::Float32>(*p); } \
  extern "C" void headrace_add_##name(const headrace::Product* p) { headrace::add<Format>(*p); }                     \
  extern "C" void headrace_silu_##name(const headrace::Product* p) { headrace::gated<Format, headrace::silu>(*p); }  \
  extern "C" void headrace_gelu_##name(const headrace::Product* p) { headrace::gated<Format, headrace::gelu>(*p); }

HEADRACE_PRODUCTS(float32, headrace::Plain<headrace::Float32>)
HEADRACE_PRODUCTS(bfloat16, headrace::Plain<headrace::Bfloat16>)
HEADRACE_PRODUCTS(int8_float32, headrace::Int8<headrace::Float32>)
HEADRACE_PRODUCTS(int8_bfloat16, headrace::Int8<headrace::Bfloat16>)
HEADRACE_PRODUCTS(int4_float32, headrace::Int4<headrace::Float32>)
HEADRACE_PRODUCTS(int4_bfloat16, headrace::Int4<headrace::Bfloat16>)
