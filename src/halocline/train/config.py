"""The settings of a run: a flat table of plain values that is the command line, the library's argument and, resolved,
the run's config.json. Knows no torch, so that a wrong setting is answered at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from halocline.plan.flags import Flags
from halocline.plan.require import require_choice, require_degree
from halocline.plan.words import TRUTH

OPTIMIZERS = ("sgd", "adamw")
LR_SCHEDULES = ("constant", "cosine", "linear")
DTYPES = ("float32", "float64", "bf16")
DEVICES = ("auto", "cpu", "cuda")
METERS = ("auto", "nvml", "zeus", "zeus:gpu", "zeus:soc", "zeus:cpu", "simulated", "none")
OBJECTIVES = ("causal", "masked", "spans")
MODEL_OPTIONS = ("num_layers", "num_filters", "num_classes", "layers", "hidden", "heads", "vocab", "seq")
"""Settings that go to the function that makes the model, where they are given."""
LATEST = "latest"


@dataclass(frozen=True)
class ModelFlags(Flags):
    """Which model, under which plan: what every verb that makes one is told."""

    model: str | None = None
    """A name that halocline models lists, or package.module:callable (the current directory counts). May be given as a
    plain word."""
    plan: str | None = None
    """A plan.toml instead of flags."""

    num_layers: int | None = None  # type: ignore[assignment]
    """AmoebaNet: number of normal cells (left out: 18)."""
    num_filters: int | None = None  # type: ignore[assignment]
    """AmoebaNet: number of filters (left out: 416)."""
    num_classes: int | None = None  # type: ignore[assignment]
    """Number of classes (left out: the model's own)."""
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


@dataclass(frozen=True)
class Config(ModelFlags):
    """Trains a model under a plan, given by flags or as --plan plan.toml. Started bare it starts the processes that the
    plan needs on this machine; under torchrun, mpirun or srun it joins those.

    Ctrl-C finishes the step, saves and leaves; once more leaves at once."""

    # -- the model's weights

    from_hf: str | None = None
    """Begin with the weights in this directory, which has Hugging Face's layout."""
    to_hf: str | None = None
    """Write the trained weights to this directory in Hugging Face's layout."""

    # -- the data

    samples: int | None = None
    """Synthetic data: samples of an epoch (left out: 10 batches)."""
    lesions: bool = False
    """Generated images that must be seen in full: the class hangs on a few pixels."""
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

    # -- the steps

    epochs: int | None = None
    """Passes over the training data, as --num-epochs."""
    steps: int | None = None
    """Optimizer steps of the whole run, instead of epochs."""
    accumulate: int = 1
    """Batches that one step sums up: the plan's microbatches, that many times."""
    optimizer: str = "sgd"
    """sgd or adamw."""
    lr: float = 0.1
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
    dtype: str = "float32"
    """float32, float64, or bf16: float32 parameters, computing in bfloat16 where that is safe."""
    channels_last: bool = False
    """Keep images channels last in memory."""
    seed: int = 0
    """Of the weights, the order of the data, augmentation and dropout."""
    shard_optimizer: bool = False
    """Divide the optimizer's state over the ranks that share a stage (ZeRO-1)."""
    sequence_parallel: bool = False
    """Let tensor ranks share the tokens between the matrices they share."""
    compile: bool = False
    """Run torch.compile on the layers of stages without tiles and lanes."""
    offload: bool = False
    """Keep activations in host memory until their backward."""
    nan: str = "stop"
    """A loss that is not finite: stop, or skip the step."""

    # -- energy

    meter: str = "auto"
    """What measures energy and sets clocks: nvml, zeus (or zeus:gpu, zeus:soc, zeus:cpu), simulated (a GPU that is not
    there), none, or auto: nvml on a GPU."""
    sweep: bool = False
    """Go down the clock's frequencies, --num-prof-steps steps at each, write profile.csv to the run's directory, and
    end; as --train_schedule instruction_profiler without --perseus_url."""
    profile: str | None = None
    """Where a sweep's profile goes (left out: profile.csv in the run's directory)."""
    lowest_frequency: int = 0
    """A sweep does not go below this many MHz."""
    frequency_stride: int = 1
    """A sweep takes every so-many-th frequency."""
    blocking_power: float | None = None
    """Watts of a device that waits, for the energy server (left out: as measured)."""
    energy_token_file: str | None = None
    """A file with the energy server's token."""

    # -- the run

    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    deadline: float = 600.0
    """Seconds that any process may wait for another."""
    run_dir: str | None = None
    """Where plan, settings, metrics and checkpoints go (left out: runs/MODEL-DATE-TIME)."""
    resume: str | None = None
    """Go on from a checkpoint: latest (of --run-dir, or of the newest run), a run's directory, or a checkpoint's."""
    save_every: int | None = None
    """Steps between checkpoints (left out: an epoch), and one at the end; 0 for none at all."""
    keep: int = 3
    """Complete checkpoints to keep."""
    eval_every: int | None = None
    """Steps between evaluations (left out: an epoch)."""
    dry_run: bool = False
    """Start nothing: say what the run would be, with its plan proved and its time and memory predicted."""
    timeline: bool = False
    """Write when each rank did what, for halocline timeline."""
    tensorboard: bool = False
    """Write metrics for TensorBoard, too (needs halocline[tensorboard])."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        require_choice("lr_schedule", self.lr_schedule, LR_SCHEDULES)
        require_choice("dtype", self.dtype, DTYPES)
        require_choice("device", self.device, DEVICES)
        require_choice("bad_files", self.bad_files, ("stop", "skip"))
        require_choice("nan", self.nan, ("stop", "skip"))
        if self.objective is not None:
            require_choice("objective", self.objective, OBJECTIVES)
        for name in ("samples", "epochs", "steps", "eval_every", "hidden", "heads", "vocab", "seq"):
            if getattr(self, name) is not None:
                require_degree(name, getattr(self, name))
        for name in ("accumulate", "keep", "frequency_stride"):
            require_degree(name, getattr(self, name))
        require_choice("meter", self.meter, METERS)
        self._check_numbers()
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"epochs = {self.epochs} and steps = {self.steps} both say when to end: give one of them")

    def _check_numbers(self) -> None:
        for name in ("warmup", "weight_decay", "level", "save_every", "lowest_frequency", "blocking_power"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} = {getattr(self, name)} is below 0: use 0 for none")
        for name in ("lr", "deadline", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} = {value} is not above 0: use a number above 0")
        for name in ("momentum", "beta2", "evaluation_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} is not in [0, 1): use 0 or more, but less than 1")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed = {self.seed} does not fit 64 bits: use a smaller number")
        if not 0 <= self.final_lr <= 1:
            raise ValueError(f"final_lr = {self.final_lr} is not in [0, 1]: it is a share of lr")

    # -- derived -------------------------------------------------------------------------------------------------

    @property
    def options_of_model(self) -> dict[str, Any]:
        """What the function that makes the model is given."""
        given = {name: getattr(self, name) for name in MODEL_OPTIONS if getattr(self, name) is not None}
        for part in filter(None, (self.model_options or "").split(",")):
            name, equals, text = part.partition("=")
            if not equals:
                raise ValueError(f"model_options has {part!r}, which is no name=value: write e.g. base_width=32")
            given[name.strip()] = _value(text.strip())
        return given

    @property
    def flags(self) -> Flags:
        """The flags that describe the plan, everything else as if it were left out."""
        named = {name: getattr(self, name) for name in PLAN_FLAGS}
        if all(named[name] is None for name in _CHOOSE_STAGES):
            named["split_size"] = 1  # nothing was said of a plan: one process
        return Flags(**named)

    @property
    def sweeps(self) -> bool:
        """Whether the run is there to profile."""
        return self.sweep or (self.train_schedule == "instruction_profiler" and self.perseus_url is None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


PLAN_FLAGS = (
    "split_size parts balance num_spatial_parts spatial_size slice_method times local_DP halo_D2 fused_layers "
    "batch_size image_size enable_master_comm_opt pp dp tp partition_method train_schedule activation_checkpointing "
    "microbatch_size schedule microbatches replicas pipes chunks passes cap recompute shard"
).split()
"""The flags of which a plan is made."""
_CHOOSE_STAGES = "split_size pp balance partition_method num_spatial_parts spatial_size times schedule".split()


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
