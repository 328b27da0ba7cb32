"""`halocline export`: the weights of a run as one plain safetensors file for a one-device model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Writes the weights of a checkpoint, whatever plan it was trained under, as one safetensors file with the names of
    the one-device model, or in Hugging Face's layout."""

    source: str | None = None
    """A run's directory (its newest checkpoint is taken) or a checkpoint's. May be given as a plain word."""
    out: str | None = None
    """The file to write, e.g. model.safetensors."""
    dtype: str | None = None
    """float64, float32, float16 or bfloat16 for floating-point tensors (left out: as they were trained)."""
    to_hf: str | None = None
    """A directory to write in Hugging Face's layout, for the models that have one."""


def run(options: Options) -> int:
    if options.source is None:
        raise ValueError("nothing to export: write halocline export RUN --out model.safetensors")
    if (options.out is None) == (options.to_hf is None):
        given = "neither --out nor --to-hf is" if options.out is None else "both --out and --to-hf are"
        raise ValueError(f"{given} given: give one of them, e.g. --out model.safetensors")

    from halocline.train.export import export, export_to_hf

    if options.to_hf is not None:
        print(export_to_hf(options.source, options.to_hf, options.dtype))
    else:
        assert options.out is not None
        print(export(options.source, options.out, options.dtype))
    return 0
