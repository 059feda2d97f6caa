"""The constants that only measurement can set, with when and where they were set, and the band that follows.

They are from eighteen configurations of six models in verl's engine alone
(docs/measurements/2026-12-02-h200-memory.jsonl) and from trainings of a Qwen2 of 630 M parameters (24 layers, hidden
896, MLP 4,864, vocabulary 151,936) measured before the project began, all on one H200 (driver 580, torch 2.11,
megatron-core 0.16.1, Transformer Engine 2.20.2, vLLM 0.22.1); tests/unit/test_memory.py compares with both. Constants
marked "assumed" have no measurement yet.
"""

GIB = float(2**30)

# --- memory ---------------------------------------------------------------------------------------------------
# CUDA context, NCCL and cuDNN of a training process: NVML's figure less what torch had reserved, 2.42-2.81 GiB
TRAINER_CONTEXT = 2.45 * GIB
# allocated in an update of a whole training beyond the terms that have a formula: 2-3.5 GiB over the six trainings
# measured before the project; of verl's engine alone nothing (benchmarks/memory.py)
UPDATE_WORKSPACE = 2.8 * GIB
# saved by layers between forward and backward, as a multiple of what `activations` adds up: fitted to nine of eighteen
# configurations; single ones say 1.10 (SmolLM2, Llama) to 1.17 (Qwen2). Why it is more has not been looked at.
ACTIVATION_EXCESS = 1.135
# reserved / allocated, 1.06-1.10 without and 1.20 with recomputation
FRAGMENTATION = 1.10
# what vLLM takes beside its share of the memory: context, CUDA graphs; from the whole GPU's peak of one training
ROLLOUT_CONTEXT = 1.4 * GIB
# of vLLM's share, what its largest batch takes while it profiles itself (assumed)
ROLLOUT_ACTIVATIONS = 1.5 * GIB
# processes of one rank in host memory: trainer, rollout engine and their workers (assumed)
HOST_PROCESSES = 12 * GIB
# verl's trainer, Ray and what they hold of a step, once a node (assumed)
HOST_NODE = 16 * GIB

# A forecast of peak memory is off by at most this share: 6 % over the trainings above, 2 % in the engine alone; more
# for layouts over several GPUs, which none of them had.
MEMORY_BAND = 0.15

# --- time -----------------------------------------------------------------------------------------------------
# Shares of the peaks that large trainings reach; assumed from published MFU (0.31-0.40 with MoE on 8-32 GPUs, verl's
# performance notes), to be set by measurement. Ranking depends on their ratios alone.
MATMUL_SHARE = 0.50
# a matrix product with so few columns, or rows, reaches half of that (assumed)
HALF_SPEED_COLUMNS = 512
HALF_SPEED_ROWS = 128
LINK_SHARE = 0.70
NETWORK_SHARE = 0.60
BANDWIDTH_SHARE = 0.70
# latency of one collective among GPUs of a node, and between nodes, seconds
NODE_LATENCY = 15e-6
NETWORK_LATENCY = 40e-6
# of one step of decoding beside reading weights and cache: scheduling, sampling, kernels too small to fill the GPU
DECODE_OVERHEAD = 4e-3
# kernels of one layer in one direction, of one micro batch, that are too small to fill the GPU
LAYER_OVERHEAD = 60e-6
# of one GPU to pinned host memory, bytes a second (PCIe 5 x16 gives 50e9 when no other GPU does the same)
HOST_LINK = 25e9
# parameters a second that Adam updates on the CPUs of a node, in host memory
HOST_ADAM = 2e9
# from the start of a job to its first step: 243-267 s by the ledger of one H200 (docs/measurements/2026-12-01)
START_UP = 300.0
# of a checkpoint to a shared file system, bytes a second and node (assumed)
SAVE_BANDWIDTH = 1e9
