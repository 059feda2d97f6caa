"""mbridge's DeepSeek-V3, so that megatron-core 0.16.1 and transformers 5 can build it, as the model was made.

mbridge 0.15.1 passes `max_position_embeddings`, which megatron-core's `MLATransformerConfig` no longer has; it reads
`rope_theta`, which transformers 5 moved into `rope_parameters`; it drops YaRN, because it asks for `rope_scaling` in
a way that transformers 5 answers with no; and it lets a token choose its experts from all of their groups.
"""

from typing import Any

from mbridge.core import register_model
from mbridge.models.deepseek_v3 import DeepseekV3Bridge

from slipway.models.deepseek_v3 import transformer_fields


@register_model("deepseek_v3")
class CorrectedDeepseekV3Bridge(DeepseekV3Bridge):  # type: ignore[misc]
    """What verl gets for this architecture instead of mbridge's own."""

    def _build_config(self) -> Any:
        # verl sets it as well, but only after the config is built
        self.hf_config.rope_theta = self.hf_config.rope_parameters["rope_theta"]
        return super()._build_config()

    def _build_base_config(self, text_config_key: str | None = None, **fields: Any) -> Any:
        fields.pop("max_position_embeddings", None)
        fields |= transformer_fields(self.hf_config.to_dict())
        return super()._build_base_config(text_config_key, **fields)
