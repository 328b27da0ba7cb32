"""A folder as Hugging Face lays it out: config.json, and tensors in one safetensors file or in several with an index.

Reads one tensor at a time, and writes file by file, so that neither needs the model in memory. Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def read_config(directory: str | Path) -> dict[str, Any]:
    path = Path(directory) / CONFIG
    if not path.is_file():
        raise ValueError(f"{directory} has no {CONFIG}: give the folder that save_pretrained wrote")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): write it again with save_pretrained") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, not settings: write it again with save_pretrained")
    return found


class Reader:
    """The tensors of a folder, by name."""

    def __init__(self, directory: str | Path, prefix: str = "", aliases: Mapping[str, str] | None = None) -> None:
        self.directory = Path(directory)
        self.prefix = prefix
        """What a name may do without."""
        self.aliases = aliases or {}
        """Name -> what it may be called instead."""
        self.where = self._where()

    def _where(self) -> dict[str, Path]:
        """Name -> file."""
        index, single = self.directory / INDEX, self.directory / SINGLE
        if index.is_file():
            try:
                files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{index} is no index of tensors: copy the whole folder again") from error
            missing = sorted({file for file in files.values() if not (self.directory / file).is_file()})
            if missing:
                raise ValueError(f"{index} names {missing[0]}, which is not there: copy the whole folder again")
            return {name: self.directory / file for name, file in files.items()}
        if not single.is_file():
            fix = "give the folder that save_pretrained wrote"
            if list(self.directory.glob("*.bin")):
                fix = "load it with transformers and save_pretrained it again, which writes safetensors"
            raise ValueError(f"{self.directory} has neither {SINGLE} nor {INDEX}: {fix}")
        with _opened(single) as file:
            return dict.fromkeys(file.keys(), single)

    def find(self, name: str) -> str | None:
        """The name under which a tensor stands in the folder."""
        for spelt in (name, name.removeprefix(self.prefix), self.aliases.get(name, name)):
            old = spelt.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            for known in (spelt, old):
                if known in self.where:
                    return known
        return None

    def read(self, name: str) -> Tensor:
        found = self.find(name)
        if found is None:
            raise ValueError(
                f"{self.directory} has no tensor {name}: the file is of another model, or was saved without this part"
            )
        with _opened(self.where[found]) as file:
            return file.get_tensor(found)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        # A clone without git-lfs has files of three lines that stand for the real ones.
        raise ValueError(f"{path} is damaged or not the file itself ({error}): download it again") from error


def write(
    directory: str | Path, config: dict[str, Any], tensors: Iterable[tuple[str, Tensor]], shard_bytes: int
) -> None:
    """Write a folder that `from_pretrained` reads. A file is closed before it would exceed `shard_bytes`.

    What stood there before goes only when all is written.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, int]] = []
    dtype = ""

    def unfinished(number: int) -> Path:
        return directory / f"model-{number:05d}.unfinished"

    try:
        for part in _parts(tensors, shard_bytes):
            shards.append({name: tensor.nbytes for name, tensor in part.items()})
            save_file(part, unfinished(len(shards)), {"format": "pt"})
            dtype = str(next(iter(part.values())).dtype).removeprefix("torch.")
    except BaseException:
        for number in range(1, len(shards) + 1):
            unfinished(number).unlink(missing_ok=True)
        raise
    for old in (*directory.glob("model*.safetensors"), *directory.glob(INDEX)):
        old.unlink()  # files of an earlier model must not be taken for this one's
    where = {}
    for number, shard in enumerate(shards, 1):
        name = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        unfinished(number).rename(directory / name)
        where.update(dict.fromkeys(shard, name))
    if len(shards) > 1:
        total = sum(sum(shard.values()) for shard in shards)
        _write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    _write_json(directory / CONFIG, {**config, "dtype": dtype})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _parts(tensors: Iterable[tuple[str, Tensor]], limit: int) -> Iterator[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if part and size + tensor.nbytes > limit:
            yield part
            part, size = {}, 0
        part[name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
    if part:
        yield part
