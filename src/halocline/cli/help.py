"""The help of a verb: its options and the docstrings under them, drawn by tyro. Knows nothing of what they mean.

tyro reads a dataclass as it is; here each field is first given the plain name of its type and no default of None, since
an option that may be left out says in its docstring what then happens.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Annotated, Any, get_args, get_type_hints

import tyro

_METAVARS = {int: "N", float: "X", str: "TEXT"}


def show_help(options: type, prog: str) -> None:
    """Prints the help of a dataclass of options."""
    hints, docs = get_type_hints(options), _docstrings(options)
    fields: list[Any] = []
    for field in dataclasses.fields(options):
        kinds = [kind for kind in get_args(hints[field.name]) or (hints[field.name],) if kind is not type(None)]
        switch = bool in kinds
        silent = field.default is None or field.default is False or field.default == ""
        argument = tyro.conf.arg(
            help=docs.get(field.name, ""),
            metavar=None if switch else "|".join(_METAVARS[kind] for kind in kinds),
            help_behavior_hint="" if silent else f"(default: {field.default})",
        )
        # Nothing is read here, so every option that takes a value may be text.
        kind, default = (bool, False) if switch else (str | None, None)
        fields.append((field.name, Annotated[kind, argument], dataclasses.field(default=default)))
    shown = dataclasses.make_dataclass(options.__name__, fields, namespace={"__doc__": options.__doc__})
    try:
        tyro.cli(shown, args=["--help"], prog=prog, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit:
        # tyro leaves the program after help; whoever asked for it decides that here.
        pass


def _docstrings(cls: type) -> dict[str, str]:
    """Field -> the docstring under it, of a class and those it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:]):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                    found[field.target.id] = " ".join(below.value.value.split())
    return found
