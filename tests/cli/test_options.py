"""A verb's options: what was said becomes settings, a file is read first, and help is a page with groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halocline.cli import main
from halocline.cli.options import help_parser, read_options
from halocline.cli.simulate import Options as Simulate
from halocline.cli.train import Options as Train
from halocline.cli.verbs import VERBS
from halocline.cli.verify import Options as Verify
from halocline.plan.flags.dialects import FOREIGN
from halocline.plan.flags.fields import flat
from halocline.plan.flags.reader import spelled
from halocline.train.settings import Settings


def train(words: str) -> Settings:
    return read_options(Train, words.split(), ("model",)).settings


def test_what_was_said_is_recorded_as_said() -> None:
    said = train("small-cnn --lr 0.1 --dtype float32 --accumulate 1 --no-sequence-parallel")
    assert said.said == {"model", "lr", "dtype", "accumulate", "sequence_parallel"}
    assert said == train("small-cnn"), "all at their defaults"
    assert train("small-cnn --num-workers 0 --app 3").said == {"model", "workers", "data"}


def test_foreign_flags_are_settings_of_a_run() -> None:
    words = "--split-size 3 --num-spatial-parts 4,2 --spatial-size 2 --parts 2 --num-epochs 3 --local-DP 2"
    assert train(f"small-cnn {words}") == train(
        "small-cnn --stages 3 --tiles 2x2,1x2 --microbatches 2 --epochs 3 --lanes 2"
    )
    said = train("gpt3-small --pp 2 --tp 2 --export_timing_csv true --perseus_url http://a:1 --num_prof_steps 4")
    assert (said.energy.timing_csv, said.energy.energy_server, said.energy.profile_steps) == (True, "http://a:1", 4)
    assert (said.plan.stages, said.plan.tensor) == (2, 2)


@pytest.mark.parametrize(
    ("words", "source"),
    [
        ("--data slides", "slides"),
        ("--data cifar10:files", "cifar10:files"),
        ("--data lesions", "lesions"),
        ("--lesions", "lesions"),
        ("--app 1 --datapath slides", "slides"),
        ("--app 2 --datapath files", "cifar10:files"),
        ("", "synthetic"),
        ("--app 3", "synthetic"),
    ],
)
def test_data(words: str, source: str) -> None:
    assert train(f"small-cnn {words}").data.source == source


def test_a_file_says_it_all_and_flags_override_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    words = "resnet-v1-8 --split-size 2 --num-spatial-parts 4 --data lesions --steps 7 --lr 0.02"
    assert main(["train", *words.split(), "--write", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    said = train(words)
    assert train(str(path)) == said
    assert flat(train(f"{path} --stages 3 --epochs 2 --lr 0.1")) == {
        **flat(said),
        **{"stages": 3, "steps": None, "epochs": 2, "lr": 0.1},
    }


def test_a_plan_file_takes_the_place_of_what_a_run_file_says_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(Settings.of(model="small-cnn", stages=2, tiles="2x2", batch_size=4).to_toml())
    said = train(f"{path} --plan plan.toml").plan
    assert (said.file, said.stages, said.tiles, said.batch_size) == ("plan.toml", None, None, 4)


def test_a_plan_named_in_a_run_file_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[model]\nmodel = "small-cnn"\n[plan]\nplan = "plan.toml"\n')
    assert train(str(tmp_path / "run.toml")).plan.file == str(tmp_path / "plan.toml")


def test_a_plan_beside_a_file_that_is_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    assert main("train small-cnn --plan plans/a.toml --write kept/run.toml".split()) == 0
    file = train("kept/run.toml").plan.file
    assert file is not None and (tmp_path / file).resolve() == tmp_path / "plans" / "a.toml"
    assert main("train small-cnn --plan auto --write kept/auto.toml".split()) == 0
    assert train("kept/auto.toml").plan.file == "auto"


def test_a_file_that_is_written_is_told_from_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("train small-cnn --write run.txt".split()) == 2
    assert "--write run.txt does not end in .toml, by which a file is told from MODEL" in capsys.readouterr().err


def test_flags_of_things_that_a_verb_does_not_ask_about_are_passed_over_if_they_are_another_programs() -> None:
    words = "--split-size 2 --num-workers 4 --app 1 --datapath x --perseus_url http://a:1 --energy_breakdown"
    assert read_options(Verify, ["small-cnn", *words.split()], ("model",)).plan.stages == 2
    assert read_options(Simulate, words.split()).plan.stages == 2
    for options in (Simulate, Verify):
        for words in ("--lr 1", "--from-hf x", "--resume x", "--data x"):
            with pytest.raises(ValueError, match=f"{words.split()[0]} is not a flag: "):
                read_options(options, words.split())


def test_other_spellings() -> None:
    assert train("small-cnn -v").run.verbose is True
    assert train("--name small-cnn").model.name == "small-cnn"


# -- help ----------------------------------------------------------------------------------------------------------


def page(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert main(line.split()) == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_is_a_page_and_names_the_rest_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 110
    text = " ".join(" ".join(lines).split())
    for group in ("model: which", "data: which", "plan: who", "optimizer: how", "energy: meters", "run: how"):
        assert group in text
    assert "--stages N Stages in a pipe." in text
    assert "--weight-decay" in text and "Weight decay;" not in text


def test_help_of_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    text = page(capsys, "train --help optimizer")
    assert "--weight-decay X Weight decay;" in text and "--stages" not in text
    assert "--bandwidth X Bytes per unit" in page(capsys, "simulate --help costs")
    everything = page(capsys, "train --help all")
    assert all(spelled(flag) in everything for flag in (*flat(Settings()), *FOREIGN))
    assert main("train --help colours".split()) == 2
    assert "--help colours names no group: use --help, --help all, or one of" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "verify", "plan show", "simulate", "schedule show", "energy frontier"])
def test_help_of_another_programs_flags_names_ours(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(page(capsys, f"{verb} --help {name}") for name in ("now-dl", "merak", "huggingface"))
    for flag in FOREIGN.values():
        assert flag.told.replace("- ", "-") in text.replace("- ", "-"), flag
    assert "Does nothing: gradients are always summed while backwards run." in text
    assert "Does nothing: --timing-csv has the energy of each instruction." in text


def test_every_verb_that_takes_a_plan_takes_the_same_flags() -> None:
    seen: dict[str, dict[str, Any]] = {}
    for verb in VERBS:
        module = __import__(verb.module, fromlist=["Options"])
        actions = help_parser(module.Options, verb.name, "all")._actions
        names = {action.option_strings[0]: action.help for action in actions}
        if "--stages" in names and "--plan" in names:
            seen[verb.name] = names
    first, *others = seen.values()
    shared = set(first).intersection(*others)
    ours = {spelled(flag) for flag in flat(Settings().plan)} | {spelled(name) for name in FOREIGN}
    assert ours <= shared
    assert {"plan show", "schedule show", "simulate", "verify", "train", "energy frontier"} <= seen.keys()
    assert all(other[flag] == first[flag] for other in others for flag in ours)
