"""A parallel layout: how Megatron-core spreads one model over ranks. Whether it is allowed is preflight's to say."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel groups, in ranks; the names are those of Megatron-core.

    Only `tensor` x `pipeline` x `context` x `data` make up the world: sequence parallelism uses the tensor group, and
    the experts are spread over the same ranks once more, as `expert_tensor` x `expert` x `pipeline` x `expert_data`.
    """

    world: int
    """Ranks that train: nodes x GPUs a node."""
    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int | None = None
    """Model chunks a pipeline stage; None: one, and no interleaving."""
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    """Tensor parallel size in the experts; None: `tensor`, as in Megatron-core."""
    sequence: bool = False
    """Whether norms and dropout are sharded along the sequence within the tensor group."""
    first_stage_layers: int | None = None
    """Layers of the first pipeline stage where it differs from the others."""
    last_stage_layers: int | None = None
    embedding_as_layer: bool = False
    """Whether the split over stages counts the embedding as one layer."""
    loss_as_layer: bool = False
    """Whether the split over stages counts the output layer and loss as one layer."""

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one copy of the model and of a batch: TP x PP x CP."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Data parallel size, rounded down."""
        return self.world // self.model_ranks

    @property
    def tensor_in_experts(self) -> int:
        """Tensor parallel size in the experts (ETP)."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold one copy of all experts: ETP x EP x PP."""
        return self.tensor_in_experts * self.expert * self.pipeline

    @property
    def expert_data(self) -> int:
        """Data parallel size of the experts, rounded down."""
        return self.world // self.expert_ranks

    @property
    def chunks(self) -> int:
        """Chunks that the layers are split into: stages x virtual stages."""
        return self.pipeline * (self.virtual_pipeline or 1)
