"""What a DeepSeek-V3's `config.json` says beyond its sizes, as fields of Megatron-core's `MLATransformerConfig`.

mbridge 0.15.1 passes on none of these (mbridge/models/deepseek_v3.py): it has groups of experts not at all, and looks
for YaRN where transformers 5 no longer says it. Needs neither torch nor Megatron-core.
"""

from collections.abc import Mapping
from typing import Any

from slipway.errors import SlipwayError

# transformers adds up so many of a group's best scores, whatever else config.json says; Megatron-core as many as
# experts come out of each chosen group (transformers/models/deepseek_v3/modeling_deepseek_v3.py,
# route_tokens_to_experts; megatron/core/transformer/moe/moe_utils.py, group_limited_topk)
_SCORES_OF_A_GROUP = 2


def transformer_fields(config: Mapping[str, Any], where: str = "config.json") -> dict[str, Any]:
    """Return the fields that make Megatron-core compute what the model was made for.

    Keys that are left out have the defaults of transformers 5. `where` names the `config.json` in messages. Raises
    `SlipwayError` for what Megatron-core computes otherwise.
    """
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if kv_heads not in (None, heads):
        raise SlipwayError(
            f"{where}: num_key_value_heads is {kv_heads!r}, but latent attention gives each of the {heads} heads its "
            "own key and value; use the same number"
        )
    if not config.get("n_shared_experts", 1):
        raise SlipwayError(
            f"{where}: n_shared_experts is {config['n_shared_experts']!r}, but verl's Megatron model has at least "
            "one; use a model with shared experts"
        )
    return _expert_groups(config, where) | _positions(config, where)


def _expert_groups(config: Mapping[str, Any], where: str) -> dict[str, int]:
    """A token's experts come from its best groups only; nothing where there are no groups, or all are chosen."""
    groups, chosen = config.get("n_group", 8) or 1, config.get("topk_group", 4) or 1
    if groups == chosen or groups == 1:
        return {}
    per_token = config["num_experts_per_tok"]
    if per_token // chosen != _SCORES_OF_A_GROUP:
        raise SlipwayError(
            f"{where}: topk_group is {chosen} and num_experts_per_tok {per_token}, but Megatron-core ranks groups of "
            f"experts as this model does only for {_SCORES_OF_A_GROUP} experts from each chosen group (topk_group "
            f"{per_token // _SCORES_OF_A_GROUP}); use a model of which that holds, or that has one group"
        )
    return {"moe_router_num_groups": groups, "moe_router_group_topk": chosen}


def _positions(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (rope.get("rope_type") or rope.get("type") or "default") == "default":
        return {"rope_type": "rope", "rotary_scaling_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}
    for key in ("factor", "original_max_position_embeddings"):
        value = rope.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 1:
            raise SlipwayError(f"{where}: {key} of its YaRN position embedding is {value!r}, but must be at least 1")
    if rope.get("attention_factor") is not None or rope.get("truncate", True) is not True:
        raise SlipwayError(
            f"{where}: its YaRN position embedding has attention_factor {rope.get('attention_factor')!r} and truncate "
            f"{rope.get('truncate', True)!r}, which Megatron-core does not take; use a model without these keys"
        )
    scale, scale_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if bool(scale) is not bool(scale_all):
        raise SlipwayError(
            f"{where}: its YaRN position embedding has mscale {scale!r} and mscale_all_dim {scale_all!r}; "
            "transformers and Megatron-core agree on both or neither of them only"
        )
    return {
        "rope_type": "yarn",
        "rotary_scaling_factor": rope["factor"],
        "original_max_position_embeddings": rope["original_max_position_embeddings"],
        "beta_fast": rope.get("beta_fast") or 32,
        "beta_slow": rope.get("beta_slow") or 1,
        "mscale": scale or 1.0,
        "mscale_all_dim": scale_all or 0.0,
    }
