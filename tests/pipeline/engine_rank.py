"""One rank of verl's Megatron engine: train, save, load, and write down what came out.

Run by `engine_runs`, a process a rank, because a checkpoint has to be loaded into an engine that has not trained.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any


def main() -> None:
    """Do the steps asked for on the command line, in this order: load, train, save, train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--ep", type=int, default=1)
    parser.add_argument(
        "--transformer", type=json.loads, default={}, help="further fields of Megatron's config, in JSON"
    )
    parser.add_argument("--load", type=Path)
    parser.add_argument("--converted", type=Path, help="take the first weights from this Megatron checkpoint")
    parser.add_argument("--convert", type=Path, help="write the first weights as a Megatron checkpoint")
    parser.add_argument("--train", type=int, default=0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--train-after", type=int, default=0)
    parser.add_argument("--forget-adam-step", action="store_true", help="what Megatron does without the CPU backend")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    engine = make_engine(args)
    record: dict[str, Any] = {"losses": [], "grad_norms": []}
    weights_at_start = weights(engine)
    if args.convert:
        save_model(engine, args.convert)
    if args.load:
        engine.load_checkpoint(str(args.load), del_local_after_load=False)
    if args.forget_adam_step:
        for optimizer in getattr(engine.optimizer, "chained_optimizers", [engine.optimizer]):
            for state in optimizer.optimizer.state.values():
                state["step"].zero_()
    train(engine, args.train, record)
    weights_at_checkpoint = weights(engine) if args.save else {}
    if args.save:
        engine.save_checkpoint(str(args.save), global_step=args.train)
    train(engine, args.train_after, record)
    weights_at_end = weights(engine)
    if int(os.environ["RANK"]) == 0:
        import torch

        of_run = {"start": weights_at_start, "saved": weights_at_checkpoint, "end": weights_at_end}
        torch.save(of_run, args.out.with_suffix(".pt"))
    if engine.is_mp_src_rank_with_outputs() and engine.get_data_parallel_rank() == 0:
        args.out.write_text(json.dumps(record))


def make_engine(args: argparse.Namespace) -> Any:
    """Build verl's engine as its workers do."""
    import torch
    from verl.trainer.config import CheckpointConfig
    from verl.utils.distributed import initialize_global_process_group_ray
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine import EngineRegistry

    torch.set_num_threads(1)
    initialize_global_process_group_ray()
    parallel = args.tp > 1
    engine_config = McoreEngineConfig(
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        expert_model_parallel_size=args.ep,
        sequence_parallel=parallel,
        vanilla_mbridge=True,
        use_remove_padding=True,
        use_dist_checkpointing=args.converted is not None,
        dist_checkpointing_path=args.converted and str(args.converted),
        override_transformer_config={
            "sequence_parallel": parallel,
            "masked_softmax_fusion": False,
            "gradient_accumulation_fusion": False,
            "attention_backend": "local",
        }
        | args.transformer,
    )
    engine_config.use_dynamic_bsz = False
    engine_config.micro_batch_size_per_gpu = engine_config.infer_micro_batch_size_per_gpu = 2
    engine = EngineRegistry.new(
        "language_model",
        "megatron",
        model_config=HFModelConfig(path=str(args.model), use_remove_padding=True),
        engine_config=engine_config,
        optimizer_config=McoreOptimizerConfig(
            lr=1e-3,
            total_training_steps=10,
            lr_decay_style="linear",
            # verl saves the schedule but by default does not load it: a resumed run would start it again.
            use_checkpoint_opt_param_scheduler=True,
        ),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def train(engine: Any, steps: int, record: dict[str, Any]) -> None:
    """Train on one fixed batch of four sequences, of which each data-parallel rank has its share."""
    part, parts = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
    for _ in range(steps):
        with engine.train_mode():
            output = engine.train_batch(batch(part, parts), loss_function=mean_negative_log_prob)
        engine.lr_scheduler_step()
        if engine.is_mp_src_rank_with_outputs():
            record["losses"].append([float(loss) for loss in output["loss"]])
            record["grad_norms"].append(float(output["metrics"]["grad_norm"]))


def batch(part: int = 0, parts: int = 1) -> Any:
    """Return packed sequences of uneven length, the first four tokens of each without loss; or one part of them."""
    import torch
    from verl.utils import tensordict_utils

    generator = torch.Generator().manual_seed(1)
    lengths = [17, 30, 9, 24]

    def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
        share = len(rows) // parts
        return torch.nested.as_nested_tensor(rows[part * share : (part + 1) * share], layout=torch.jagged)

    tensors = {
        "input_ids": jagged([torch.randint(3, 360, (n,), generator=generator) for n in lengths]),
        "position_ids": jagged([torch.arange(n) for n in lengths]),
        "loss_mask": jagged([(torch.arange(n) >= 4).long() for n in lengths]),
    }
    settings = {
        "temperature": 1.0,
        "calculate_entropy": True,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 2,
    }
    return tensordict_utils.get_tensordict(tensor_dict=tensors, non_tensor_dict=settings)


def mean_negative_log_prob(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, dict[str, float]]:
    """Return the loss of plain language modelling: entry i of a row of `log_probs` is that of token i + 1."""
    rows = zip(model_output["log_probs"].unbind(), data["loss_mask"].unbind(), strict=True)
    loss = -sum((row[:-1].float() * mask[1:]).sum() for row, mask in rows) / data["batch_num_tokens"]
    loss = loss * data["dp_size"]  # Megatron takes the mean of the ranks' gradients
    return loss, {"loss": loss.detach().item()}


def weights(engine: Any) -> dict[str, Any]:
    """Return all weights under Hugging Face names; every rank has to call it."""
    return {name: weight.detach().clone() for name, weight in engine.get_per_tensor_param()[0]}


def save_model(engine: Any, folder: Path) -> None:
    """Write the model alone as a torch_dist checkpoint, the form which the converter writes."""
    from megatron.core import dist_checkpointing
    from verl.utils.megatron_utils import unwrap_model

    folder.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(unwrap_model(engine.module[0]).sharded_state_dict(), str(folder))


if __name__ == "__main__":  # dist_checkpointing starts processes that import this file again
    main()
