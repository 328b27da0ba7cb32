"""The weights of a checkpoint for whoever does without Halocline: one safetensors file by the names of the one-device
model. Knows checkpoints and files; nothing of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from halocline.models import hf
from halocline.train.checkpoint import Checkpoint, complete
from halocline.train.manifest import NAME, Damaged
from halocline.train.planning import model_of
from halocline.train.run_directory import RunDirectory
from halocline.train.settings import Settings
from halocline.train.tensor_file import Heading, order, sync_directory, write

DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}


def export(source: str, out: str, dtype: str | None = None) -> str:
    """Write the weights and buffers to one file; what was done, in words."""
    checkpoint = opened(Path(source))
    cast = _dtype(dtype)
    places = checkpoint.manifest.model
    names = {**{name: name for name in places}, **checkpoint.manifest.aliases}
    headings = []
    for name, kept in names.items():
        saved = getattr(torch, places[kept].dtype)
        kind = cast if cast is not None and saved.is_floating_point else saved
        headings.append(Heading(name, places[kept].shape, kind))
    headings.sort(key=order)
    target = Path(out)
    if target.is_dir():
        raise ValueError(f"{out} is a directory: name a file in it, e.g. {target / 'weights.safetensors'}")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    write(partial, headings, (checkpoint.tensor(h.name) for h in headings), {"format": "pt"})
    os.replace(partial, target)
    sync_directory(target.parent)
    numbers = sum(torch.Size(places[kept].shape).numel() for kept in places)
    return f"wrote {out}: {len(headings)} tensors, {numbers:,} numbers, of step {checkpoint.manifest.step}"


def export_to_hf(source: str, directory: str, dtype: str | None = None) -> str:
    """Write the weights in Hugging Face's layout; what was done, in words."""
    checkpoint = opened(Path(source))
    hf.save(directory, model_of(Settings.of(**checkpoint.manifest.config)), weights(checkpoint, _dtype(dtype)))
    return f"wrote {directory}: {checkpoint.manifest.config.get('model')} of step {checkpoint.manifest.step}"


def weights(checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by their one-device names, each once."""
    for name in checkpoint.manifest.model:
        tensor = checkpoint.tensor(name)
        yield name, tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def opened(source: Path) -> Checkpoint:
    """The checkpoint at a path, or the newest of a run, held against its SHA-256."""
    if (source / NAME).is_file():
        candidates = [source]
    else:
        root = RunDirectory(source).checkpoints
        candidates = complete(root)
        if not candidates:
            raise ValueError(
                f"{source} holds no complete checkpoint: give a run's directory or runs/NAME/checkpoints/step-NNNNNN"
            )
    found = Checkpoint(candidates[0])
    try:
        found.check()
    except Damaged as error:
        offer = f": the newest before it is {candidates[1]}" if len(candidates) > 1 else ""
        raise Damaged(f"{error}{offer}") from error
    return found


def _dtype(name: str | None) -> torch.dtype | None:
    if name is not None and name not in DTYPES:
        raise ValueError(f"dtype = {name} is not known: use one of {', '.join(DTYPES)}")
    return None if name is None else DTYPES[name]
