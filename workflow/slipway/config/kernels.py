"""Python packages with kernels that a GPU training can use, by what they are looked for."""

# What Transformer Engine looks for when the attention backend is `flash`.
FLASH_ATTENTION = ("flash_attn", "flash_attn_3", "flash_attn_interface", "flashattn_hopper")
# FlashInfer's compiled kernels; without one it compiles them when vLLM starts, which takes CUDA's compiler.
FLASHINFER_KERNELS = ("flashinfer_cubin", "flashinfer_jit_cache")
