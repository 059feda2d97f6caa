"""mbridge's Mixtral, so that its weights reach the rollout with transformers 5.

Of a `config.json` without `head_dim`, as published ones are, transformers 5 makes one where it is None. mbridge 0.15.1
takes it as it is, and fails where it splits queries, keys and values: when the weights go to the rollout.
"""

from typing import Any

from mbridge.core import register_model
from mbridge.models.mixtral import MixtralBridge


@register_model("mixtral")
class CorrectedMixtralBridge(MixtralBridge):  # type: ignore[misc]
    """What verl gets for this architecture instead of mbridge's own."""

    def _build_config(self) -> Any:
        config = self.hf_config
        if config.head_dim is None:
            config.head_dim = config.hidden_size // config.num_attention_heads
        return super()._build_config()
