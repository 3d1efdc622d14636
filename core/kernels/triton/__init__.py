"""Triton kernels for GPUs: one op a file, each with its caller and the reference it must equal.

| module | op |
|---|---|
| `core.kernels.triton.paged_attention` | attention over a paged cache, mixed prefill and decode |
| `core.kernels.triton.attention_merge` | joins what parts of a long context have yielded |
| `core.kernels.triton.rope_kv_write` | rotary embedding, keys and values into the cache |
| `core.kernels.triton.rms_norm` | RMS norm, with the residual stream before or behind it |
| `core.kernels.triton.gated_activation` | silu or gelu of the gate, times up |
| `core.kernels.triton.choice` | the best logit, or a draw by temperature, min_p, top_k, top_p |
| `core.kernels.triton.logprobs` | log-probabilities of given tokens |
| `core.kernels.triton.block_copy` | blocks out of the cache, into it, and within it |

A model is made of them by `core.kernels.triton.kernel_set`, with products of torch's between them
(`products`). They need only torch, triton and numpy. In a kernel `i_` is an index of a
program, `o_` are offsets, `m_` masks, `p_` pointers, `b_` what is held in registers.
"""
