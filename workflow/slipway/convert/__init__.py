"""Hugging Face safetensors to Megatron `torch_dist` checkpoints and back, streaming, without a model or a GPU.

| module | owns |
|---|---|
| `bits` | comparing tensors bit by bit |
| `pickles` | pickles that name classes which are not imported |
| `archive` | what `torch.save` writes, without torch |
| `dcp_metadata` | the table of contents of torch.distributed.checkpoint, without torch |
| `layouts` | how q/k/v, gate/up and padded vocabularies lie in Megatron's tensors |
| `mapped_files`, `reservation` | reading files through memory, reserving space for them |
| `hugging_face` | reading tensors of safetensors files through memory maps, writing them in place |
| `torch_dist` | writing Megatron's checkpoint format, and reading it back, one slice at a time |
| `dcp_reader` | reading Megatron's checkpoint format whatever layout of ranks wrote it; needs torch |
| `to_megatron` | rule `convert_megatron`, and the proof that the written files hold the source's bytes |
| `to_hf` | rule `export_hf` |

Names and shapes come from `slipway.models`.
"""
