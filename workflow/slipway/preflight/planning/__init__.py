"""What a training will need and take: memory by phase, time by part, and the layouts worth choosing from."""
