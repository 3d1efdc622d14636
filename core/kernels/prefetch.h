// What is read from memory soon, fetched into the caches by products while they compute.
//
// A product of many rows is bound by arithmetic and leaves memory idle; attention is bound by memory: it reads each
// sequence's blocks once. So the products before it ask for those blocks, a line a step beside the weights, and attention
// finds them in the last cache. Its blocks come in pieces, which the threads of all products claim one by one.
//
// Weights are fetched one panel ahead, in the tiles that compute the panel before; with a single tile there is no time
// between two panels, so it fetches its own, kStepsAhead ahead.
#pragma once

#include "simd.h"

namespace headrace {

constexpr ptrdiff_t kLineBytes = 64;
constexpr int kStepsAhead = 16;  // of 128 bytes: what one core has in flight from memory

struct Upcoming {
  const char* cache;       // the layer's cache that is read next
  const int32_t* blocks;   // [num_pieces / parts]: piece i is part i % parts of block blocks[i / parts]
  int32_t parts;           // of a block
  int32_t part_bytes;      // whole lines
  int32_t num_pieces;
  int32_t claimed;         // pieces that threads have taken, or more
};

// Two streams of lines, asked for one step after the other; a stream that has ended repeats a line, which costs little.
struct Fetch {
  [[gnu::always_inline]] void operator()(int step) const {
    __builtin_prefetch(weights + step * weights_stride);
    __builtin_prefetch(weights + step * weights_stride + second_line);
    __builtin_prefetch(upcoming + step * upcoming_stride, 0, 2);  // 2: not into the first cache
  }
  const char* weights;
  const char* upcoming;
  ptrdiff_t weights_stride, second_line, upcoming_stride;
};

// What one thread has left to fetch of each stream.
class Fetcher {
 public:
  Fetcher(Upcoming* upcoming, ptrdiff_t panel_bytes, int num_tiles)
      : upcoming_(upcoming), panel_bytes_(panel_bytes), is_single_(num_tiles == 1) {}

  void begin_panel(const uint32_t* panel) {
    weights_ = reinterpret_cast<const char*>(panel) + (is_single_ ? 2 * kStepsAhead * kLineBytes : panel_bytes_);
    weights_end_ = weights_ + panel_bytes_;
  }

  // The lines of the next `steps` steps.
  [[gnu::always_inline]] Fetch stretch(int steps) {
    const ptrdiff_t stride = weights_ >= weights_end_ ? 0 : is_single_ ? 2 * kLineBytes : kLineBytes;
    Fetch fetch{weights_, weights_, stride, stride ? stride - kLineBytes : 0, 0};
    weights_ += steps * stride;
    if (piece_ + steps * kLineBytes > piece_end_) claim_piece();
    if (piece_ + steps * kLineBytes <= piece_end_) {
      fetch.upcoming = piece_;
      fetch.upcoming_stride = kLineBytes;
      piece_ += steps * kLineBytes;
    }
    return fetch;
  }

 private:
  void claim_piece() {
    if (!upcoming_ || __atomic_load_n(&upcoming_->claimed, __ATOMIC_RELAXED) >= upcoming_->num_pieces) return;
    const int index = __atomic_fetch_add(&upcoming_->claimed, 1, __ATOMIC_RELAXED);
    if (index >= upcoming_->num_pieces) return;
    const ptrdiff_t block = upcoming_->blocks[index / upcoming_->parts];
    piece_ = upcoming_->cache + (block * upcoming_->parts + index % upcoming_->parts) * upcoming_->part_bytes;
    piece_end_ = piece_ + upcoming_->part_bytes;
  }

  Upcoming* upcoming_;
  ptrdiff_t panel_bytes_;
  bool is_single_;
  const char *weights_ = nullptr, *weights_end_ = nullptr, *piece_ = nullptr, *piece_end_ = nullptr;
};

}  // namespace headrace
