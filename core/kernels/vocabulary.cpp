// Embedding lookup from the packed vocabulary matrix (see linear.cpp: panels of 32 tokens).
#include "simd.h"

namespace headrace {

inline void embed_token(const uint32_t* packed, int token, int depth, uint32_t* out) {
  constexpr int kPanel = 2 * kLanes;
  const uint32_t* cells = packed + ptrdiff_t(token / kPanel) * depth * kPanel + token % kPanel;
  for (int k = 0; k < depth; ++k) out[k] = cells[ptrdiff_t(k) * kPanel];
}

}  // namespace headrace

extern "C" void headrace_embed(const uint32_t* packed, const int32_t* tokens, uint32_t* out, int num_tokens,
                               int depth) {
#pragma omp parallel for schedule(static)
  for (int i = 0; i < num_tokens; ++i)
    headrace::embed_token(packed, tokens[i], depth, out + ptrdiff_t(i) * depth);
}
