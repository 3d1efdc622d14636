"""The device under a ModelRunner that runs Triton kernels: CUDA, or their interpreter."""
