"""Merak's command line: what its flags and defaults mean, the ten commands of Perseus's paper, dry runs, mistakes."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from halocline.cli import merak
from halocline.cli.options import read_options
from halocline.plan.plan import Plan
from halocline.schedule.generate import generate
from halocline.train.planning import model_of, plan_of
from halocline.train.settings import Settings

FOUR = [
    "bert-huge-uncased 8 32 --partition_method custom:0,8,14,20,26 --num_prof_steps 30",
    "bloom-3b 4 128 --partition_method custom:0,10,18,26,32 --num_prof_steps 4",
    "gpt3-xl 8 128 --partition_method custom:0,8,14,21,27 --num_prof_steps 4",
    "t5-3b 4 32 --partition_method custom:0,16,33,53,74 --num_prof_steps 30",
    "wide-resnet101_8 64 24 --partition_method custom:0,7,16,25,34 --num_prof_steps 20",
]
EIGHT = [
    "bert-huge-uncased 8 32 --partition_method uniform_transformer --num_prof_steps 40 --pp 8 --dp 1 --tp 1",
    "bloom-3b 4 128 --partition_method custom:0,6,10,14,18,22,26,30,32 --num_prof_steps 5 --pp 8  --dp 1 --tp 1",
    "gpt3-2.7b 4 256 --partition_method uniform_transformer --num_prof_steps 4 --pp 8 --dp 1 --tp 1",
    "t5-3b 4 32 --partition_method custom:0,9,16,24,33,43,53,63,74 --num_prof_steps 20 --pp 8 --dp 1 --tp 1",
    "wide-resnet101_8 32 48 --partition_method custom:0,4,9,13,17,21,25,30,34 --num_prof_steps 20 --pp 8 --dp 1 --tp 1",
]

BUT_LAST = [True, True, True, False]


def settings(text: str) -> Settings:
    return merak.settings_of(read_options(merak.Options, text.split(), merak.POSITIONAL, defaults=merak.DEFAULTS))


@pytest.mark.parametrize("command", [*FOUR, *EIGHT])
def test_a_command_of_the_paper_is_a_plan(command: str) -> None:
    said = settings(command)
    plan = plan_of(said, model_of(said))
    _, size, count, _, method, *_ = command.split()
    assert len(plan.stages) == plan.world_size == (8 if "--pp 8" in command else 4)
    assert (plan.microbatches, plan.batch) == (int(count), int(size) * int(count))
    if method.startswith("custom:"):
        bounds = [int(number) for number in method.removeprefix("custom:").split(",")]
        assert [0, *(stage.layers[1] for stage in plan.stages)] == bounds
    assert said.run.steps == 5 + int(command.split("--num_prof_steps ")[1].split()[0])
    assert (plan.schedule, said.optimizer.name, said.run.save_every) == ("1f1b", "adamw", 0)


@pytest.mark.parametrize("command", [FOUR[2], EIGHT[4]])
def test_a_dry_run_proves_and_prices_the_plan(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The real sizes, with no process started; a generous limit on the time of the processor."""
    nodes = "--nnodes 2 --node_rank 1 --master_addr 10.0.0.1 " if "--pp 8" in command else "--nnodes 1 "
    before = time.process_time()
    assert merak.main((nodes + command + " --dry_run true").split()) == 0
    assert time.process_time() - before < 120
    said = " ".join(capsys.readouterr().out.split())
    for words in {"gpt3-xl": ["1,313.63 M parameters", "0 0 0-7 407.17 M 5.36"], "wide-resnet101_8": ["1,517.37 M"]}[
        command.split()[0]
    ]:
        assert words in said
    assert "proved complete, ordered" in said and "makespan" in said and "bubble" in said


def test_a_dry_run_counts_the_instructions_of_each_replica_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert merak.main("resnet-v1-8 2 4 --pp 2 --dp 3 --seq 16 --dry_run true".split()) == 0
    count = generate(Plan.from_flags(pp=2, dp=3, microbatches=4)).instruction_count
    assert f" {count} instructions proved" in capsys.readouterr().out


def test_a_dry_run_of_a_model_that_cannot_be_run_without_data(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "curious_model.py").write_text(
        "from torch import nn\n"
        "class Looks(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * float(x.mean())\n"
        "def make():\n"
        "    return [lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten, lambda: nn.Linear(3, 10), Looks]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert merak.main("curious_model:make 2 4 --pp 2 --dry_run true".split()) == 0
    said = capsys.readouterr().out
    assert "forwards of one layer" in said and "proved" in said
    assert "no device is priced, as layer 3 of curious_model:make cannot be run without data" in said


@pytest.mark.parametrize(
    ("flags", "schedule", "recompute"),
    [
        ("", "1f1b", [False] * 4),
        ("--train_schedule 1f1b --activation_checkpointing true", "1f1b", [True] * 4),
        ("--train_schedule early_recompute_1f1b", "early-recompute-1f1b", [True, True, True, False]),
        ("--train-schedule last_no_recompute_1f1b --activation-checkpointing", "1f1b", [True, True, True, False]),
        ("--train_schedule full_critical_path_1f1b", "1f1b", [True, True, True, False]),
    ],
)
def test_merak_schedules(flags: str, schedule: str, recompute: list[bool]) -> None:
    said = settings(f"gpt3-small 1 4 {flags}")
    plan = plan_of(said, model_of(said))
    assert plan.schedule == schedule
    assert [stage.recompute for stage in plan.stages] == recompute


@pytest.mark.parametrize(
    ("flags", "recompute", "method", "told"),
    [
        ("gpt3-small", BUT_LAST, "uniform_transformer", ("activation checkpointing", "uniform_transformer")),
        ("t5-small --pp 2", [True, False], "uniform_transformer", ("activation checkpointing", "uniform_transformer")),
        ("t5-small --pp 3", [True, True, False], "uniform_floor", ("uniform_floor, as", "stages = 3 is odd")),
        ("wide-resnet50_4", BUT_LAST, "uniform_floor", ("uniform_floor, as the model has no transformer blocks",)),
        ("gpt3-small --activation_checkpointing false", [False] * 4, "uniform_transformer", ("uniform_transformer",)),
        ("gpt3-small --checkpoint_num_layers 0 --partition_method uniform", [False] * 4, "uniform", ()),
        ("gpt3-small --recompute but-last", BUT_LAST, "uniform_transformer", ("uniform_transformer",)),
        ("gpt3-small --activation_checkpointing=True --balance uniform", [True] * 4, "uniform", ()),
        ("gpt3-small --train_schedule ds_default --balance uniform", BUT_LAST, "uniform", ("activation",)),
        ("gpt3-small --schedule gpipe --balance uniform", [True] * 4, "uniform", ("activation",)),
        ("gpt3-small --pp 1 --balance uniform", [True], "uniform", ("activation",)),
        ("gpt3-small --train_schedule early_recompute_1f1b --balance uniform", BUT_LAST, "uniform", ()),
        ("gpt3-small --schedule early-recompute-1f1b --balance uniform", BUT_LAST, "uniform", ()),
        ("gpt3-small --train_schedule shifted_critical_path --balance uniform", BUT_LAST, "uniform", ()),
    ],
)
def test_defaults_that_need_the_model(flags: str, recompute: list[bool], method: str, told: tuple[str, ...]) -> None:
    """And the line that tells what was chosen, which is not there where all was said."""
    model, *rest = flags.split()
    said, line = merak.with_defaults(settings(" ".join([model, "1", "4", *rest])))
    assert [stage.recompute for stage in plan_of(said, model_of(said)).stages] == recompute
    assert said.plan.balance == method
    assert all(words in line for words in told) and bool(line) == bool(told)
    unsaid = not any(word in flags for word in ("checkpoint", "recompute", "critical"))
    assert ("activation" in line) == (unsaid and "early" not in flags), "told where it was not said"


def test_defaults_are_not_laid_over_a_plan_that_is_a_file(tmp_path: Any) -> None:
    Plan.from_flags(stages=2, microbatches=4, layers=15).save(tmp_path / "plan.toml")
    assert merak.with_defaults(settings(f"gpt3-small 1 4 --plan {tmp_path}/plan.toml"))[1] == ""
    assert merak.with_defaults(settings("--resume latest"))[1] == ""


def test_the_command_for_a40s_fits_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Without checkpointing, as it was, the first of eight stages would take 60.85 GiB; an A40 has 48."""
    assert merak.main(f"--nnodes 2 --master_addr 10.0.0.1 {EIGHT[1]} --dry_run true".split()) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "by default: activation checkpointing (but in the last stage, whose backward comes at once; "
    )
    assert "partition_method" not in first, "it was said"
    rows = [line.split() for line in lines if line.strip()[:1].isdigit() and "-" in line]
    assert rows[0][:3] == ["0", "0", "0-5"] and 20 < float(rows[0][-1]) < 23
    assert (
        merak.main(f"--nnodes 2 --master_addr 10.0.0.1 {EIGHT[1]} --dry_run --activation_checkpointing false".split())
        == 0
    )
    assert "60.85" in capsys.readouterr().out


def test_merak_words_of_training() -> None:
    said = settings(
        "gpt3-small 2 4 --num_layers 6 --seq_length 64 --learning_rate 3e-4 --max_steps 9 --bf16 True --fp16 false "
        "--output_dir out --save true --max_grad_norm 0 --lr_scheduler_type cosine --warmup_ratio 0.3"
    )
    assert (said.plan.layers, said.model.num_layers, said.model.seq) == (6, None, 64)
    assert (said.optimizer.lr, said.optimizer.clip, said.optimizer.lr_schedule) == (3e-4, None, "cosine")
    assert (said.run.steps, said.optimizer.warmup, said.run.dtype, said.run.run_dir) == (9, 3, "bf16", "out")
    assert said.run.save_every is None, "of synthetic data, too, where it is asked for"
    assert settings("amoebanet-d 1 4 --num_layers 6").options_of_model["num_layers"] == 6
    assert settings("wide-resnet50_2 1 4 --num_layers 6").options_of_model == {"blocks": 6}


@pytest.mark.parametrize("word", ["--profile", "--profile true", "--profile=True"])
def test_merak_profile_is_a_switch(word: str) -> None:
    words = merak._profiling(f"gpt3-small 1 4 {word} --pp 2".split())
    assert settings(" ".join(words)).energy.sweep and settings(" ".join(words)).energy.profile is None
    words = merak._profiling("gpt3-small 1 4 --pp 2 --profile".split())
    assert settings(" ".join(words)).energy.sweep
    ours = settings("gpt3-small 1 4 --sweep --profile out.csv")
    assert ours.energy.profile == "out.csv"


@pytest.mark.parametrize("method", ["uniform", "uniform_floor", "uniform_transformer", "parameters", "autopipe"])
def test_partition_methods(method: str) -> None:
    said = settings(f"gpt3-small 1 4 --partition_method {method} --hidden 64 --heads 4 --vocab 4096 --seq 16")
    sizes = [b - a for a, b in (stage.layers for stage in plan_of(said, model_of(said)).stages)]
    expected = {
        "uniform": [4, 4, 4, 3],
        "uniform_floor": [3, 4, 4, 4],
        "uniform_transformer": [5, 3, 3, 4],
        "parameters": [1, 5, 4, 5],  # the table is as heavy as five blocks, and the head is the same table
        "autopipe": [6, 4, 4, 1],  # embeddings compute nothing
    }[method]
    assert sizes == expected


def test_the_degrees_and_what_is_left_out() -> None:
    said = settings("gpt3-small 1 4 --pp 2 --dp 2 --tp 2")
    assert plan_of(said, model_of(said)).world_size == 8
    listed = settings("gpt3-small 1 4 --partition_method custom:0,5,15")
    assert len(plan_of(listed, model_of(listed)).stages) == 2, "a list says how many stages there are"
    text = settings("gpt3-small 1 4 --app 1 --datapath somewhere")
    assert (text.run.steps, text.run.save_every, text.data.evaluation_fraction) == (None, None, 0.1)
    assert settings("gpt3-small 1 4 --app 1 --evaluation_fraction 0").data.evaluation_fraction == 0
    assert settings("gpt3-small 1 4 --evaluation_fraction 0.1").data.evaluation_fraction == 0.1
    assert settings("gpt3-small 1 4").data.evaluation_fraction == 0
    assert settings("gpt3-small 1 4 --train_schedule instruction_profiler").run.steps == merak.FOREVER
    assert settings("gpt3-small 1 4 --sweep --steps 7").run.steps == 7


@pytest.mark.parametrize("model", ["gpt3-xl", "bert-huge-uncased", "t5-3b", "bloom-3b", "wide-resnet101_8"])
def test_one_set_of_flags_shrinks_any_model(model: str) -> None:
    said = settings(f"{model} 1 4 --layers 4 --hidden 32 --heads 4 --vocab 100 --seq 16")
    made = model_of(said)
    plan = plan_of(said, made)
    assert made.classes == 100
    assert len(made.layers) == {"gpt3-xl": 7, "bert-huge-uncased": 6, "t5-3b": 14, "bloom-3b": 6}.get(model, 5)
    if model.startswith("wide"):
        assert plan.image == (16, 16)
        assert said.options_of_model["base_width"] == 32 // 8, "the blocks of the widest are 32 wide inside"
    else:
        assert made.sequence == 16


def test_sizes_in_other_words() -> None:
    said = settings("amoebanet-d 1 4 --layers 6 --hidden 48 --model_options num_classes=7")
    assert said.options_of_model == {"num_layers": 6, "num_filters": 48, "num_classes": 7}
    assert settings("wide-resnet50_2 1 4 --image_size 64 --seq 32").plan.image_size == "64"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gpt3-xl 8", "MODEL MICROBATCH_SIZE MICROBATCHES"),
        ("--pp 4", "no MODEL"),
        ("gpt3-xll 8 4", "did you mean gpt3-xl?"),
        ("gpt3-xl 8 4 --nnodes 1 --num_gpus 2", "pp 4 x tp 1 x dp 1 = 4 processes, but NNODES x NUM_GPUS = 1 x 2 = 2"),
        (
            "gpt3-xl 8 4 --pp 2 --dp 3 --nnodes 2 --num_gpus 4",
            "pp 2 x tp 1 x dp 3 = 6 processes, but NNODES x NUM_GPUS",
        ),
        ("gpt3-xl 8 4 --pp 3 --nnodes 2", "3 processes do not divide into NNODES = 2"),
        ("gpt3-xl 8 4 --nnodes 2", "MASTER_ADDR"),
        ("gpt3-xl 8 4 --partition_method custom:0,8,14,21,26", "ends at 26 but the model has 27 layers: end at 27"),
        ("gpt3-xl 8 4 --layers 8 --partition_method custom:0,8,14,21,27", "ends at 27 but the model has 11 layers"),
        ("t5-3b 8 4 --pp 3 --partition_method uniform_transformer", "stages = 3 is odd"),
        ("gpt3-xl 8 4 --hidden 30 --heads 4 --dry_run true", "30"),
        (
            "gpt3-small 8 4 --tp 8 --dry_run true",
            "2.attention has 12 heads, which do not divide among tensor = 8",
        ),
        ("bloom-3b 8 4 --tp 3 --dry_run true", "do not divide among tensor = 3 ranks"),
        ("wide-resnet50_4 8 4 --partition_method uniform_transformer", "does not say which of its layers are blocks"),
        ("wide-resnet50_4 8 4 --hidden 30", "hidden = 30 is not a multiple of 4"),
        ("gpt3-xl 8 4 --train_schedule 1f2b", "did you mean '1f1b'"),
        ("gpt3-xl 8 4 --export_timing_cvs true", "did you mean --export-timing-csv"),
        ("gpt3-xl 8 4 --make_it_fast", "--make_it_fast is not a flag: leave it out; --help all tells those there are"),
        ("gpt3-xl 8 4 --fp16", "fp16 = true needs its loss scaled, which is not done here: use --bf16"),
        ("gpt3-xl 8 4 --num_layers 4 --layers 5", "num_layers = 4 and layers = 5 both say the blocks"),
        ("gpt3-xl 8 4 --per_device_train_batch_size 4", "microbatch_size = 8 and per_device_train_batch_size = 4"),
        ("gpt3-xl 0 4", "microbatch_size = 0"),
        ("gpt3-xl 8 4 --app 2 --pp 1 --layers 1 --hidden 8 --heads 1", "cifar10 data is images"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert merak.main(words.split()) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and "error: " in err
    assert not (tmp_path / "runs").exists()


def test_a_server_by_its_port(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Named by its port, or listening at the usual one; then the server has the lead, and steps have no end."""
    named = settings("gpt3-small 1 4 --nnodes 2 --master_addr 10.0.0.1 --perseus_port 7790")
    assert (named.energy.energy_server, named.run.steps) == ("http://10.0.0.1:7790", merak.FOREVER)
    assert (
        settings("gpt3-small 1 4 --nnodes 1 --perseus_url http://a:1 --perseus_port 2").energy.energy_server
        == "http://a:1"
    )
    with socket.create_server(("localhost", 0)) as server:
        monkeypatch.setattr(merak, "PERSEUS_PORT", server.getsockname()[1])
        found = settings("gpt3-small 1 4 --nnodes 1")
        assert found.energy.energy_server == f"http://localhost:{server.getsockname()[1]}"
        assert "has the lead" in capsys.readouterr().err
        assert settings("gpt3-small 1 4").energy.energy_server is None, "without run.sh nobody looks for one"
    assert settings("gpt3-small 1 4 --nnodes 1").energy.energy_server is None


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert merak.main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for flag in (
        "--partition-method",
        "--train-schedule",
        "--dry-run",
        "--num-gpus",
        "--master-addr",
        "--perseus-port",
    ):
        assert flag in text
