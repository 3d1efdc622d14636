// Rotary embedding, KV write and causal grouped-query attention over a paged cache, for any mix of prefill chunks and
// decodes, in one parallel region.
//
// Cache of a layer, in cells (see simd.h; a cell is one float32 or two bfloat16):
//   [block][kv head][ K: head_dim/pack x block_size | V: block_size/pack x head_dim ]
// K is stored so that 16 neighbouring cells belong to 16 keys, V so that they belong to 16 dimensions: both products
// of attention are then the same tile product without any sum across lanes.
//
// Work is cut into items: up to 12 (token, query head) rows of one sequence, which share every load of a KV head.
// Softmax runs over chunks of 256 keys that start at absolute positions, so a row's result depends on its own
// keys only: not on the chunking of the prompt, nor on the other rows of an item.
#include "simd.h"

namespace headrace {

constexpr int kChunk = 256;     // keys between two rescalings of the output
constexpr int kMaxHeadDim = 256;

struct Attention {
  const void* qkv;               // [tokens, (heads + 2 * kv_heads) * head_dim]
  void* cache;                   // the layer's cache
  void* out;                     // [tokens, heads * head_dim]
  const float* cos_sin;          // [positions, head_dim]: cosines, then sines
  const int32_t* token_sequence; // [tokens]
  const int32_t* first_token;    // [sequences]: index of its first token
  const int32_t* first_position; // [sequences]: position of that token
  const int32_t* block_tables;   // [sequences, block_table_stride]
  const int32_t* item_sequence;  // [items]
  const int32_t* item_first_row; // [items]: row = token of the sequence * group + query head of the group
  const int32_t* item_num_rows;  // [items]
  int64_t block_table_stride;
  int32_t num_tokens;
  int32_t num_items;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t block_size;
  float scale;
};

// Rotate one head by the half-split rule: dimension i pairs with i + head_dim / 2.
template <class T>
inline void rotate(const typename T::Element* head, const float* cos_sin, int half, float* out) {
  for (int i = 0; i < half; ++i) {
    const float a = T::get(head + i), b = T::get(head + half + i);
    const float c = cos_sin[i], s = cos_sin[half + i];
    out[i] = a * c - b * s;
    out[half + i] = b * c + a * s;
  }
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
    float key[kMaxHeadDim];
    rotate<T>(row + (a.num_heads + head) * D, a.cos_sin + ptrdiff_t(position) * D, D / 2, key);
    const E* value = row + (a.num_heads + a.num_kv_heads + head) * D;
    E* keys = cache_tile<T>(a, block, head);
    E* values = keys + ptrdiff_t(B) * D + ptrdiff_t(slot / P) * D * P + slot % P;
    for (int d = 0; d < D; ++d) {
      T::put(keys + (ptrdiff_t(d / P) * B + slot) * P + d % P, key[d]);
      values[d * P] = value[d];
    }
  }
}

// What a thread keeps of one item; rows beyond num_rows do not exist (M is exact).
struct Tile {
  alignas(64) uint32_t query[kMaxTileRows][kMaxHeadDim];
  alignas(64) float out[kMaxTileRows][kMaxHeadDim];
  alignas(64) float scores[kMaxTileRows][kChunk];
  alignas(64) uint32_t weights[kMaxTileRows][kChunk];
  float maxima[kMaxTileRows];
  float sums[kMaxTileRows];
  int limits[kMaxTileRows];  // keys visible to the row
};

inline void prefetch_tile(const void* tile, ptrdiff_t bytes) {
  const char* lines = static_cast<const char*>(tile);
  for (ptrdiff_t i = 0; i < bytes; i += 64) __builtin_prefetch(lines + i);
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

// scores -> weights of one row: running maximum, exponentials, running sum. Returns the factor for the old output.
template <class T>
inline float soften_row(Tile& t, int m, int visible, int num_keys) {
  float* scores = t.scores[m];
  auto* weights = reinterpret_cast<typename T::Element*>(t.weights[m]);
  const int padded = (num_keys + kLanes - 1) / kLanes * kLanes;
  for (int i = visible; i < padded; ++i) scores[i] = -INFINITY;
  Floats best = broadcast(t.maxima[m]);
  for (int i = 0; i < padded; i += kLanes) {
    const Floats s = load<Floats>(scores + i);
    best = best > s ? best : s;
  }
  const float maximum_now = maximum(best);
  Floats total = {};
  for (int i = 0; i < padded; i += kLanes) {
    const Floats w = exp_nonpositive(load<Floats>(scores + i) - maximum_now);
    total += w;
    T::put16(weights + i, w);
  }
  const float factor = exp_nonpositive(broadcast(t.maxima[m] - maximum_now))[0];
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
void attend_chunk(const Attention& a, Tile& t, const int32_t* blocks, int kv_head, int start, int num_keys,
                  int blocks_left) {
  const int D = a.head_dim, B = a.block_size;
  const ptrdiff_t half_bytes = ptrdiff_t(B) * D * sizeof(typename T::Element);
  const uint32_t* values[kChunk / 8];
  for (int column = 0, b = 0; column < num_keys; column += B, ++b) {
    const auto* keys = reinterpret_cast<const uint32_t*>(cache_tile<T>(a, blocks[b], kv_head));
    values[b] = keys + half_bytes / 4;
    if (M <= kMaxTileRows / 2) {  // few rows: memory decides, fetch this block's values and the next one's keys
      prefetch_tile(values[b], half_bytes);
      if (b + 1 < blocks_left) prefetch_tile(cache_tile<T>(a, blocks[b + 1], kv_head), half_bytes);
    }
    score_block<T, M>(t, keys, B, D / T::kPack, a.scale, column);
  }
  float factors[M];
  for (int m = 0; m < M; ++m) {
    const int visible = t.limits[m] - start;
    factors[m] = soften_row<T>(t, m, visible < 0 ? 0 : visible < num_keys ? visible : num_keys, num_keys);
  }
  int column = 0;
  for (; column + 2 * kLanes <= D; column += 2 * kLanes)
    add_value_columns<T, M, 2>(t, values, factors, B, D, num_keys, column);
  if (column < D) add_value_columns<T, M, 1>(t, values, factors, B, D, num_keys, column);
}

template <class T, int M>
void load_queries(const Attention& a, Tile& t, int item, int kv_head) {
  using E = typename T::Element;
  const int D = a.head_dim, group = a.num_heads / a.num_kv_heads, sequence = a.item_sequence[item];
  const ptrdiff_t qkv_stride = ptrdiff_t(a.num_heads + 2 * a.num_kv_heads) * D;
  for (int m = 0; m < M; ++m) {
    const int row = a.item_first_row[item] + m, token = row / group, head = kv_head * group + row % group;
    const int position = a.first_position[sequence] + token;
    float query[kMaxHeadDim];
    const E* source = static_cast<const E*>(a.qkv) + (a.first_token[sequence] + token) * qkv_stride + head * D;
    rotate<T>(source, a.cos_sin + ptrdiff_t(position) * D, D / 2, query);
    for (int d = 0; d < D; ++d) T::put(reinterpret_cast<E*>(t.query[m]) + d, query[d]);
    std::memset(t.out[m], 0, D * sizeof(float));
    t.maxima[m] = -INFINITY;
    t.sums[m] = 0.f;
    t.limits[m] = position + 1;
  }
}

template <class T, int M>
void attend_item(const Attention& a, int item, int kv_head) {
  using E = typename T::Element;
  const int D = a.head_dim, B = a.block_size, group = a.num_heads / a.num_kv_heads;
  const int sequence = a.item_sequence[item];
  const int32_t* blocks = a.block_tables + sequence * a.block_table_stride;
  Tile t;
  load_queries<T, M>(a, t, item, kv_head);
  const int context = t.limits[M - 1], num_blocks = (context + B - 1) / B;
  for (int start = 0; start < context; start += kChunk) {
    const int num_keys = context - start < kChunk ? context - start : kChunk;
    attend_chunk<T, M>(a, t, blocks + start / B, kv_head, start, num_keys, num_blocks - start / B);
  }
  for (int m = 0; m < M; ++m) {
    const int row = a.item_first_row[item] + m, head = kv_head * group + row % group;
    E* out = static_cast<E*>(a.out) + ((a.first_token[sequence] + row / group) * ptrdiff_t(a.num_heads) + head) * D;
    for (int d = 0; d < D; d += kLanes) T::put16(out + d, load<Floats>(&t.out[m][d]) / t.sums[m]);
  }
}

template <class T>
void paged_attention(const Attention& a) {
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int token = 0; token < a.num_tokens; ++token) write_token<T>(a, token);
#pragma omp for collapse(2) schedule(dynamic)
    for (int kv_head = 0; kv_head < a.num_kv_heads; ++kv_head)
      for (int item = 0; item < a.num_items; ++item)
        with_tile_rows(a.item_num_rows[item], [&](auto rows) { attend_item<T, rows>(a, item, kv_head); });
  }
}

}  // namespace headrace

extern "C" void headrace_paged_attention_float32(const headrace::Attention* a) {
  headrace::paged_attention<headrace::Float32>(*a);
}

extern "C" void headrace_paged_attention_bfloat16(const headrace::Attention* a) {
  headrace::paged_attention<headrace::Bfloat16>(*a);
}
