"""The settings of a run, in groups: the command line, the library's argument, the file that repeats a run, and what its
directory keeps. Knows no torch, so that a wrong setting is answered at once.

    Settings.of(model="resnet-v1-20", stages=2, tiles="2x2", steps=100)     # by flag
    Settings.load("run.toml")
    settings.optimizer.lr

`said` names the settings that someone has said, on the command line, in a file or by keyword.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halocline.plan.flags.dialects import DIALECTS
from halocline.plan.flags.fields import changed, flat, setting, settings_of
from halocline.plan.flags.reader import TRUTH
from halocline.plan.require import require_choice, require_degree
from halocline.plan.settings import AUTO, PlanSettings
from halocline.plan.toml import value_text
from halocline.simulation.speed import KNOWN

OPTIMIZERS = ("sgd", "adamw")
LR_SCHEDULES = ("constant", "cosine", "linear")
DTYPES = ("float32", "float64", "bf16")
DEVICES = ("auto", "cpu", "cuda")
"""What trains. A dry run is priced on other GPUs, too."""
METERS = ("auto", "nvml", "zeus", "zeus:gpu", "zeus:soc", "zeus:cpu", "simulated", "none")
OBJECTIVES = ("causal", "masked", "spans")
SYNTHETIC, LESIONS, CIFAR = "synthetic", "lesions", ("cifar10:", "cifar100:")
LATEST = "latest"
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}
"""The largest difference from one device that counts as exact, by dtype."""
ENDS = {"steps", "epochs"}
"""Settings that say when a run ends: one that is said takes the place of both."""
SHAPE = {one.flag for one in settings_of(PlanSettings).values() if one.default is None} - {
    *("plan", "batch_size", "microbatch_size", "image_size", "layers")
}
"""Settings that shape a plan, which a plan.toml says all of."""
NOT_REPEATED = {"run_dir", "resume"}
"""Settings that a file does not keep: they say which run it is, and not what it does."""


@dataclass(frozen=True)
class ModelSettings:
    """model: which one, and its sizes"""

    name: str | None = setting(None, flag="model", also="--name")
    """A name that halocline models lists, or package.module:callable (the current directory counts). May be given as a
    plain word."""
    num_classes: int | None = None
    """Number of classes (left out: the model's own)."""
    num_layers: int | None = None
    """AmoebaNet: number of normal cells (left out: 18)."""
    num_filters: int | None = None
    """AmoebaNet: number of filters (left out: 416)."""
    hidden: int | None = None
    """Transformers: width."""
    heads: int | None = None
    """Transformers: attention heads."""
    vocab: int | None = None
    """Transformers: words of the vocabulary."""
    seq: int | None = None
    """Transformers: tokens of a sample."""
    model_options: str | None = None
    """Further options of the model's function, e.g. base_width=32,norm=group."""

    def __post_init__(self) -> None:
        for name in ("num_classes", "num_layers", "num_filters", "hidden", "heads", "vocab", "seq"):
            if getattr(self, name) is not None:
                require_degree(name, getattr(self, name))


@dataclass(frozen=True)
class TrainedModelSettings(ModelSettings):
    """model: which one, its sizes, and where its weights come from and go"""

    from_hf: str | None = None
    """Begin with the weights in this directory, which has Hugging Face's layout."""
    to_hf: str | None = None
    """Write the trained weights to this directory in Hugging Face's layout."""


@dataclass(frozen=True)
class DataSettings:
    """data: which, and what is done to it"""

    source: str = setting(SYNTHETIC, flag="data", common=True)
    """A directory of images, slides or text, or synthetic, lesions (generated images that must be seen in full),
    cifar10:DIR or cifar100:DIR."""
    workers: int = setting(0, common=True)
    """Processes that load data, per rank."""
    samples: int | None = None
    """Synthetic data: samples of an epoch (left out: 10 batches)."""
    evaluation_fraction: float = 0.1
    """The share of the data that is kept for evaluation, where it has no split of its own; 0 for no evaluation."""
    augment: str | None = None
    """What is done to training images by chance, e.g. flip,rotate,crop,pad=4,colour=0.2; all tiles of one agree."""
    mean: str | None = None
    """Subtracted from each channel of an image, whose values lie in [0, 1], e.g. 0.5,0.5,0.5."""
    std: str | None = None
    """What each channel is then divided by."""
    bad_files: str = "stop"
    """A file that cannot be read: stop, or skip it and count."""
    level: int = 0
    """Whole slides: level of the pyramid."""
    objective: str | None = None
    """Text: causal, masked or spans (left out: what the model is for)."""
    tokenizer: str | None = None
    """Text: a tokenizer file of Hugging Face's tokenizers (left out: bytes)."""

    def __post_init__(self) -> None:
        if self.source in ("", *CIFAR):
            folders = ", ".join(f"{word}DIR" for word in ("", *CIFAR))
            raise ValueError(f"data = {self.source!r} names no folder: write {folders}, {SYNTHETIC} or {LESIONS}")
        require_choice("bad_files", self.bad_files, ("stop", "skip"))
        if self.objective is not None:
            require_choice("objective", self.objective, OBJECTIVES)
        if self.samples is not None:
            require_degree("samples", self.samples)
        _require_share("evaluation_fraction", self.evaluation_fraction)
        _require_from_0(self, "level", "workers")


@dataclass(frozen=True)
class OptimizerSettings:
    """optimizer: how the weights are updated"""

    name: str = setting("sgd", flag="optimizer", common=True)
    """sgd or adamw."""
    lr: float = setting(0.1, common=True)
    """Learning rate at its highest."""
    momentum: float = 0.9
    """sgd: momentum; adamw: the first beta."""
    beta2: float = 0.999
    """adamw: the second beta."""
    weight_decay: float = 0.0
    """Weight decay; biases and the weights of norms are left out."""
    decay_all: bool = False
    """Decay biases and the weights of norms, too."""
    warmup: int = 0
    """Steps over which the learning rate rises."""
    lr_schedule: str = "constant"
    """What the learning rate does after that: constant, or cosine or linear down to --final-lr at the last step."""
    final_lr: float = 0.0
    """Where cosine and linear end, as a share of --lr."""
    clip: float | None = None
    """Scale gradients so that their norm over the whole model is at most this."""
    shard_optimizer: bool = False
    """Divide the optimizer's state over the ranks that share a stage (ZeRO-1), under any plan."""
    nan: str = "stop"
    """A loss that is not finite: stop, or skip the step."""

    def __post_init__(self) -> None:
        require_choice("optimizer", self.name, OPTIMIZERS)
        require_choice("lr_schedule", self.lr_schedule, LR_SCHEDULES)
        require_choice("nan", self.nan, ("stop", "skip"))
        _require_above_0(self, "lr", "clip")
        for name in ("momentum", "beta2"):
            _require_share(name, getattr(self, name))
        _require_from_0(self, "warmup", "weight_decay")
        if not 0 <= self.final_lr <= 1:
            raise ValueError(f"final_lr = {self.final_lr} is not in [0, 1]: it is a share of lr")


@dataclass(frozen=True)
class EnergySettings:
    """energy: meters, clocks and profiles"""

    meter: str = "auto"
    """What measures energy and sets clocks: nvml, zeus (or zeus:gpu, zeus:soc, zeus:cpu), simulated (a GPU that is not
    there), none, or auto: nvml on a GPU."""
    energy_server: str | None = None
    """Address of the server that hands out frequency plans, e.g. http://localhost:7787."""
    energy_token_file: str | None = None
    """A file with the energy server's token."""
    sweep: bool = False
    """Go down the clock's frequencies, --profile-steps steps at each, write profile.csv, and end."""
    profile: str | None = None
    """Where a sweep's profile goes (left out: profile.csv in the run's directory)."""
    profile_warmup: int = 5
    """Steps before measuring starts."""
    profile_steps: int = 30
    """Steps measured for each frequency plan."""
    lowest_frequency: int = 0
    """A sweep does not go below this many MHz."""
    frequency_stride: int = 1
    """A sweep takes every so-many-th frequency."""
    blocking_power: float | None = None
    """Watts of a device that waits, for the energy server (left out: as measured)."""
    timing_csv: bool = False
    """Write instructions-R.csv and time-energy-R.csv for each rank R."""

    def __post_init__(self) -> None:
        require_choice("meter", self.meter, METERS)
        for name in ("frequency_stride", "profile_steps"):
            require_degree(name, getattr(self, name))
        _require_from_0(self, "lowest_frequency", "blocking_power", "profile_warmup")


@dataclass(frozen=True)
class RunSettings:
    """run: how long, where, and what it leaves behind"""

    epochs: int | None = setting(None, common=True)
    """Passes over the training data (left out: 1)."""
    steps: int | None = setting(None, common=True)
    """Optimizer steps of the whole run, instead of epochs."""
    dtype: str = setting("float32", common=True)
    """float32, float64, or bf16: float32 parameters, computing in bfloat16 where that is safe."""
    device: str = setting("auto", common=True)
    """cpu, cuda, or auto: a GPU if there is one. With --dry-run also the name of a GPU that need not be here, e.g. a40
    or h200."""
    run_dir: str | None = setting(None, common=True)
    """Where plan, settings, metrics and checkpoints go (left out: runs/MODEL-DATE-TIME)."""
    resume: str | None = setting(None, common=True)
    """Go on from a checkpoint: latest (of --run-dir, or of the newest run), a run's directory, or a checkpoint's."""
    save_every: int | None = None
    """Steps between checkpoints (left out: an epoch), and one at the end; 0 for none at all."""
    keep: int = 3
    """Complete checkpoints to keep."""
    eval_every: int | None = None
    """Steps between evaluations (left out: an epoch)."""
    train_scores: bool = False
    """Score what the model answers in training, too, e.g. its accuracy, in every step's metrics."""
    seed: int = 0
    """Of the weights, the order of the data, augmentation and dropout."""
    channels_last: bool = False
    """Keep images channels last in memory."""
    compile: bool = False
    """Run torch.compile on the layers of stages without tiles and lanes."""
    offload: bool = False
    """Keep activations in host memory until their backward."""
    deadline: float = 600.0
    """Seconds that any process may wait for another."""
    verbose: bool = setting(False, also="-v")
    """Print the time of each step. Also -v."""
    timeline: bool = False
    """Write when each rank did what, for halocline timeline."""
    pytorch_trace: bool = False
    """Write a trace of PyTorch's profiler."""
    tensorboard: bool = False
    """Write metrics for TensorBoard, too (needs halocline[tensorboard])."""

    def __post_init__(self) -> None:
        require_choice("dtype", self.dtype, DTYPES)
        require_choice("device", self.device, (*DEVICES, *KNOWN))
        for name in ("epochs", "steps", "eval_every", "keep"):
            if getattr(self, name) is not None:
                require_degree(name, getattr(self, name))
        _require_from_0(self, "save_every")
        _require_above_0(self, "deadline")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed = {self.seed} does not fit 64 bits: use a smaller number")
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"epochs = {self.epochs} and steps = {self.steps} both say when to end: give one of them")

    @property
    def where(self) -> str | None:
        """The device to train on; None for whichever is there."""
        if self.device in KNOWN:
            raise ValueError(
                f"device = {self.device!r} is a GPU to price a run on: add --dry-run, or train on cuda, cpu or auto"
            )
        return None if self.device == "auto" else self.device


@dataclass(frozen=True)
class Settings:
    """Everything that a run is told."""

    model: TrainedModelSettings = field(default_factory=TrainedModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    plan: PlanSettings = field(default_factory=PlanSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    energy: EnergySettings = field(default_factory=EnergySettings)
    run: RunSettings = field(default_factory=RunSettings)
    said: frozenset[str] = field(default=frozenset(), compare=False, repr=False, metadata={"hidden": True})
    """The flags of the settings that were said."""

    @classmethod
    def of(cls, **said: Any) -> Settings:
        """Settings by flag: those that are said, and the defaults of the others."""
        for program, table in DIALECTS.items():
            for flag in table:
                if flag.name in said:
                    fix = f": say {flag.native}" if flag.native else " and does nothing: leave it out"
                    raise ValueError(
                        f"{flag.name} {flag.refused}" if flag.refused else f"{flag.name} is {program}'s{fix}"
                    )
        return cls().saying(said)

    def saying(self, said: Mapping[str, Any]) -> Settings:
        """These settings where nothing else is said now."""
        values = dict(said)
        if ENDS & values.keys():
            values = {**dict.fromkeys(ENDS), **values}
        if "plan" in values:  # a file says everything of the plan, and so takes the place of what was said before
            values = {**dict.fromkeys(SHAPE), **values}
        elif SHAPE & values.keys():
            values["plan"] = None
        return dataclasses.replace(changed(self, values), said=self.said | said.keys())

    def but(self, **values: Any) -> Settings:
        """These settings with some changed, of which nobody said anything."""
        return changed(self, values)

    # -- in and out ----------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> Settings:
        """From a file: a table for each group, with flags as keys. What stands in it was said."""
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid TOML: {error}: write one key = value per line") from error
        if "stages" in data:
            raise ValueError(f"{path} is a plan, which names no model: write halocline train MODEL --plan {path}")
        known = settings_of(cls)
        said: dict[str, Any] = {}
        for group, table in data.items():
            require_choice(f"{path}: table", group, dict.fromkeys(one.group for one in known.values()))
            if not isinstance(table, dict):
                raise ValueError(f"{path}: {group} = {table!r} is not a table: write [{group}] above its keys")
            for key in table:
                require_choice(f"{path}: {group} key", key, known)
                if known[key].group != group:
                    raise ValueError(f"{path}: {key} stands in [{group}]: it belongs in [{known[key].group}]")
            said |= table
        if said.get("plan") not in (None, AUTO):
            said["plan"] = str(Path(path).parent / said["plan"])  # beside the file, unless it is an absolute path
        try:
            return cls.of(**said)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def to_toml(self) -> str:
        """Every setting that has a value, in its group."""
        values, lines = flat(self), []
        known = settings_of(type(self)).values()
        for group in dict.fromkeys(one.group for one in known):
            flags = [one.flag for one in known if one.group == group and one.flag not in NOT_REPEATED]
            kept = [f"{flag} = {value_text(values[flag])}" for flag in flags if values[flag] is not None]
            lines += ["", f"[{group}]", *kept]
        return "\n".join(lines[1:]) + "\n"

    # -- derived -------------------------------------------------------------------------------------------------

    @property
    def options_of_model(self) -> dict[str, Any]:
        """What the function that makes the model is given."""
        sizes = ("num_layers", "num_filters", "num_classes", "hidden", "heads", "vocab", "seq")
        every = {"layers": self.plan.layers, **{name: getattr(self.model, name) for name in sizes}}
        given = {name: value for name, value in every.items() if value is not None}
        for part in filter(None, (self.model.model_options or "").split(",")):
            name, equals, text = part.partition("=")
            if not equals:
                raise ValueError(f"model_options has {part!r}, which is no name=value: write e.g. base_width=32")
            given[name.strip()] = _value(text.strip())
        return given


def _require_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} = {value} is not in [0, 1): use 0 or more, but less than 1")


def _require_from_0(group: Any, *names: str) -> None:
    for name in names:
        if (getattr(group, name) or 0) < 0:
            raise ValueError(f"{name} = {getattr(group, name)} is below 0: use 0 for none")


def _require_above_0(group: Any, *names: str) -> None:
    for name in names:
        value = getattr(group, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} = {value} is not above 0: use a number above 0")


def _value(text: str) -> Any:
    """A number, true or false, or the word itself."""
    if text.lower() in ("true", "false"):
        return TRUTH[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
