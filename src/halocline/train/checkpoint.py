"""Checkpoints: a directory of safetensors files and a manifest, by the names of the one-device model.

    checkpoints/
      step-000120/                  complete: it got this name when everything in it was on the disk
        rank-00000.safetensors      what rank 0 was given to write; every tensor is in one file
        rank-00001.safetensors
        manifest.json               written last
      .step-000130.partial/         the process died while writing; nobody reads it

Any plan reads what any other wrote: each rank reads the tensors it holds. Knows nothing of the loop.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from halocline.runtime.engine import Engine
from halocline.runtime.loading import Saved, fill, load_model, load_optimizers, misfit, some, tensors_of, together
from halocline.runtime.processes.world import World, gathered, raise_alike
from halocline.runtime.state import Holding, holdings, kind_of
from halocline.train.manifest import NAME, OPTIMIZER, RANDOM, Damaged, Manifest, TensorEntry
from halocline.train.tensor_file import Heading, digest_of, order, sync_directory, write

PREFIX = "step-"


def name_of(step: int) -> str:
    return f"{PREFIX}{step:06d}"


# -- writing -------------------------------------------------------------------------------------------------------


def save(
    root: Path, engine: Engine, state: dict[str, Any], config: dict[str, Any], versions: dict[str, str] | None = None
) -> Path:
    """Write a checkpoint of the engine under `root`. Every rank calls this; it returns when the checkpoint is whole."""
    world, step = engine.world, engine.steps
    final = root / name_of(step)
    partial = root / f".{final.name}.partial"
    raise_alike(world, _attempt(step, _fresh, partial) if world.rank == 0 else None)
    held = holdings(engine)
    if world.rank == 0:
        held.tensors.append(Holding(RANDOM, torch.random.get_rng_state(), 0))
    # One order of all tensors on all ranks: whoever must meet to make one whole meets at the same point.
    tensors = sorted(held.tensors, key=lambda h: order(_heading(h)))
    mine = [_heading(h) for h in tensors if h.writer == world.rank]
    file = f"rank-{world.rank:05d}.safetensors"
    part: dict[str, Any] = {"file": file, "tensors": {}, "aliases": held.aliases, "numbers": held.numbers}
    values = _wholes(tensors, world.rank)

    def write_mine() -> None:
        if mine:
            part["written"] = vars(write(partial / file, mine, values, {"format": "pt"}))
            part["tensors"] = {h.name: [list(h.shape), str(h.dtype).removeprefix("torch.")] for h in mine}

    error = _attempt(step, write_mine)
    for _ in values:  # whatever this rank does not write, and all the rest if it failed
        pass
    raise_alike(world, error)
    parts = gathered(world, part)
    manifest = Manifest(
        step=step,
        optimizer=kind_of(engine),
        state=state,
        config=config,
        plan=engine.plan.to_toml(),
        versions=versions or {},
        **_joined(parts),
    )
    raise_alike(world, _attempt(step, _complete, manifest, partial, final) if world.rank == 0 else None)
    return final


def _heading(holding: Holding) -> Heading:
    name = f"{OPTIMIZER}{holding.name}.{holding.key}" if holding.key else holding.name
    return Heading(name, tuple(holding.tensor.shape), holding.tensor.dtype)


def _wholes(tensors: Sequence[Holding], rank: int) -> Iterator[Tensor]:
    for holding in tensors:
        whole = holding.whole()
        if holding.writer == rank:
            yield whole


def _attempt(step: int, do: Callable[..., None], *args: Any) -> Exception | None:
    """The error of something that may fail on this rank alone, told as what it means."""
    try:
        do(*args)
        return None
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        return ValueError(
            f"the checkpoint of step {step} could not be written: {reason.lower()}{where}: make room or choose another "
            f"--run-dir; earlier checkpoints are as they were"
        )


def _fresh(partial: Path) -> None:
    """An empty directory; what other attempts left is removed."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    for old in partial.parent.glob(f".{PREFIX}*"):
        shutil.rmtree(old)
    partial.mkdir()


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks wrote, as fields of a manifest."""
    fields: dict[str, dict[str, Any]] = {"files": {}, "tensors": {}, "aliases": {}, "numbers": {}}
    for part in parts:
        if part["tensors"]:
            fields["files"][part["file"]] = part["written"]
        for name, (shape, dtype) in part["tensors"].items():
            fields["tensors"].setdefault(name, TensorEntry(part["file"], tuple(shape), dtype))
        fields["aliases"] |= part["aliases"]
        for name, numbers in part["numbers"].items():
            fields["numbers"].setdefault(name, {}).update(numbers)
    return fields


def _complete(manifest: Manifest, partial: Path, final: Path) -> None:
    """Write the manifest and give the directory its name."""
    manifest.save(partial)
    sync_directory(partial)
    if final.exists():  # a run that went on from an earlier checkpoint has come to this step again
        final.rename(final.with_name(f".{final.name}.replaced"))
    partial.rename(final)
    sync_directory(final.parent)
    shutil.rmtree(final.with_name(f".{final.name}.replaced"), ignore_errors=True)


def prune(root: Path, keep: int, step: int) -> None:
    """Delete all but the newest complete checkpoints up to `step`, which has just been written. Those beyond it are of
    a future that the run has left by going on from an earlier one."""
    found = complete(root)
    future = [path for path in found if _step(path) > step]
    for old in (*future, *[path for path in found if path not in future][keep:]):
        # Out of sight first: one that is half deleted must not look complete.
        gone = old.with_name(f".{old.name}.deleted")
        old.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


# -- reading -------------------------------------------------------------------------------------------------------


def complete(root: Path) -> list[Path]:
    """The complete checkpoints under a directory, newest first."""
    found = [path for path in root.glob(f"{PREFIX}*") if path.name[len(PREFIX) :].isdigit()]
    return sorted((path for path in found if (path / NAME).is_file()), key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix(PREFIX))


class Checkpoint:
    """A checkpoint to read from. Only what is asked for is read."""

    def __init__(self, path: Path) -> None:
        self.path, self.manifest = path, Manifest.load(path)
        self._open: dict[str, Any] = {}

    def tensor(self, name: str) -> Tensor:
        """A tensor by its one-device name, or one of the optimizer's."""
        name = self.manifest.aliases.get(name, name)
        file = self.manifest.tensors[name].file
        if file not in self._open:
            self._open[file] = safe_open(self.path / file, framework="pt")
        return self._open[file].get_tensor(name)  # type: ignore[no-any-return]

    def check(self, world: World | None = None) -> None:
        """Hold every file against its SHA-256, each by one of the ranks; all raise alike if one is damaged."""
        rank, size = (world.rank, world.size) if world is not None else (0, 1)
        error = None
        for number, (file, said) in enumerate(sorted(self.manifest.files.items())):
            if number % size == rank and error is None:
                error = self._damage(file, said)
        if world is None:
            if error is not None:
                raise error
            return
        for story in gathered(world, None if error is None else str(error)):
            if story is not None:
                raise Damaged(story)

    def _damage(self, file: str, said: dict[str, Any]) -> Damaged | None:
        path = self.path / file
        if not path.is_file():
            return Damaged(f"{path} is missing")
        found = vars(digest_of(path))
        if found != said:
            what = f"{found['bytes']} bytes and not {said['bytes']}"
            if found["bytes"] == said["bytes"]:
                what = f"SHA-256 {found['sha256'][:12]}... and not {said['sha256'][:12]}..."
            return Damaged(f"{path} is damaged: it has {what}")
        return None


def newest(world: World, root: Path, say: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
    """The newest complete and undamaged checkpoint under a directory; None where there is none at all.

    A damaged one is named through `say` and the one before it is taken. Every rank calls this and finds the same.
    """
    names = gathered(world, [path.name for path in complete(root)])[0]
    for name in names:
        try:
            return checked(world, root / name)
        except Damaged as error:
            say(f"{error}; going on from the checkpoint before it")
    if names:
        raise ValueError(f"none of the {len(names)} checkpoints under {root} can be read: start again without --resume")
    return None


def checked(world: World, path: Path) -> Checkpoint:
    """A certain checkpoint, undamaged. Every rank calls this."""
    found, error = None, None
    try:
        found = Checkpoint(path)
    except ValueError as raised:
        error = raised
    stories = gathered(world, [None if error is None else str(error), isinstance(error, Damaged)])
    for story, damaged in stories:
        if story is not None:
            raise Damaged(story) if damaged else ValueError(story)
    assert found is not None
    found.check(world)
    return found


def chosen(world: World, path: Path) -> Checkpoint:
    """A certain checkpoint that the user has named; if it is damaged, the error offers the one before it."""
    try:
        return checked(world, path)
    except Damaged as error:
        before = complete(path.parent)
        before = before[before.index(path) + 1 :] if path in before else []
        offer = f": the newest before it is --resume {before[0]}" if before else ""
        raise Damaged(f"{error}{offer}") from error


# -- into an engine ------------------------------------------------------------------------------------------------


def restore(engine: Engine, checkpoint: Checkpoint) -> None:
    """Parameters, buffers, optimizer state, random state and the number of steps. Every rank calls this."""
    saved = _saved(checkpoint)
    together(engine.world, lambda: load_model(engine, saved))
    together(engine.world, lambda: load_optimizers(engine, saved))
    if RANDOM in checkpoint.manifest.tensors:
        torch.random.set_rng_state(checkpoint.tensor(RANDOM))
    engine.steps = checkpoint.manifest.step


def _saved(checkpoint: Checkpoint) -> Saved:
    manifest = checkpoint.manifest
    shapes = {name: place.shape for name, place in manifest.model.items()}
    shapes |= {alias: shapes[name] for alias, name in manifest.aliases.items()}
    keys: dict[str, list[str]] = {}
    for name in manifest.tensors:
        if name.startswith(OPTIMIZER):
            parameter, _, key = name.removeprefix(OPTIMIZER).rpartition(".")
            keys.setdefault(parameter, []).append(key)

    def kept(name: str) -> dict[str, Any]:
        name = manifest.aliases.get(name, name)
        tensors = {key: checkpoint.tensor(f"{OPTIMIZER}{name}.{key}") for key in keys.get(name, ())}
        return {**manifest.numbers.get(name, {}), **tensors}

    return Saved(str(checkpoint.path), shapes, checkpoint.tensor, manifest.optimizer, kept)


def restore_weights(
    engine: Engine, read: Callable[[Container[str]], Iterable[tuple[str, Tensor]]], source: str
) -> None:
    """Parameters alone, from whatever reads those of some one-device names. Every rank calls this."""
    together(engine.world, lambda: _take_weights(engine, read, source))


def _take_weights(engine: Engine, read: Callable[[Container[str]], Iterable[tuple[str, Tensor]]], source: str) -> None:
    ours = tensors_of(engine)
    missing = dict(ours)
    for name, value in read(ours):
        if name in ours:
            if ours[name].shape != value.shape:
                raise misfit(name, ours[name].shape, value.shape, source)
            fill(ours[name], value)
            missing.pop(name, None)
    parameters = [n for n in missing if isinstance(missing[n], torch.nn.Parameter)]
    if parameters:
        raise ValueError(f"{source} has no {some(parameters)}, which the model has: is it the weights of this model?")
