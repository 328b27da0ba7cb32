"""Merak's (Perseus's) flags: what each is called here, and what its schedules mean."""

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
        "1f1b, early_recompute_1f1b, last_no_recompute_1f1b (both also --recompute but-last), full_critical_path_1f1b, "
        "or instruction_profiler (also --sweep where there is no energy server).",
    ),
    Foreign("activation_checkpointing", bool, "recompute", "true: --recompute all."),
    Foreign("num_warmup_steps", int, "profile_warmup", "Steps before measuring starts.", least=0),
    Foreign("num_prof_steps", int, "profile_steps", "Steps measured for each frequency plan."),
    Foreign("export_timing_csv", bool, "timing_csv", "Write instructions-R.csv and time-energy-R.csv for each rank R."),
    Foreign("export_pytorch_trace", bool, "pytorch_trace", "Write a PyTorch profiler trace."),
    Foreign("perseus_url", str, "energy_server", "Address of the server that hands out frequency plans."),
    Foreign("energy_breakdown", bool, "", "Does nothing: --timing-csv has the energy of each instruction."),
)

SCHEDULES = {
    "1f1b": ("1f1b", "none"),
    "early_recompute_1f1b": ("early-recompute-1f1b", "but-last"),
    "last_no_recompute_1f1b": ("1f1b", "but-last"),
    # These two differ from 1f1b in the clock of the GPU, which is not the plan's business.
    "full_critical_path_1f1b": ("1f1b", "none"),
    "instruction_profiler": ("1f1b", "none"),
}
"""Merak's schedules: the schedule each runs and which stages recompute."""


def translate(said: Said) -> None:
    """Say it in Halocline's own words."""
    said.same("pp", "dp", "tp", "partition_method", "num_warmup_steps", "num_prof_steps")
    said.same("export_timing_csv", "export_pytorch_trace", "perseus_url")
    recompute = "none"
    if "train_schedule" in said.foreign:
        name = said.foreign["train_schedule"]
        require_choice("train_schedule", name, SCHEDULES)
        schedule, recompute = SCHEDULES[name]
        said.say("schedule", schedule, "train_schedule")
        if recompute != "none":
            said.say("recompute", recompute, f"train_schedule = {name}, so recompute")
        if name == "instruction_profiler" and not said.words.get("energy_server"):
            said.words.setdefault("sweep", True)
    checkpointing = said.foreign.get("activation_checkpointing")
    if checkpointing is not None and not (checkpointing and recompute == "but-last"):  # Merak's schedule then decides
        what = f"activation_checkpointing = {str(checkpointing).lower()}, so recompute"
        said.say("recompute", "all" if checkpointing else "none", what)
