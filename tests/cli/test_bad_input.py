"""Every mistake on the command line: exit code 2, one line on stderr that shows what was given, nothing on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest

from halocline.cli import main
from halocline.plan import Plan

CASES = [
    # words, what the line must say
    ("simulat", ["'simulat'", "did you mean simulate?"]),
    ("frobnicate", ["'frobnicate'", "one of"]),
    ("plan", ["'plan'", "plan show"]),
    ("schedule chek x", ["'schedule chek'", "schedule check"]),
    ("--stages 4", ["'--stages'", "not a verb"]),
    ("--verison", ["'--verison'", "did you mean --version?"]),
    ("simulate --microbatchs 4", ["--microbatchs", "did you mean --microbatches?"]),
    ("simulate --bandwith 4", ["--bandwith", "did you mean --bandwidth?"]),
    ("plan show --split-sise 4", ["--split-sise", "did you mean --split-size?"]),
    ("schedule show --stage 4", ["--stage", "did you mean --stages?"]),
    ("simulate --stages", ["--stages", "0 values"]),
    ("simulate --stages four", ["'four'", "whole number"]),
    ("simulate --stages 4.5", ["'4.5'", "whole number"]),
    ("simulate --stages 0", ["stages = 0", "below 1"]),
    ("simulate --stages -3", ["stages = -3", "below 1"]),
    ("simulate --microbatches 0", ["microbatches = 0", "below 1"]),
    ("simulate --replicas 0", ["replicas = 0"]),
    ("simulate --replicas -1", ["replicas = -1"]),
    ("simulate 4", ["(4)", "no flag", "leave them out"]),
    ("simulate --schedule 1f2b", ["'1f2b'", "did you mean '1f1b'?"]),
    ("simulate --schedule gems --microbatches 7", ["7", "use 8"]),
    ("simulate --schedule gems --passes 3", ["3", "even"]),
    ("simulate --schedule gems --microbatches 6 --passes 4", ["6", "4"]),
    ("simulate --schedule 1f1b --passes 2", ["passes = 2", "gems"]),
    ("simulate --schedule chimera --stages 3", ["3", "even"]),
    ("simulate --schedule chimera --microbatches 5", ["5", "use 6"]),
    ("simulate --schedule interleaved --chunks 1", ["chunks = 1"]),
    ("simulate --schedule interleaved --microbatches 6", ["6", "use 8"]),
    ("simulate --schedule gpipe --chunks 2", ["chunks = 2", "interleaved"]),
    ("simulate --schedule gpipe --pipes 2", ["pipes = 2", "gpipe"]),
    ("simulate --pipes 3", ["pipes = 3"]),
    ("simulate --schedule capped --cap 0", ["cap = 0"]),
    ("simulate --schedule capped --cap 50 --activation-bytes 100", ["50", "100"]),
    ("simulate --schedule capped --cap few", ["'few'", "number"]),
    ("simulate --recompute some", ["'some'", "none, all, but-last"]),
    ("simulate --tiles 0", ["tiles = 0"]),
    ("simulate --tiles 2,x", ["tiles = '2,x'"]),
    ("simulate --tiles 1,1,1,1,1", ["5", "4"]),
    ("simulate --lanes 0", ["lanes = 0", "below 1"]),
    ("simulate --forward one", ["--forward", "'one'"]),
    ("simulate --forward 1,,1,1", ["--forward", "''"]),
    ("simulate --forward -1", ["forward = -1"]),
    ("simulate --forward nan", ["forward = nan"]),
    ("simulate --forward 1,2,3", ["forward has 3 numbers", "4 stages"]),
    ("simulate --backward 1,2,3,4,5", ["backward has 5 numbers", "4 stages"]),
    ("simulate --backward 1,-2,1,1", ["backward[1] = -2"]),
    ("simulate --backward 1 --weight 2", ["weight = 2", "backward = 1"]),
    ("simulate --latency -1", ["latency = -1"]),
    ("simulate --bandwidth 0", ["bandwidth = 0"]),
    ("simulate --bandwidth fast", ["'fast'"]),
    ("simulate --json maybe", ["maybe"]),
    ("simulate --json=maybe", ["maybe", "true or false"]),
    ("simulate --width 3", ["--width 3", "20"]),
    ("simulate --microbatches 1000000000", ["1000000000", "fewer microbatches"]),
    ("simulate --stages 1000000000", ["1000000000"]),
    ("simulate --plan nowhere.toml", ["nowhere.toml", "no such file"]),
    ("simulate --plan {tmp}", ["{tmp}", "is a directory"]),
    ("simulate --plan {tmp}/bad.toml", ["bad.toml", "not valid TOML", "line 1"]),
    ("simulate --plan {tmp}/binary.toml", ["binary.toml", "not text"]),
    ("simulate --plan {tmp}/key.toml", ["key.toml", "'microbatchs'", "did you mean 'microbatches'?"]),
    ("simulate --plan {tmp}/type.toml", ["type.toml", "'two'", "whole number"]),
    ("simulate --plan {tmp}/empty.toml", ["empty.toml", "stages is missing"]),
    ("simulate --plan {tmp}/plan.toml --stages 8", ["--stages 8", "stages = 2"]),
    ("simulate --plan {tmp}/plan.toml --schedule gpipe", ["--schedule gpipe", "1f1b"]),
    ("simulate --plan {tmp}/plan.toml --tiles 4", ["--tiles 4", "leave out --tiles"]),
    ("simulate --svg {tmp}/no/such/out.svg", ["out.svg", "there is no directory {tmp}/no/such: make it, or"]),
    ("simulate --trace {tmp}", ["{tmp}", "is a directory"]),
    ("schedule show --out {tmp}/no/out.txt", ["out.txt", "no such file"]),
    ("schedule check", ["no file to check", "FILE"]),
    ("schedule check nowhere.txt", ["nowhere.txt", "no such file"]),
    ("schedule check a b", ["a b"]),
    ("schedule check {tmp}/plan.toml", ["plan.toml", "line 1", "+++"]),
    ("schedule check {tmp}/binary.toml", ["binary.toml", "not text"]),
    ("schedule check {tmp}/line.txt", ["line.txt", "line 8", "'fowrard'", "did you mean 'forward'?"]),
    ("plan show --split-size 0", ["split_size = 0"]),
    ("plan show --split-size 3 --balance 4,4", ["2", "3"]),
    ("plan show --balance 4,4 --layers 9", ["8", "9"]),
    ("plan show --times 3 --schedule gems", ["3", "even"]),
    ("plan show --image-size 1 --num-spatial-parts 4", ["1", "2"]),
    ("plan show --image-size 0 --num-spatial-parts 4", ["image_size = 0"]),
    ("plan show --partition_method custom:0,5,3,9 --pp 3", ["5", "3"]),
    ("plan show --slice-method diagonal", ["'diagonal'", "square"]),
    ("plan show --split-size 2 --pp 4", ["2", "4"]),
    ("plan show --plan {tmp}/plan.toml --split-size 4", ["--stages 4", "stages = 2", "leave out"]),
    ("plan show --plan {tmp}/image.toml --image-size 32", ["32", "64"]),
    ("plan show --pp 2 --out {tmp}", ["{tmp}", "is a directory"]),
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    Plan.uniform(2, microbatches=2).save(tmp_path / "plan.toml")
    Plan.uniform(2, image=(64, 64)).save(tmp_path / "image.toml")
    (tmp_path / "bad.toml").write_text("microbatches = = 2\n")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00plan")
    (tmp_path / "key.toml").write_text("microbatchs = 2\n[[stages]]\nlayers = [0, 1]\n")
    (tmp_path / "type.toml").write_text('microbatches = "two"\n[[stages]]\nlayers = [0, 1]\n')
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "line.txt").write_text("+++\n[[stages]]\nlayers = [0, 1]\n+++\n\n\nrank 0\n  fowrard p0 s0 m0\n")
    return tmp_path


@pytest.mark.parametrize(("line", "words"), CASES, ids=[line for line, _ in CASES])
def test_a_mistake_is_answered_in_one_line(
    line: str, words: list[str], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([word.format(tmp=files) for word in line.split()])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("halocline: error: ")
    assert err.count("\n") == 1 and err.endswith("\n")
    assert "Traceback" not in err
    for word in words:
        assert word.format(tmp=files) in err, err
