// Weights in 8 or 4 bits for the product of panels.h: integer products, with activations quantized as they are read.
//
// A group of inputs of a row of x is rounded to integers in [-127, 127] times a scale of its own; a weight is an unsigned
// integer times a scale plus a minimum. Then
//   sum over groups of  x_scale * (scale * sum_i w_i x_i + minimum * sum_i x_i)
// is the product, where the inner sums are exact in 32 bits. Products of four pairs are one instruction with AVX512_VNNI.
//
//   Int8   groups of 64 inputs, one scale a column, minimum -128 scale: the minimum is what the inner sum starts with.
//          Panel [inputs/4][32 columns][4] bytes, then float32 [32] scales
//   Int4   groups of 32 inputs, a scale and a minimum a group and column: per group [4][32 columns] words, whose low
//          halves of bytes are inputs 0..15 and whose high halves are inputs 16..31, then bfloat16 [32] scales and [32]
//          minimums
//
// Inputs are padded to whole groups. Interleaved rows: per group [inputs/4][rows] words of 4 integers, the rows' scales
// (float32), and what the format makes of sum_i x_i: where the inner sum starts, or x_scale * sum_i x_i.
#pragma once

#include "panels.h"

namespace headrace {

typedef int8_t Bytes __attribute__((vector_size(16)));

// sums + four products of bytes: columns unsigned, row signed and the same for all lanes.
inline Ints dot_bytes(Ints sums, Cells columns, uint32_t row) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)columns, (__m512i)broadcast(row));
#else
  for (int byte = 0; byte < 4; ++byte)
    sums += (Ints)((columns >> (8 * byte)) & 0xffu) * int32_t(int8_t(row >> (8 * byte)));
  return sums;
#endif
}

struct Int8Weights {
  static constexpr int kGroupCells = 16;  // of four inputs
  static constexpr int kSteps = kGroupCells;  // of a group, a row of the panel each
  static constexpr int kZero = 128;
  static constexpr ptrdiff_t kGroupWords = kGroupCells * kPanel;
  static constexpr ptrdiff_t kTailWords = kPanel;

  static uint32_t of_inputs(int32_t sum, float) { return uint32_t(-kZero * sum); }
  static Ints start(uint32_t of_inputs) { return Ints{} + int32_t(of_inputs); }

  template <int M, int N>
  [[gnu::always_inline]] static void accumulate(const uint32_t* rows, const uint32_t* panel, const Fetch& fetch,
                                                Ints (&sums)[M][N]) {
    for (int k = 0; k < kGroupCells; ++k, panel += kPanel) {
      fetch(k);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n)
          sums[m][n] = dot_bytes(sums[m][n], load<Cells>(panel + n * kLanes), rows[k * M + m]);
    }
  }
  static Floats added(Floats total, Floats sums, uint32_t, const uint32_t*, int) { return total + sums; }
  static Floats finished(Floats sums, const uint32_t* tail, int n) { return sums * load<Floats>(tail + n * kLanes); }
};

struct Int4Weights {
  static constexpr int kGroupCells = 8;
  static constexpr int kSteps = kGroupCells / 2;
  static constexpr ptrdiff_t kIntegerWords = kGroupCells / 2 * kPanel;
  static constexpr ptrdiff_t kGroupWords = kIntegerWords + kPanel;
  static constexpr ptrdiff_t kTailWords = 0;

  static uint32_t of_inputs(int32_t sum, float scale) { return as_bits(sum * scale); }
  static Ints start(uint32_t) { return Ints{}; }

  template <int M, int N>
  [[gnu::always_inline]] static void accumulate(const uint32_t* rows, const uint32_t* panel, const Fetch& fetch,
                                                Ints (&sums)[M][N]) {
    for (int k = 0; k < kGroupCells / 2; ++k, panel += kPanel) {
      fetch(k);
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) {
        const Cells both = load<Cells>(panel + n * kLanes), low = both & 0x0f0f0f0fu, high = (both >> 4) & 0x0f0f0f0fu;
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          sums[m][n] = dot_bytes(sums[m][n], low, rows[k * M + m]);
          sums[m][n] = dot_bytes(sums[m][n], high, rows[(k + kGroupCells / 2) * M + m]);
        }
      }
    }
  }
  static Floats added(Floats total, Floats sums, uint32_t of_inputs, const uint32_t* panel, int n) {
    const auto* scales = reinterpret_cast<const uint16_t*>(panel + kIntegerWords) + n * kLanes;
    return total + sums * Bfloat16::get16(scales) + as_float(of_inputs) * Bfloat16::get16(scales + kPanel);
  }
  static Floats finished(Floats sums, const uint32_t*, int) { return sums; }
};

template <class T, class Weights>
struct Quantized {
  using Activations = T;
  static constexpr int kGroup = 4 * Weights::kGroupCells;      // inputs
  static constexpr int kRowWords = Weights::kGroupCells + 2;   // of a group: integers, scale, of_inputs
  static constexpr int kWideRows = 6;  // more rows than this leave registers for 16 columns at a time only

  static int groups(int inputs) { return (inputs + kGroup - 1) / kGroup; }
  static ptrdiff_t row_words(int inputs) { return groups(inputs) * kRowWords; }
  static ptrdiff_t panel_words(int inputs) { return groups(inputs) * Weights::kGroupWords + Weights::kTailWords; }

  static void interleave(const Product& p, Tile tile, uint32_t* out) {
    for (int m = 0; m < tile.rows; ++m) {
      const NormedRow<T> row(p, tile.first_row + m);
      uint32_t* to = out + m;
      for (int start = 0; start < p.inputs; start += kGroup, to += kRowWords * tile.rows)
        interleave_group(row, start, p.inputs, to, tile.rows);
    }
  }

  static void interleave_group(const NormedRow<T>& row, int start, int inputs, uint32_t* to, int stride) {
    constexpr int kVectors = kGroup / kLanes;
    Floats v[kVectors] = {}, largest = {}, poison = {};  // poison: 0, or NaN if any number is not finite
    for (int i = 0; i < kVectors && start + i * kLanes < inputs; ++i) {
      v[i] = row.get16(start + i * kLanes);
      const Floats magnitude = v[i] < 0.f ? -v[i] : v[i];
      largest = magnitude > largest ? magnitude : largest;
      poison += v[i] * 0.f;
    }
    const float top = maximum(largest), inverse = top > 0.f ? 127.f / top : 0.f;
    Ints sums = {};
    for (int i = 0; i < kVectors; ++i) {
      // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
      const Ints integers = (Ints)(v[i] * inverse + 12582912.f) - 0x4b400000;
      sums += integers;
      uint32_t cells[kLanes / 4];
      store(cells, __builtin_convertvector(integers, Bytes));
      for (int c = 0; c < kLanes / 4; ++c) to[ptrdiff_t(i * kLanes / 4 + c) * stride] = cells[c];
    }
    const float scale = top / 127.f + sum(poison);
    to[ptrdiff_t(Weights::kGroupCells) * stride] = as_bits(scale);
    to[ptrdiff_t(Weights::kGroupCells + 1) * stride] =
        Weights::of_inputs(int32_t(sum(__builtin_convertvector(sums, Floats))), scale);
  }

  template <int M>
  [[gnu::always_inline]] static void multiply(const uint32_t* rows, const uint32_t* panel, int inputs,
                                              Fetcher& fetcher, Floats (&sums)[M][2]) {
    if constexpr (M <= kWideRows) {
      multiply_columns<M, 2>(rows, panel, groups(inputs), 0, fetcher, sums);
    } else {
      multiply_columns<M, 1>(rows, panel, groups(inputs), 0, fetcher, sums);
      multiply_columns<M, 1>(rows, panel, groups(inputs), 1, fetcher, sums);
    }
  }

  template <int M, int N>
  [[gnu::always_inline]] static void multiply_columns(const uint32_t* rows, const uint32_t* panel, int groups,
                                                      int first, Fetcher& fetcher, Floats (&sums)[M][2]) {
    Floats totals[M][N] = {};
    for (int group = 0; group < groups; ++group, panel += Weights::kGroupWords, rows += kRowWords * M) {
      const uint32_t* scales = rows + Weights::kGroupCells * M;
      Ints integers[M][N];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) integers[m][n] = Weights::start(scales[M + m]);
      Weights::template accumulate<M, N>(rows, panel + first * kLanes, fetcher.stretch(Weights::kSteps), integers);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) {
          const Floats exact = __builtin_convertvector(integers[m][n], Floats);
          totals[m][n] = Weights::added(totals[m][n], exact * as_float(scales[m]), scales[M + m], panel, first + n);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) sums[m][first + n] = Weights::finished(totals[m][n], panel, first + n);
  }
};

template <class T>
using Int8 = Quantized<T, Int8Weights>;
template <class T>
using Int4 = Quantized<T, Int4Weights>;

}  // namespace headrace
