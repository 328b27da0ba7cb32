"""Completion in shells: `halocline --print-completion bash`, or `--install-completion` for the shell in use. shtab
writes the script from what prints the help of every verb.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from halocline.cli.options import ALL, help_parser
from halocline.cli.verbs import VERBS

PRINT, INSTALL = "--print-completion", "--install-completion"
SHELLS = {
    "bash": ("~/.local/share/bash-completion/completions/halocline", "start a new shell"),
    "zsh": ("~/.zfunc/_halocline", "put `fpath+=~/.zfunc; autoload -Uz compinit && compinit` into ~/.zshrc"),
    "tcsh": ("~/.halocline.completion.tcsh", "put `source ~/.halocline.completion.tcsh` into ~/.tcshrc"),
}
"""Shell -> where it looks, or can be told to look, and what is then to do."""


def complete(words: Sequence[str]) -> int:
    """Print or install the script; the exit code."""
    shell = words[1] if len(words) > 1 else Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise ValueError(f"{words[0]} {shell or 'SHELL'} is not known: use one of {', '.join(SHELLS)}")
    import shtab  # only who asks for completion pays for it

    script = shtab.complete(_parser(), shell)
    if words[0] == PRINT:
        print(script)
        return 0
    place, then = SHELLS[shell]
    path = Path(place).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script + "\n", encoding="utf-8")
    print(f"wrote {path}: {then}")
    return 0


def _parser() -> argparse.ArgumentParser:
    """Every verb with every flag."""
    parser = argparse.ArgumentParser(prog="halocline")
    verbs = parser.add_subparsers()
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for verb in VERBS:
        first, _, second = verb.name.partition(" ")
        if second and first not in groups:
            groups[first] = verbs.add_parser(first).add_subparsers()
        flags = help_parser(import_module(verb.module).Options, verb.name, ALL)
        (groups[first] if second else verbs).add_parser(second or first, help=verb.help, parents=[flags])
    return parser
