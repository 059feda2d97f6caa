"""Hugging Face safetensors to Megatron `torch_dist` checkpoints and back, streaming, without a model or a GPU.

| module | owns |
|---|---|
| `bits` | comparing tensors bit by bit |
| `archive` | where a tensor's bytes lie in what `torch.save` wrote |
| `layouts` | how q/k/v, gate/up and padded vocabularies lie in Megatron's tensors |
| `hugging_face` | reading tensors of safetensors files through memory maps, writing them in place |
| `torch_dist` | reading and writing Megatron's checkpoint format, one slice at a time |
| `to_megatron` | rule `convert_megatron`, and the proof that the written files hold the source's bytes |
| `to_hf` | rule `export_hf` |

Names and shapes come from `slipway.models`.
"""
