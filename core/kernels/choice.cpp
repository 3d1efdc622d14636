// The best logit of a row, and one draw from a row's filtered softmax (see choice.py for the rules).
//
// A draw never sorts a row. Where top_k or top_p need an order, logits are counted into 2,048 buckets by the upper bits
// of their distance from the best one, and only the one bucket in which the border falls is sorted.
#include <algorithm>
#include <memory>

#include "simd.h"

namespace headrace {

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

struct Draw {
  const float* logits;       // [rows, width]
  const float* temperature;  // [rows] > 0
  const float* floor;        // [rows]: log(min_p), minus infinity without
  const int32_t* top_k;      // [rows], 0 without
  const float* top_p;        // [rows], 1 without
  const double* uniform;     // [rows] in [0, 1)
  int32_t* tokens;           // [rows]
  int32_t rows;
  int32_t width;
};

constexpr int kBuckets = 2048;
constexpr int kStretch = 256;  // weights summed at once
typedef float HalfFloats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));

struct Row {  // a row's scratch memory: logits below the best one, and their weights
  explicit Row(int width)
      : width(width), padded((width + kStretch - 1) / kStretch * kStretch), below(new float[padded]),
        weights(new float[padded]), counts(new int[kBuckets]), sums(new double[kBuckets]) {}
  int width, padded;
  std::unique_ptr<float[]> below, weights;
  std::unique_ptr<int[]> counts;
  std::unique_ptr<double[]> sums;
};

inline int bucket_of(float below) { return int((as_bits(below) & 0x7fffffffu) >> 20); }

// Fill `below` and `weights`; false if the row is not finite.
inline bool scale_row(Row& r, const float* logits, float temperature) {
  std::copy_n(logits, r.width, r.below.get());
  std::fill(r.below.get() + r.width, r.below.get() + r.padded, -INFINITY);
  Floats largest = broadcast(-INFINITY);
  for (int i = 0; i < r.padded; i += kLanes) {
    const Floats scaled = load<Floats>(&r.below[i]) / temperature;
    store(&r.below[i], scaled);
    largest = scaled > largest ? scaled : largest;
  }
  const float best = maximum(largest);
  if (!(best > -INFINITY && best < INFINITY)) return false;
  for (int i = 0; i < r.padded; i += kLanes) {
    const Floats below = load<Floats>(&r.below[i]) - best;
    store(&r.below[i], below);
    store(&r.weights[i], exp_nonpositive(below));
  }
  return true;
}

// Weight, in float64, of one stretch's logits not below `floor`.
inline double stretch_weight(const Row& r, int start, float floor) {
  Doubles sums = {};
  for (int i = start; i < start + kStretch; i += 8) {
    const HalfFloats below = load<HalfFloats>(&r.below[i]), weights = load<HalfFloats>(&r.weights[i]);
    sums += __builtin_convertvector(below >= floor ? weights : HalfFloats{}, Doubles);
  }
  double total = 0;
  for (int i = 0; i < 8; ++i) total += sums[i];
  return total;
}

inline double row_weight(const Row& r, float floor) {
  double total = 0;
  for (int start = 0; start < r.padded; start += kStretch) total += stretch_weight(r, start, floor);
  return total;
}

inline void fill_buckets(Row& r) {
  std::fill_n(r.counts.get(), kBuckets, 0);
  std::fill_n(r.sums.get(), kBuckets, 0.0);
  for (int i = 0; i < r.width; ++i) {
    const int bucket = bucket_of(r.below[i]);
    ++r.counts[bucket];
    r.sums[bucket] += r.weights[i];
  }
}

// The logits of one bucket, best first.
inline std::unique_ptr<float[]> sorted_bucket(const Row& r, int bucket) {
  std::unique_ptr<float[]> members(new float[r.counts[bucket]]);
  int n = 0;
  for (int i = 0; i < r.width; ++i)
    if (bucket_of(r.below[i]) == bucket) members[n++] = r.below[i];
  std::sort(members.get(), members.get() + n, [](float a, float b) { return a > b; });
  return members;
}

inline float kth_largest(const Row& r, int k) {
  int bucket = 0;
  for (; k > r.counts[bucket]; ++bucket) k -= r.counts[bucket];
  return sorted_bucket(r, bucket)[k - 1];
}

// Logit of the last of the best tokens, none below `floor`, that together hold `share` of the weight of all not below it.
inline float nucleus_border(const Row& r, float floor, double share) {
  const double wanted = share * row_weight(r, floor);
  double held = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    if (!r.counts[bucket]) continue;
    if (held + r.sums[bucket] < wanted && bucket < bucket_of(floor)) {
      held += r.sums[bucket];
      continue;
    }
    const auto members = sorted_bucket(r, bucket);
    for (int i = 0; i < r.counts[bucket]; ++i) {
      if (members[i] < floor) return floor;
      held += exp_nonpositive(broadcast(members[i]))[0];
      if (held >= wanted) return members[i];
    }
  }
  return floor;
}

// First index whose cumulative weight, of logits not below `floor` only, exceeds `uniform` times the total.
inline int invert(const Row& r, float floor, double uniform) {
  const double target = uniform * row_weight(r, floor);
  double before = 0;
  int start = 0, last = 0;
  for (; start + kStretch < r.padded; start += kStretch) {
    const double weight = stretch_weight(r, start, floor);
    if (before + weight > target) break;
    before += weight;
  }
  for (int i = start; i < r.width; ++i) {
    if (r.below[i] < floor || r.weights[i] == 0.f) continue;
    last = i;
    before += r.weights[i];
    if (before > target) break;
  }
  return last;
}

inline int draw_row(Row& r, const Draw& d, int row) {
  if (!scale_row(r, d.logits + ptrdiff_t(row) * d.width, d.temperature[row])) return 0;
  float floor = d.floor[row];
  const bool limited = d.top_k[row] > 0 && d.top_k[row] < d.width, nuclear = d.top_p[row] < 1.f;
  if (limited || nuclear) fill_buckets(r);
  if (limited) floor = std::max(floor, kth_largest(r, d.top_k[row]));
  if (nuclear) floor = nucleus_border(r, floor, d.top_p[row]);
  return invert(r, floor, d.uniform[row]);
}

}  // namespace headrace

extern "C" void headrace_argmax(const float* logits, float* values, int32_t* indices, int num_rows, int width) {
#pragma omp parallel for schedule(static)
  for (int row = 0; row < num_rows; ++row)
    headrace::row_argmax(logits + ptrdiff_t(row) * width, width, values + row, indices + row);
}

extern "C" void headrace_draw(const headrace::Draw* d) {
#pragma omp parallel
  {
    headrace::Row scratch(d->width);
#pragma omp for schedule(dynamic)
    for (int row = 0; row < d->rows; ++row) d->tokens[row] = headrace::draw_row(scratch, *d, row);
  }
}
