"""What --dry-run prints: the device that is priced, and what would cost nothing to do better."""

import pytest

from halocline.cli import main

SMALL = "gpt3-small --layers 4 --hidden 32 --heads 2 --vocab 4096 --seq 16 --microbatches 4 --batch-size 8 --dry-run"


def said(words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["train", *SMALL.split(), *words.split()]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("device", "name"), [("h200", "h200"), ("cpu", "this CPU, measured")])
def test_the_device_is_named_or_measured(device: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(f"--device {device}", capsys)
    assert any(line.startswith(f"simulated on {name}: makespan ") and line.endswith(" samples/s") for line in out)


def test_a_stage_that_others_wait_for_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    uneven, even = (said(f"--stages 2 --balance {sizes} --device a100", capsys) for sizes in ("6,1", "4,3"))
    assert any(line.startswith("stage 0 takes 1.") and line.endswith("move layers off it") for line in uneven)
    assert not any(line.startswith("stage ") and "move layers" in line for line in even)


def test_recomputing_in_vain_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    advice = "--recompute but-last saves time and costs no memory"
    told = [
        any(line.startswith(advice) for line in said(f"--stages 2 --device a100 {words}", capsys))
        for words in (
            "--schedule 1f1b --recompute all",
            "--schedule 1f1b --recompute but-last",
            "--schedule gpipe --recompute all",
        )
    ]
    assert told == [True, False, False]


def test_what_is_not_priced_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("--tensor 2", "--replicas 2 --shard parameters"):
        out = said(f"{words} --device a100", capsys)
        assert any(line.endswith("; without what ranks tell each other inside a stage") for line in out)


def test_a_device_to_price_is_none_to_train_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "resnet-v1-8", "--device", "a40", "--steps", "1"]) == 2
    assert "add --dry-run, or train on cuda, cpu or auto" in capsys.readouterr().err
