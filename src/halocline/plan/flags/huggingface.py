"""Hugging Face's TrainingArguments, which Merak inherits: what each is called here."""

from __future__ import annotations

import math

from halocline.plan.flags.reader import Foreign, Said
from halocline.plan.require import require_choice

_EVALUATED = 0.1
"""The share of the data that is kept for evaluation where it is asked for."""
_EVERY = 500
"""Hugging Face's steps between checkpoints and evaluations."""
_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused")
_WHEN = ("no", "steps", "epoch")

FLAGS = (
    Foreign("per_device_train_batch_size", int, "microbatch_size", "Samples of a microbatch."),
    Foreign("gradient_accumulation_steps", int, "microbatches", "Microbatches of a step."),
    Foreign("max_steps", int, "steps", "Optimizer steps of the whole run; -1: num_train_epochs says."),
    Foreign("num_train_epochs", float, "epochs", "Passes over the training data, a whole number."),
    Foreign("learning_rate", float, "lr", "Learning rate at its highest."),
    Foreign(
        "lr_scheduler_type",
        str,
        "lr_schedule",
        "linear, cosine, constant, or constant_with_warmup.",
        values={name: name.partition("_")[0] for name in ("linear", "cosine", "constant", "constant_with_warmup")},
        refused="is not here: use linear, cosine or constant (--lr-schedule)",
    ),
    Foreign("warmup_steps", int, "warmup", "Steps over which the learning rate rises; not from 0.", least=0),
    Foreign("warmup_ratio", float, "warmup", "The same, as a share of max_steps."),
    Foreign(
        "optim",
        str,
        "optimizer",
        "adamw_torch and the like, or sgd.",
        values={**dict.fromkeys(_ADAMW, "adamw"), "sgd": "sgd"},
        refused="is not here: use adamw_torch or sgd (--optimizer)",
    ),
    Foreign("adam_beta1", float, "momentum", "AdamW's first beta."),
    Foreign("adam_beta2", float, "beta2", "AdamW's second beta."),
    Foreign("adam_epsilon", float, "", nothing=(1e-8,), refused="is always 1e-08 here: leave it out"),
    Foreign("max_grad_norm", float, "clip", "Norm that gradients are scaled to at most; 0 for none."),
    Foreign("bf16", bool, "dtype", "true: --dtype bf16.", nothing=(False,), values={True: "bf16"}),
    Foreign(
        "fp16",
        bool,
        "",
        nothing=(False,),
        refused="needs its loss scaled, which is not done here: use --bf16 (--dtype bf16), which needs no scale",
    ),
    Foreign("tf32", bool, "", nothing=(False,), refused="is not exact: leave it out, or use --bf16 (--dtype bf16)"),
    Foreign("gradient_checkpointing", bool, "recompute", "As activation_checkpointing."),
    Foreign("dataloader_num_workers", int, "workers", "Processes that load data, per rank.", least=0),
    Foreign("dataloader_drop_last", bool, "", "Does nothing: a step always takes a whole batch."),
    Foreign("output_dir", str, "run_dir", "Where everything goes."),
    Foreign(
        "overwrite_output_dir",
        bool,
        "",
        nothing=(False,),
        refused="writes over a run, which is never done: use another --run-dir, or go on with it by --resume latest",
    ),
    Foreign("resume_from_checkpoint", str, "resume", "A run's directory or a checkpoint's; true: the newest."),
    Foreign("save_strategy", str, "save_every", "When checkpoints are written: no, steps or epoch."),
    Foreign("save_steps", int, "save_every", "Steps between checkpoints."),
    Foreign("save_total_limit", int, "keep", "Complete checkpoints to keep."),
    Foreign("do_train", bool, "", nothing=(True,), refused="leaves nothing to do: leave it out, for a run trains"),
    Foreign("do_eval", bool, "evaluation_fraction", "true: keep a tenth of the data for evaluation; false: none."),
    Foreign("evaluation_strategy", str, "eval_every", "When there is an evaluation: no, steps or epoch."),
    Foreign("eval_strategy", str, "eval_every", "When there is an evaluation: no, steps or epoch."),
    Foreign("eval_steps", int, "eval_every", "Steps between evaluations."),
    Foreign("per_device_eval_batch_size", int, "", "Does nothing: evaluation takes training's batches."),
    Foreign("logging_steps", int, "", "Does nothing: metrics.jsonl has every step."),
    Foreign("logging_strategy", str, "", "Does nothing: metrics.jsonl has every step."),
    Foreign("logging_dir", str, "", refused="is the run's directory here, which has all its metrics: use --run-dir"),
    Foreign(
        "report_to",
        str,
        "tensorboard",
        "tensorboard or none.",
        values={"tensorboard": True, "none": False},
        refused="is not reported to: use tensorboard or none; metrics.jsonl has every step for others to read",
    ),
    Foreign("run_name", str, "", refused="is the name of the run's directory here: use --run-dir"),
    Foreign("no_cuda", bool, "device", "true: --device cpu.", nothing=(False,), values={True: "cpu"}),
    Foreign("use_cpu", bool, "device", "true: --device cpu.", nothing=(False,), values={True: "cpu"}),
    Foreign("local_rank", int, "", "Does nothing: a launcher's environment says which process this is."),
    Foreign("disable_tqdm", bool, "", "Does nothing: there is a bar where there is a terminal."),
    Foreign("torch_compile", bool, "compile", "Run torch.compile on the layers of stages without tiles and lanes."),
    Foreign(
        "label_smoothing_factor", float, "", nothing=(0.0,), refused="is the loss's: give a model of your own its loss"
    ),
    Foreign(
        "load_best_model_at_end", bool, "", nothing=(False,), refused="is not done: every checkpoint of --keep is there"
    ),
    Foreign(
        "push_to_hub",
        bool,
        "",
        nothing=(False,),
        refused="is not done: write the weights by --to-hf DIR, and push them",
    ),
    *(
        Foreign(
            name,
            str,
            "",
            nothing=("",),
            refused="is another program's way to divide a model: use --shard optimizer (ZeRO-1) or --shard parameters",
        )
        for name in ("deepspeed", "fsdp")
    ),
)
APART = (
    *("max_steps", "num_train_epochs", "max_grad_norm", "warmup_steps", "warmup_ratio", "gradient_checkpointing"),
    *("resume_from_checkpoint", "save_strategy", "save_steps"),
    *("do_eval", "evaluation_strategy", "eval_strategy", "eval_steps"),
)
"""What more than a table says of, here and in merak."""


def translate(said: Said) -> None:
    """Say it in Halocline's own words."""
    flags = said.foreign
    said.same(*(flag.name for flag in FLAGS if flag.name not in APART))
    if flags.get("max_steps", 0) > 0:
        said.same("max_steps")
    if "num_train_epochs" in flags and "steps" not in said.words:
        epochs = flags["num_train_epochs"]
        if epochs < 1 or epochs != int(epochs):
            raise ValueError(f"num_train_epochs = {epochs:g} is not a whole number from 1: use one, or max_steps")
        said.say("epochs", int(epochs), "num_train_epochs")
    if "max_grad_norm" in flags:
        said.say("clip", flags["max_grad_norm"] or None, "max_grad_norm")
    resume = flags.get("resume_from_checkpoint")
    if resume is not None and resume.lower() != "false":
        said.say("resume", "latest" if resume.lower() == "true" else resume, "resume_from_checkpoint")
    _warmup(said)
    _saving(said)
    _evaluation(said)


def _warmup(said: Said) -> None:
    steps, ratio = said.foreign.get("warmup_steps", 0), said.foreign.get("warmup_ratio", 0.0)
    name, value = ("warmup_steps", steps) if steps else ("warmup_ratio", ratio)
    if value and said.foreign.get("lr_scheduler_type") == "constant":
        raise ValueError(
            f"{name} = {value} but lr_scheduler_type = constant, which has no warmup: use constant_with_warmup, or "
            f"leave out {name}"
        )
    if "warmup_steps" in said.foreign:
        said.same("warmup_steps")
    if not ratio or steps:
        return
    if not 0 < ratio < 1:
        raise ValueError(f"warmup_ratio = {ratio} is not in [0, 1): it is a share of max_steps")
    if "steps" not in said.words:
        raise ValueError(
            f"warmup_ratio = {ratio} is a share of steps that nothing says: use warmup_steps, or max_steps"
        )
    said.say("warmup", math.ceil(ratio * said.words["steps"]), f"warmup_ratio = {ratio}, so warmup")


def _saving(said: Said) -> None:
    """When checkpoints are written. Merak's save says whether."""
    save, when = said.foreign.get("save"), said.foreign.get("save_strategy")
    if when is not None:
        require_choice("save_strategy", when, _WHEN)
    if save is False or when == "no":
        said.say(
            "save_every", 0, "save = false, so save_every" if save is False else "save_strategy = no, so save_every"
        )
    elif when != "epoch" and "save_steps" in said.foreign:
        said.same("save_steps")
    elif when == "steps":
        said.say("save_every", _EVERY, "save_strategy = steps, so save_every")
    elif save or when == "epoch":
        said.words.setdefault("save_every", None)


def _evaluation(said: Said) -> None:
    flags = said.foreign
    when = flags.get("evaluation_strategy", flags.get("eval_strategy"))
    if when is not None:
        require_choice("evaluation_strategy", when, _WHEN)
    if flags.get("do_eval") or when in ("steps", "epoch") or (when is None and "eval_steps" in flags):
        said.words.setdefault("evaluation_fraction", _EVALUATED)
        if when != "epoch" and "eval_steps" in flags:
            said.same("eval_steps")
        elif when == "steps":
            said.say("eval_every", flags.get("logging_steps", _EVERY), "evaluation_strategy = steps, so eval_every")
    elif when == "no" or "do_eval" in flags:
        name = "do_eval = false" if "do_eval" in flags else "evaluation_strategy = no"
        said.say("evaluation_fraction", 0.0, f"{name}, so evaluation_fraction")
