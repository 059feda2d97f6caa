"""Dimensions of a demo model that its recipe does not set; known before the model is made."""

DEMO_VOCAB_SIZE = 256
DEMO_MAX_POSITIONS = 256
