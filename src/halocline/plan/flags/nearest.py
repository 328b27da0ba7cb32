"""The flag that was meant by a word that is none: near in meaning, or a slip of the keys away; else no guess.

Knows words; whether a flag is there, its caller says.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_SLIP = 0.8
"""How much of two words must be alike, 1 for all of them, to be a slip of the keys."""

MEANINGS = {
    "lr": ("learning rate", "lrate", "base lr", "max lr", "step size"),
    "lr_schedule": (
        "lr scheduler",
        "lr decay",
        "scheduler",
        "learning rate schedule",
        "learning rate scheduler",
        "learning rate decay",
    ),
    "final_lr": ("min lr", "minimum learning rate"),
    "warmup": ("warm up", "lr warmup", "num warmup"),
    "clip": ("grad clip", "clip grad", "clip norm", "gradient clipping", "grad norm"),
    "weight_decay": ("wd", "decay", "l2"),
    "optimizer": ("opt", "solver"),
    "momentum": ("beta1",),
    "steps": ("iters", "iterations", "train iters", "max iterations", "max iters", "train steps", "total steps"),
    "epochs": ("epoch", "passes over data"),
    "batch_size": ("bs", "batch", "global batch size", "train batch size", "total batch"),
    "microbatch_size": ("mbs", "micro batch size"),
    "microbatches": ("num microbatches", "micro batches", "chunks of batch"),
    "stages": ("pipeline parallel", "pipeline degree", "pipeline stages", "pipeline parallel size", "num stages"),
    "replicas": ("data parallel", "data degree", "ddp", "data parallel size"),
    "tensor": (
        "tensor parallel",
        "model parallel",
        "tensor degree",
        "mp",
        "tensor parallel size",
        "model parallel size",
    ),
    "recompute": ("checkpointing", "recomputation", "rematerialization", "remat", "checkpoint activations"),
    "balance": ("partition", "partitioning", "split layers", "layer split"),
    "schedule": ("pipeline schedule", "pipe schedule"),
    "shard": ("zero", "fsdp", "sharding", "shard strategy"),
    "offload": ("cpu offload", "offload activations"),
    "image_size": ("img size", "resolution", "image resolution", "crop size", "input size"),
    "seq": ("sequence length", "max length", "context", "context length", "block size", "max seq length", "seqlen"),
    "layers": ("num hidden layers", "depth", "blocks", "num blocks"),
    "hidden": ("width", "embed dim", "d model", "hidden dim", "n embd"),
    "heads": ("attention heads", "num attention heads", "n head"),
    "vocab": ("vocabulary", "vocab size"),
    "num_classes": ("classes", "labels", "num labels"),
    "model": ("arch", "architecture", "network", "model path"),
    "data": ("dataset", "data dir", "data path", "train file", "train data", "dataset name"),
    "workers": ("loaders", "num loaders", "data workers"),
    "augment": ("augmentation", "transforms"),
    "tokenizer": ("tokenizer name", "tokenizer file"),
    "from_hf": ("pretrained", "weights", "init checkpoint", "load weights", "model name or path"),
    "run_dir": ("out dir", "log dir", "work dir", "save dir", "checkpoint dir", "exp dir"),
    "resume": ("load", "load checkpoint", "restart", "continue"),
    "save_every": ("save interval", "checkpoint interval", "checkpoint every", "save freq", "ckpt every"),
    "keep": ("keep checkpoints", "max checkpoints"),
    "eval_every": ("eval interval", "eval freq", "validate every"),
    "evaluation_fraction": ("validation split", "val split", "validation fraction"),
    "dtype": ("precision", "mixed precision", "amp", "half", "bfloat16", "data type", "float16"),
    "device": ("gpu", "cuda", "backend"),
    "num_gpus": ("gpus", "nproc", "nproc per node", "num processes", "world size"),
    "nnodes": ("nodes", "num nodes", "num machines"),
    "compile": ("jit", "inductor", "torchscript"),
    "seed": ("random seed", "rng seed"),
    "deadline": ("timeout", "nccl timeout"),
    "verbose": ("debug", "log level"),
    "timeline": ("trace", "wall clock"),
    "pytorch_trace": ("profiler", "torch profiler", "pytorch profiler"),
    "tensorboard": ("tb", "summary writer"),
    "energy_server": ("server url", "server", "energy url"),
    "sweep": ("profiling", "frequency sweep"),
    "timing_csv": ("timing", "timings"),
    "tiles": ("spatial parts", "spatial parallel", "tile grid", "domain parallel"),
    "lanes": ("local dp", "batch parallel"),
    "dry_run": ("dryrun", "simulate", "plan only", "check only"),
}
"""Flag -> what else people call it."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The flag of `known` that `word` may have meant."""
    flags = list(known)
    meant = _in_meaning(word, flags)
    return meant if meant is not None else _by_letters(word, flags)


def _in_meaning(word: str, flags: list[str]) -> str | None:
    """By the phrase that has most of the word's parts, half of them or more."""
    parts, joined = _parts(word), _joined(word)
    found = []
    for flag, phrases in MEANINGS.items():
        for phrase in (flag, *phrases):
            theirs = _parts(phrase)
            if joined == _joined(phrase):
                found.append((len(parts) + 1, flag))
            elif theirs <= parts and 2 * len(theirs) > len(parts):
                found.append((len(theirs), flag))
    return next((flag for _, flag in sorted(found, key=lambda one: -one[0]) if flag in flags), None)


def _by_letters(word: str, flags: list[str]) -> str | None:
    names = {_joined(flag): flag for flag in flags}
    near = difflib.get_close_matches(_joined(word), names, n=1, cutoff=_SLIP)
    return names[near[0]] if near else None


def _parts(word: str) -> set[str]:
    return {part.removesuffix("s") for part in re.split(r"[-_ ]+", word.lower()) if part}


def _joined(word: str) -> str:
    return re.sub(r"[-_ ]+", "", word.lower())
