"""Completion in shells: `halocline --print-completion bash`, or `--install-completion` for the shell in use. shtab
writes the script from a parser of all verbs and their flags.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from halocline.cli.verbs import VERBS
from halocline.plan.flags.dialects import FOREIGN
from halocline.plan.flags.fields import help_of, settings_of
from halocline.plan.flags.reader import spelled

PRINT, INSTALL = "--print-completion", "--install-completion"
HOMES = {
    "bash": "~/.local/share/bash-completion/completions/halocline",
    "zsh": "~/.zfunc/_halocline",
    "tcsh": "~/.halocline.completion.tcsh",
}
"""Where each shell looks, or can be told to look."""
THEN = {
    "bash": "start a new shell",
    "zsh": "put `fpath+=~/.zfunc; autoload -Uz compinit && compinit` into ~/.zshrc and start a new shell",
    "tcsh": "put `source ~/.halocline.completion.tcsh` into ~/.tcshrc and start a new shell",
}


def complete(words: Sequence[str]) -> int:
    """Print or install the script; the exit code."""
    shell = words[1] if len(words) > 1 else Path(os.environ.get("SHELL", "")).name
    if shell not in HOMES:
        raise ValueError(f"{words[0]} {shell or 'SHELL'} is not known: use one of {', '.join(HOMES)}")
    import shtab  # only who asks for completion pays for it

    script = shtab.complete(_parser(), shell)
    if words[0] == PRINT:
        print(script)
        return 0
    path = Path(HOMES[shell]).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script + "\n", encoding="utf-8")
    print(f"wrote {path}: {THEN[shell]}")
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
        inner = (groups[first] if second else verbs).add_parser(second or first, help=verb.help)
        options = import_module(verb.module).Options
        docs = help_of(options)
        for one in settings_of(options).values():
            inner.add_argument(spelled(one.flag), help=docs[one.flag].replace("%", "%%"))
        if "stages" in docs and "plan" in docs:
            for name, flag in FOREIGN.items():
                if name not in docs:
                    inner.add_argument(spelled(name), help=flag.help.replace("%", "%%"))
    return parser
