// Rotary embedding, KV write and causal grouped-query attention over a paged cache, for any mix of prefill chunks and
// decodes, in one parallel region.
//
// Cache of a layer, in cells (see simd.h; a cell is one float32 or two bfloat16):
//   [block][kv head][ K: head_dim/pack x block_size | V: block_size/pack x head_dim ]
// K is stored so that 16 neighbouring cells belong to 16 keys, V so that they belong to 16 dimensions: both products
// of attention are then the same tile product without any sum across lanes.
//
// Work is cut into units: up to 12 (token, query head) rows of one sequence and KV head, which share every load. A
// thread claims its next unit before it computes the current one, so that it can fetch blocks kFetchBytes ahead of use
// across the border of units: scattered blocks of short sequences would otherwise wait for memory at each.
// Softmax runs over chunks of 256 keys that start at absolute positions, so a row's result depends on its own
// keys only: not on the chunking of the prompt, nor on the other rows of a unit. With a window a unit begins at the
// chunk that holds the first key any of its rows sees; a chunk without a visible key leaves a row exactly as it was.
#include <atomic>

#include "simd.h"

namespace headrace {

constexpr int kChunk = 256;     // keys between two rescalings of the output
constexpr int kMaxHeadDim = 256;
constexpr int kFetchBytes = 65536;
constexpr int kIntoL2 = 2;      // locality of __builtin_prefetch; measured 20 % faster than into L1
constexpr int kFetchStep = 128; // bytes: lines come in pairs
constexpr int kFewRows = 6;     // so few leave registers for four columns of sums
constexpr int kFetchRows = 6;   // with more rows than this a unit computes longer than its memory takes

struct Attention {
  const void* qkv;               // [tokens, (heads + 2 * kv_heads) * head_dim]
  void* cache;                   // the layer's cache
  void* out;                     // [tokens, heads * head_dim]
  const float* cos_sin;          // [positions, head_dim]: cosines, then sines
  const int32_t* token_sequence; // [tokens]
  const int32_t* first_token;    // [sequences]: index of its first token
  const int32_t* first_position; // [sequences]: position of that token
  const int32_t* block_tables;   // [sequences, block_table_stride]
  const int32_t* unit_sequence;  // [units]
  const int32_t* unit_head;      // [units]: KV head
  const int32_t* unit_first_row; // [units]: row = token of the sequence * group + query head of the group
  const int32_t* unit_num_rows;  // [units]
  int64_t block_table_stride;
  int32_t num_tokens;
  int32_t num_units;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t block_size;
  int32_t window;                // keys that a token sees, itself included; 0: all before it
  float scale;
  float softcap;                 // scores become softcap * tanh(score / softcap); 0: as they are
};

// Rotate one head by the half-split rule: dimension i pairs with i + head_dim / 2.
template <class T>
inline void rotate(const typename T::Element* head, const float* cos_sin, int size, typename T::Element* out) {
  alignas(64) float from[kMaxHeadDim], to[kMaxHeadDim];
  const int half = size / 2;
  for (int i = 0; i < size; i += kLanes) store(from + i, T::get16(head + i));
  for (int i = 0; i < half; ++i) {
    const float a = from[i], b = from[half + i], c = cos_sin[i], s = cos_sin[half + i];
    to[i] = a * c - b * s;
    to[half + i] = b * c + a * s;
  }
  for (int i = 0; i < size; i += kLanes) T::put16(out + i, load<Floats>(to + i));
}

template <class T>
inline typename T::Element* cache_tile(const Attention& a, int block, int kv_head) {
  const ptrdiff_t tile = ptrdiff_t(2) * a.block_size * a.head_dim;
  return static_cast<typename T::Element*>(a.cache) + (ptrdiff_t(block) * a.num_kv_heads + kv_head) * tile;
}

template <class T>
void write_token(const Attention& a, int token) {
  using E = typename T::Element;
  constexpr int P = T::kPack;
  const int D = a.head_dim, B = a.block_size, sequence = a.token_sequence[token];
  const int position = a.first_position[sequence] + token - a.first_token[sequence];
  const int block = a.block_tables[sequence * a.block_table_stride + position / B], slot = position % B;
  const E* row = static_cast<const E*>(a.qkv) + ptrdiff_t(token) * (a.num_heads + 2 * a.num_kv_heads) * D;
  for (int head = 0; head < a.num_kv_heads; ++head) {
    alignas(64) uint32_t key[kMaxHeadDim];
    rotate<T>(row + (a.num_heads + head) * D, a.cos_sin + ptrdiff_t(position) * D, D, reinterpret_cast<E*>(key));
    const E* value = row + (a.num_heads + a.num_kv_heads + head) * D;
    E* keys = cache_tile<T>(a, block, head);
    E* values = keys + ptrdiff_t(B) * D + ptrdiff_t(slot / P) * D * P;
    for (int c = 0; c < D / P; ++c) std::memcpy(keys + (ptrdiff_t(c) * B + slot) * P, key + c, sizeof *key);
    for (int d = 0; d < D; d += kLanes) T::put16_part(values + d * P, slot % P, value + d);
  }
}

// What a thread keeps of one unit; rows beyond num_rows do not exist (M is exact).
struct Tile {
  alignas(64) uint32_t query[kMaxTileRows][kMaxHeadDim];
  alignas(64) float out[kMaxTileRows][kMaxHeadDim];
  alignas(64) float scores[kMaxTileRows][kChunk + kLanes];  // blocks of 8 keys store 16
  alignas(64) uint32_t weights[kMaxTileRows][kChunk];
  float maxima[kMaxTileRows];
  float sums[kMaxTileRows];
  int begins[kMaxTileRows];  // position of the first key visible to the row
  int limits[kMaxTileRows];  // and of the first one that no longer is
};

// The blocks of one unit from first_block to num_blocks, and up to which of them have been fetched.
struct Unit {
  int index = 0, sequence = 0, head = 0, first_row = 0, num_rows = 0, first_block = 0, num_blocks = 0, fetched = 0;
};

inline int first_visible(const Attention& a, int position) {
  return a.window && position >= a.window ? position - a.window + 1 : 0;
}

inline int chunk_start(int key) { return key / kChunk * kChunk; }

inline Unit unit_at(const Attention& a, int index) {
  Unit u;
  if (index >= a.num_units) return u;
  u.index = index;
  u.sequence = a.unit_sequence[index];
  u.head = a.unit_head[index];
  u.first_row = a.unit_first_row[index];
  u.num_rows = a.unit_num_rows[index];
  const int group = a.num_heads / a.num_kv_heads;
  const int first = a.first_position[u.sequence] + u.first_row / group;
  const int last = a.first_position[u.sequence] + (u.first_row + u.num_rows - 1) / group;
  u.first_block = u.fetched = chunk_start(first_visible(a, first)) / a.block_size;
  u.num_blocks = last / a.block_size + 1;
  return u;
}

template <class T>
inline void fetch_blocks(const Attention& a, Unit& u, int until) {
  const ptrdiff_t bytes = ptrdiff_t(2) * a.block_size * a.head_dim * sizeof(typename T::Element);
  for (; u.fetched < until && u.fetched < u.num_blocks; ++u.fetched) {
    const int block = a.block_tables[u.sequence * a.block_table_stride + u.fetched];
    const char* lines = reinterpret_cast<const char*>(cache_tile<T>(a, block, u.head));
    for (ptrdiff_t i = 0; i < bytes; i += kFetchStep) __builtin_prefetch(lines + i, 0, kIntoL2);
  }
}

// Called when block `at` of `unit` is computed: keep kFetchBytes of this unit and the next on their way.
template <class T>
inline void fetch_ahead(const Attention& a, Unit& unit, Unit& next, int at) {
  const int block_bytes = 2 * a.block_size * a.head_dim * int(sizeof(typename T::Element));
  const int ahead = at + (kFetchBytes > block_bytes ? kFetchBytes / block_bytes : 1);
  if (unit.num_rows <= kFetchRows) fetch_blocks<T>(a, unit, ahead);
  if (next.num_rows <= kFetchRows) fetch_blocks<T>(a, next, next.first_block + ahead - unit.num_blocks);
}

template <class T, int M, int N>
inline void score_columns(Tile& t, const uint32_t* keys, int B, int depth, float scale, int column) {
  Floats acc[M][N] = {};
  tile_product<T, M, N, kMaxHeadDim, 1>(&t.query[0][0], keys, B, depth, acc);
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) store(&t.scores[m][column + n * kLanes], acc[m][n] * scale);
}

// scores[M][B] of one block of keys; with 8 keys a block the upper lanes are rubbish that the next block overwrites.
template <class T, int M>
inline void score_block(Tile& t, const uint32_t* keys, int B, int depth, float scale, int column) {
  if (B < 2 * kLanes) return score_columns<T, M, 1>(t, keys, B, depth, scale, column);
  for (int i = 0; i < B; i += 2 * kLanes)
    score_columns<T, M, 2>(t, keys + i, B, depth, scale, column + i);
}

// The same of two blocks at once: with few rows the sums of one are too few to hide how long an addition takes.
template <class T, int M>
inline void score_two_blocks(Tile& t, const uint32_t* first, const uint32_t* second, int B, int depth, float scale,
                             int column) {
  for (int i = 0; i < B; i += 2 * kLanes) {
    Floats acc[M][4] = {};
    tile_product<T, M, 4, kMaxHeadDim, 1>(&t.query[0][0], first + i, B, depth, acc, {}, second - first);
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < 4; ++n) store(&t.scores[m][column + n / 2 * B + i + n % 2 * kLanes], acc[m][n] * scale);
  }
}

template <int M>
inline void cap_scores(Tile& t, int num_keys, float softcap) {
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < num_keys; i += kLanes)
      store(&t.scores[m][i], hyperbolic_tangent(load<Floats>(&t.scores[m][i]) / softcap) * softcap);
}

// scores -> weights of one row, which sees the chunk's keys from `hidden` to `visible`: running maximum, exponentials,
// running sum. Returns the factor for the old output.
template <class T>
inline float soften_row(Tile& t, int m, int hidden, int visible, int num_keys) {
  float* scores = t.scores[m];
  auto* weights = reinterpret_cast<typename T::Element*>(t.weights[m]);
  const int padded = (num_keys + kLanes - 1) / kLanes * kLanes;
  for (int i = 0; i < hidden; ++i) scores[i] = -INFINITY;
  for (int i = visible; i < padded; ++i) scores[i] = -INFINITY;
  Floats best = broadcast(t.maxima[m]);
  for (int i = 0; i < padded; i += kLanes) {
    const Floats s = load<Floats>(scores + i);
    best = best > s ? best : s;
  }
  const float maximum_now = maximum(best);
  if (maximum_now == -INFINITY) {  // nothing visible yet: the window begins in a later chunk
    for (int i = 0; i < padded; i += kLanes) T::put16(weights + i, Floats{});
    return 1.f;
  }
  Floats total = {};
  for (int i = 0; i < padded; i += kLanes) {
    const Floats w = T::exp(load<Floats>(scores + i) - maximum_now);
    total += w;
    T::put16(weights + i, w);
  }
  const float factor = T::exp(broadcast(t.maxima[m] - maximum_now))[0];
  t.sums[m] = t.sums[m] * factor + sum(total);
  t.maxima[m] = maximum_now;
  return factor;
}

// out[M][16 N columns] = out * factor + weights * V over the chunk's blocks. Values past num_keys are never read: in
// the last half-filled cell the second number may be anything, so it is zeroed.
template <class T, int M, int N>
inline void add_value_columns(Tile& t, const uint32_t* const* values, const float* factors, int B, int D,
                              int num_keys, int column) {
  constexpr int P = T::kPack;
  Floats acc[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = load<Floats>(&t.out[m][column + n * kLanes]) * factors[m];
  for (int start = 0, b = 0; start < num_keys; start += B, ++b) {
    const int keys = num_keys - start < B ? num_keys - start : B;
    const uint32_t* weights = &t.weights[0][start / P];
    const uint32_t* panel = values[b] + column;
    tile_product<T, M, N, kChunk, 1>(weights, panel, D, keys / P, acc);
    if (keys % P) {
      uint32_t last[N * kLanes];
      for (int n = 0; n < N; ++n)
        store(last + n * kLanes, T::first_only(load<Cells>(panel + ptrdiff_t(keys / P) * D + n * kLanes)));
      tile_product<T, M, N, kChunk, 1>(weights + keys / P, last, 0, 1, acc);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) store(&t.out[m][column + n * kLanes], acc[m][n]);
}

template <class T, int M>
void attend_chunk(const Attention& a, Tile& t, Unit& unit, Unit& next, int start, int num_keys) {
  const int D = a.head_dim, B = a.block_size;
  const int32_t* blocks = a.block_tables + unit.sequence * a.block_table_stride + start / B;
  const ptrdiff_t half_bytes = ptrdiff_t(B) * D * sizeof(typename T::Element);
  const uint32_t* values[kChunk / 8];
  for (int column = 0, b = 0; column < num_keys; column += B, ++b) {
    const auto* keys = reinterpret_cast<const uint32_t*>(cache_tile<T>(a, blocks[b], unit.head));
    values[b] = keys + half_bytes / 4;
    fetch_ahead<T>(a, unit, next, start / B + b);
    if (M > kFewRows || B < 2 * kLanes) {
      score_block<T, M>(t, keys, B, D / T::kPack, a.scale, column);
    } else if (b % 2) {
      score_two_blocks<T, M>(t, values[b - 1] - half_bytes / 4, keys, B, D / T::kPack, a.scale, column - B);
    } else if (column + B >= num_keys) {
      score_block<T, M>(t, keys, B, D / T::kPack, a.scale, column);
    }
  }
  if (a.softcap) cap_scores<M>(t, num_keys, a.softcap);
  float factors[M];
  for (int m = 0; m < M; ++m) {
    const auto in_chunk = [&](int key) { return key < start ? 0 : key - start < num_keys ? key - start : num_keys; };
    factors[m] = soften_row<T>(t, m, in_chunk(t.begins[m]), in_chunk(t.limits[m]), num_keys);
  }
  int column = 0;
  if constexpr (M <= kFewRows)
    for (; column + 4 * kLanes <= D; column += 4 * kLanes)
      add_value_columns<T, M, 4>(t, values, factors, B, D, num_keys, column);
  for (; column + 2 * kLanes <= D; column += 2 * kLanes)
    add_value_columns<T, M, 2>(t, values, factors, B, D, num_keys, column);
  if (column < D) add_value_columns<T, M, 1>(t, values, factors, B, D, num_keys, column);
}

template <class T, int M>
void load_queries(const Attention& a, Tile& t, const Unit& unit) {
  using E = typename T::Element;
  const int D = a.head_dim, group = a.num_heads / a.num_kv_heads, sequence = unit.sequence;
  const ptrdiff_t qkv_stride = ptrdiff_t(a.num_heads + 2 * a.num_kv_heads) * D;
  for (int m = 0; m < M; ++m) {
    const int row = unit.first_row + m, token = row / group, head = unit.head * group + row % group;
    const int position = a.first_position[sequence] + token;
    const E* source = static_cast<const E*>(a.qkv) + (a.first_token[sequence] + token) * qkv_stride + head * D;
    rotate<T>(source, a.cos_sin + ptrdiff_t(position) * D, D, reinterpret_cast<E*>(t.query[m]));
    std::memset(t.out[m], 0, D * sizeof(float));
    t.maxima[m] = -INFINITY;
    t.sums[m] = 0.f;
    t.begins[m] = first_visible(a, position);
    t.limits[m] = position + 1;
  }
}

template <class T, int M>
void attend_unit(const Attention& a, Unit& unit, Unit& next) {
  using E = typename T::Element;
  const int D = a.head_dim, group = a.num_heads / a.num_kv_heads;
  Tile t;
  load_queries<T, M>(a, t, unit);
  const int context = t.limits[M - 1];
  for (int start = chunk_start(t.begins[0]); start < context; start += kChunk)
    attend_chunk<T, M>(a, t, unit, next, start, context - start < kChunk ? context - start : kChunk);
  for (int m = 0; m < M; ++m) {
    const int row = unit.first_row + m, head = unit.head * group + row % group;
    const ptrdiff_t token = a.first_token[unit.sequence] + row / group;
    E* out = static_cast<E*>(a.out) + (token * a.num_heads + head) * D;
    for (int d = 0; d < D; d += kLanes) T::put16(out + d, load<Floats>(&t.out[m][d]) / t.sums[m]);
  }
}

template <class T>
void paged_attention(const Attention& a) {
  std::atomic<int> claimed{0};
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int token = 0; token < a.num_tokens; ++token) write_token<T>(a, token);
    Unit next = unit_at(a, claimed.fetch_add(1));
    while (next.num_rows) {
      Unit unit = next;
      next = unit_at(a, claimed.fetch_add(1));
      with_tile_rows(unit.num_rows, [&](auto rows) { attend_unit<T, rows>(a, unit, next); });
    }
  }
}

}  // namespace headrace

extern "C" void headrace_paged_attention_float32(const headrace::Attention* a) {
  headrace::paged_attention<headrace::Float32>(*a);
}

extern "C" void headrace_paged_attention_bfloat16(const headrace::Attention* a) {
  headrace::paged_attention<headrace::Bfloat16>(*a);
}
