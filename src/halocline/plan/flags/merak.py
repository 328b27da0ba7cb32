"""Merak's (Perseus's) arguments: what each is called here, and what its schedules mean. Those that it inherits are in
huggingface.
"""

from __future__ import annotations

from halocline.plan.flags.reader import Foreign, Said
from halocline.plan.require import require_choice

FLAGS = (
    Foreign("pp", int, "stages", "Pipeline degree (left out: 4 where MODEL is given)."),
    Foreign("dp", int, "replicas", "Data-parallel degree."),
    Foreign("tp", int, "tensor", "Tensor-parallel degree of every stage."),
    Foreign(
        "partition_method",
        str,
        "balance",
        "uniform, uniform_floor, uniform_transformer, parameters, custom:0,8,14, autopipe.",
    ),
    Foreign(
        "train_schedule",
        str,
        "schedule",
        "1f1b (also ds_default), early_recompute_1f1b, last_no_recompute_1f1b, full_critical_path_1f1b (also "
        "shifted_critical_path; these three also --recompute but-last), or instruction_profiler (also --sweep where "
        "there is no energy server).",
    ),
    Foreign("activation_checkpointing", bool, "recompute", "true: --recompute all; false: --recompute none."),
    Foreign("checkpoint_num_layers", int, "recompute", "0: --recompute none; 1: --recompute all.", least=0),
    Foreign("num_warmup_steps", int, "profile_warmup", "Steps before measuring starts.", least=0),
    Foreign("num_prof_steps", int, "profile_steps", "Steps measured for each frequency plan."),
    Foreign("export_timing_csv", bool, "timing_csv", "Write instructions-R.csv and time-energy-R.csv for each rank R."),
    Foreign("export_pytorch_trace", bool, "pytorch_trace", "Write a PyTorch profiler trace."),
    Foreign("wall_clock_breakdown", bool, "timeline", "Write when each rank did what, for halocline timeline."),
    Foreign("print_details", bool, "verbose", "Print the time of each step."),
    Foreign("print_wall_clock_breakdown", bool, "verbose", "Print the time of each step."),
    Foreign("perseus_url", str, "energy_server", "Address of the server that hands out frequency plans."),
    Foreign("pfo_server_url", str, "energy_server", "Address of the server that hands out frequency plans."),
    Foreign("model_name", str, "model", "MODEL.", nothing=("",)),
    Foreign("seq_length", int, "seq", "Tokens of a sample."),
    Foreign("hidden_size", int, "hidden", "Width."),
    Foreign("num_heads", int, "heads", "Attention heads."),
    Foreign("save", bool, "save_every", "true: checkpoints as --save-every says, or of an epoch; false: none."),
    Foreign("energy_breakdown", bool, "", "Does nothing: --timing-csv has the energy of each instruction."),
    Foreign("parallel_vocab", bool, "", "Does nothing: with --tensor the vocabulary is always divided."),
    Foreign("cache_sharding", bool, "", "Does nothing: there are no traced graphs to keep."),
    Foreign("cache_dir", str, "", "Does nothing: nothing is downloaded or kept."),
    Foreign(
        "activation_checkpoint_ratio",
        str,
        "",
        refused="recomputes a part of a stage, and a stage recomputes whole here: use --recompute but-last, or "
        "recompute = true of single stages in a plan.toml",
    ),
    Foreign(
        "tp_overlapping_level",
        int,
        "",
        nothing=(0,),
        refused="overlaps messages of tensor ranks, which wait here: leave it out, or share activations, too, by "
        "--sequence-parallel",
    ),
    Foreign(
        "finetune",
        bool,
        "",
        nothing=(False,),
        refused="begins with weights alone: write them by halocline export RUN --to-hf DIR, and use --from-hf DIR",
    ),
    Foreign(
        "no_load_optim",
        bool,
        "",
        nothing=(False,),
        refused="begins with weights alone: write them by halocline export RUN --to-hf DIR, and use --from-hf DIR",
    ),
    Foreign(
        "no_load_rng",
        bool,
        "",
        nothing=(False,),
        refused="has nothing to leave out, as random numbers follow from --seed: leave it out, or use another --seed",
    ),
    Foreign(
        "no_save_optim",
        bool,
        "",
        nothing=(False,),
        refused="leaves a checkpoint that cannot be gone on with: leave it out; halocline export RUN --out "
        "model.safetensors writes the weights alone",
    ),
    Foreign("no_save_rng", bool, "", "Does nothing: random numbers follow from --seed, and none are kept."),
    Foreign(
        "split_inputs",
        bool,
        "",
        nothing=(False,),
        refused="is not how inputs are shared here: use --sequence-parallel for tokens, or --lanes for samples",
    ),
    Foreign(
        "return_logits",
        bool,
        "",
        nothing=(False,),
        refused="asks a run for what the model answers: use halocline.Engine in Python, whose evaluate has measures",
    ),
    Foreign(
        "input_names",
        str,
        "",
        refused="names inputs of a traced model, and none is traced here: leave it out; a model of your own is "
        "package.module:callable",
    ),
    Foreign(
        "shard_count",
        int,
        "",
        refused="cuts a traced model, and stages are made of a model's layers here: leave it out; halocline models "
        "MODEL lists them",
    ),
    Foreign(
        "num_transformers",
        int,
        "",
        nothing=(0,),
        refused="is known of the model: leave it out, or shrink it by --layers",
    ),
    Foreign("num_initial_embeddings", int, "", nothing=(0,), refused="is known of the model: leave it out"),
    Foreign(
        "init_method_std",
        float,
        "",
        nothing=(0.02,),
        refused="is the model's own here: leave it out, or begin with weights by --from-hf DIR",
    ),
    Foreign(
        "prescale_gradients",
        bool,
        "",
        nothing=(False,),
        refused="rounds gradients otherwise than one device does: leave it out",
    ),
    Foreign(
        "gradient_predivide_factor",
        float,
        "",
        nothing=(1.0,),
        refused="rounds gradients otherwise than one device does: leave it out",
    ),
    *(
        Foreign(
            name, float, "", nothing=(value,), refused="is for fp16, which is not computed in here: use --dtype bf16"
        )
        for name, value in {
            "loss_scale": 0.0,
            "initial_scale_power": 32.0,
            "loss_scale_window": 1000.0,
            "hysteresis": 2.0,
            "min_loss_scale": 1.0,
        }.items()
    ),
    Foreign("full_profiling", bool, "", "Does nothing: --lowest-frequency and --frequency-stride bound a sweep."),
    Foreign("num_swaps", int, "", nothing=(0,), refused="is for a schedule that is not here: use one of --schedule"),
    Foreign(
        "envpipe_reschedule_cnt", str, "", refused="is for EnvPipe's schedule, which is not here: use one of --schedule"
    ),
    Foreign(
        "zero_stage",
        int,
        "shard_optimizer",
        "1: divide the optimizer's state over the ranks that share a stage.",
        nothing=(0,),
        values={1: True},
        refused="divides more than the optimizer's state: use --shard parameters (FSDP)",
    ),
)
APART = ("train_schedule", "activation_checkpointing", "checkpoint_num_layers", "save")
"""What more than a table says of, here and in huggingface."""

SCHEDULES = {
    "1f1b": ("1f1b", "none"),
    "ds_default": ("1f1b", "none"),
    "early_recompute_1f1b": ("early-recompute-1f1b", "but-last"),
    "last_no_recompute_1f1b": ("1f1b", "but-last"),
    # Merak begins one more forward early in the last stage but one; steps are the same.
    "full_critical_path_1f1b": ("1f1b", "but-last"),
    "shifted_critical_path": ("1f1b", "but-last"),
    # It differs from 1f1b in the clock of the GPU, which is not the plan's business.
    "instruction_profiler": ("1f1b", "none"),
}
"""Merak's schedules: the schedule each runs and which stages recompute."""


def translate(said: Said) -> None:
    """Say it in Halocline's own words."""
    said.same(*(flag.name for flag in FLAGS if flag.name not in APART))
    recompute = "none"
    if "train_schedule" in said.foreign:
        name = said.foreign["train_schedule"]
        require_choice("train_schedule", name, SCHEDULES)
        schedule, recompute = SCHEDULES[name]
        said.say("schedule", schedule, "train_schedule")
        if recompute != "none":
            said.say("recompute", recompute, f"train_schedule = {name}, so recompute")
        if name == "instruction_profiler":
            _sweep(said)
    _checkpointing(said, recompute)
    profile = str(said.words.get("profile")).lower()
    if profile in ("true", "false"):  # Merak's switch, and no file
        del said.words["profile"]
        if profile == "true":
            _sweep(said)


def _checkpointing(said: Said, scheduled: str) -> None:
    """Which stages recompute, where the schedule does not decide."""
    asked: dict[str, bool] = {
        name: said.foreign[name]
        for name in ("activation_checkpointing", "gradient_checkpointing")
        if name in said.foreign
    }
    number = said.foreign.get("checkpoint_num_layers")
    if number is not None:
        if number not in (0, 1):
            raise ValueError(
                f"checkpoint_num_layers = {number} recomputes that many layers at once, and a stage recomputes whole "
                f"here: use 1 for that, 0 for none, or more stages for less memory"
            )
        asked["checkpoint_num_layers"] = bool(number)
    if not asked:
        return
    on = all(asked.values())
    if on and scheduled == "but-last":
        return
    name = next(name for name, value in asked.items() if value == on)
    value = number if name == "checkpoint_num_layers" else str(on).lower()
    said.say("recompute", "all" if on else "none", f"{name} = {value}, so recompute")


def _sweep(said: Said) -> None:
    if not said.words.get("energy_server"):
        said.words.setdefault("sweep", True)
