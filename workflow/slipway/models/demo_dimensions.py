"""Dimensions of a demo model that its recipe does not set; known before the model is made."""

# 256 bytes, special tokens, answer tags, and what byte-pair encoding finds in the prompts. Divides by every small TP.
DEMO_VOCAB_SIZE = 512
DEMO_MAX_POSITIONS = 512
