"""Completion in shells: `halocline --print-completion bash`, or `--install-completion` for the shell in use. tyro
writes the script, from the flags that the help of every verb lists.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from collections.abc import Sequence
from functools import reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from typing import Annotated, Any

from halocline.cli.options import ALL, help_parser
from halocline.cli.verbs import VERBS

PRINT, INSTALL = "--print-completion", "--install-completion"
SHELLS = {
    "bash": ("~/.local/share/bash-completion/completions/halocline", "start a new shell"),
    "zsh": ("~/.zfunc/_halocline", "put `fpath+=~/.zfunc; autoload -Uz compinit && compinit` into ~/.zshrc"),
    "fish": ("~/.config/fish/completions/halocline.fish", "start a new shell"),
}
"""Shell -> where it looks, or can be told to look, and what is then to do."""


def complete(words: Sequence[str]) -> int:
    """Print or install the script; the exit code."""
    shell = words[1] if len(words) > 1 else Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise ValueError(f"{words[0]} {shell or 'SHELL'} is not known: use one of {', '.join(SHELLS)}")
    text = _script(shell)
    if words[0] == PRINT:
        print(text, end="")
        return 0
    place, then = SHELLS[shell]
    path = Path(place).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}: {then}")
    return 0


def _script(shell: str) -> str:
    import tyro  # only who asks for completion pays for it

    verbs: dict[str, dict[str, Any]] = {}
    for verb in VERBS:
        first, _, second = verb.name.partition(" ")
        verbs.setdefault(first, {})[second] = _choice(second or first, _flags(verb.module))
    for name, inner in verbs.items():
        if "" not in inner:
            inner["--help"] = _choice("--help", [])  # tyro takes a union of one for no choice at all
            inner[""] = _choice(name, [("verb", reduce(or_, inner.values()))])
    config = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    # tyro leaves the program after it has printed the script.
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        choice: Any = reduce(or_, (inner[""] for inner in verbs.values()))
        tyro.cli(choice, args=["--tyro-print-completion", shell], prog="halocline", config=config)
    return printed.getvalue()


def _choice(name: str, fields: list[Any]) -> Any:
    import tyro

    return Annotated[dataclasses.make_dataclass("Choice", fields), tyro.conf.subcommand(name)]


def _flags(module: str) -> list[Any]:
    """The flags of a verb, as tyro reads them. Nothing is read here, so every flag that takes a value may be text."""
    import tyro

    fields: list[Any] = []
    for action in help_parser(import_module(module).Options, "", ALL)._actions:
        kind, default = (bool, False) if action.nargs == 0 else (str | None, None)
        argument = tyro.conf.arg(name=action.option_strings[0].removeprefix("--"), help=action.help)
        fields.append((action.dest, Annotated[kind, argument], dataclasses.field(default=default)))
    return fields
