"""Completion, as bash asks for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from halocline.cli import main
from halocline.cli.completion import SHELLS

TAB = """
source {script}
COMP_WORDS=({words} "{last}")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_tyro_halocline
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is installed for bash in a home of its own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("SHELL", "/usr/bin/bash")
        assert main(["--install-completion"]) == 0
    return home / ".local/share/bash-completion/completions/halocline"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "last", "expected"),
    [
        ("halocline", "sim", {"simulate"}),
        ("halocline energy", "f", {"frontier"}),
        ("halocline plan", "s", {"show"}),
        ("halocline train", "--til", {"--tiles"}),
        ("halocline train", "--num-sp", {"--num-spatial-parts"}),
        ("halocline plan show", "--partition", {"--partition-method"}),
        ("halocline energy serve", "--po", {"--port"}),
        ("halocline export", "--to", {"--to-hf"}),
    ],
)
def test_a_tab(words: str, last: str, expected: set[str], script: Path) -> None:
    asked = TAB.format(script=script, words=words, last=last)
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == expected, done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    text = capsys.readouterr().out
    assert "num-spatial-parts" in text and "halocline" in text


def test_a_shell_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", "nushell"]) == 2
    assert capsys.readouterr().err == (
        "halocline: error: --print-completion nushell is not known: use one of bash, zsh, fish\n"
    )
