"""Ranks that share a stage: tensor and sequence parallelism, FSDP, tied weights, sums of gradients and statistics."""
