// Embedding lookup from the packed vocabulary matrix (panels of 32 tokens, see panels.h), plain or in 8 bits.
#include "quantized.h"

namespace headrace {

template <class T>
void embed(const uint32_t* packed, const int32_t* tokens, void* out, int num_tokens, int inputs) {
  const ptrdiff_t depth = inputs / T::kPack;
#pragma omp parallel for schedule(static)
  for (int i = 0; i < num_tokens; ++i) {
    const uint32_t* cells = packed + tokens[i] / kPanel * depth * kPanel + tokens[i] % kPanel;
    uint32_t* row = static_cast<uint32_t*>(out) + i * depth;
    for (ptrdiff_t k = 0; k < depth; ++k) row[k] = cells[k * kPanel];
  }
}

template <class T>
void embed_int8(const uint32_t* packed, const int32_t* tokens, void* out, int num_tokens, int inputs) {
  const ptrdiff_t panel_words = Int8<T>::panel_words(inputs);
#pragma omp parallel for schedule(static)
  for (int i = 0; i < num_tokens; ++i) {
    const uint32_t* panel = packed + tokens[i] / kPanel * panel_words;
    const int column = tokens[i] % kPanel;
    const float scale = as_float(panel[panel_words - kPanel + column]);
    auto* row = static_cast<typename T::Element*>(out) + ptrdiff_t(i) * inputs;
    for (int k = 0; k < inputs; ++k) {
      const uint32_t cell = panel[ptrdiff_t(k / 4) * kPanel + column];
      T::put(row + k, scale * (int32_t(cell >> (k % 4 * 8) & 0xff) - Int8Weights::kZero));
    }
  }
}

}  // namespace headrace

using headrace::Bfloat16;
using headrace::Float32;

#define HEADRACE_EMBED(name, function)                                                                                  \
  extern "C" void headrace_embed_##name(const uint32_t* packed, const int32_t* tokens, void* out, int num_tokens,       \
                                        int inputs) {                                                                   \
    headrace::function(packed, tokens, out, num_tokens, inputs);                                                        \
  }

HEADRACE_EMBED(float32, embed<Float32>)
HEADRACE_EMBED(bfloat16, embed<Bfloat16>)
HEADRACE_EMBED(int8_float32, embed_int8<Float32>)
HEADRACE_EMBED(int8_bfloat16, embed_int8<Bfloat16>)
