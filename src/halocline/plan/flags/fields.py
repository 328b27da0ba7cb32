"""A tree of frozen dataclasses as settings with one flag each: `Settings.optimizer.lr` is `--lr`, and `lr` in a file.

Knows dataclasses; nothing of what a setting means. The docstring under a field is its help.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from halocline.plan.require import require_choice, require_type

T = TypeVar("T")
EXAMPLES = {int: "4", float: "2.5", bool: "true", str: "a word"}


def setting(default: Any, *, flag: str = "", also: str = "", common: bool = False, join: str = ",") -> Any:
    """A field whose flag is not its name, that has `also` another spelling, that is `common` enough to stand first in
    help, or whose parts are joined by something else than a comma."""
    return dataclasses.field(default=default, metadata={"flag": flag, "also": also, "common": common, "join": join})


class Setting(NamedTuple):
    """One field of a tree."""

    flag: str
    path: tuple[str, ...]
    """From the tree to its field."""
    kind: type
    """bool, int, float or str: the most general where there are several, None left aside."""
    default: Any
    also: str = ""
    common: bool = False
    join: str = ","

    @property
    def group(self) -> str:
        """What holds it; empty for the tree itself."""
        return self.path[-2] if len(self.path) > 1 else ""


def settings_of(cls: type) -> dict[str, Setting]:
    """Flag -> setting, in the order of the fields."""
    found: dict[str, Setting] = {}
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            inner = settings_of(kind)  # type: ignore[arg-type]
            found |= {flag: one._replace(path=(field.name, *one.path)) for flag, one in inner.items()}
        elif not field.metadata.get("hidden"):
            options = get_args(kind) or (kind,)
            kind = next(kind for kind in (str, float, int, bool) if kind in options)
            more = {key: value for key, value in field.metadata.items() if key != "flag"}
            flag = field.metadata.get("flag") or field.name
            found[flag] = Setting(flag, (field.name,), kind, field.default, **more)
    return found


def changed(base: T, values: Mapping[str, Any]) -> T:
    """The tree with some settings changed, by flag. Lists stand for what a command line writes with commas."""
    known = settings_of(type(base))
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for flag, value in values.items():
        require_choice("setting", flag, known)
        one = known[flag]
        if len(one.path) > 1:
            inner.setdefault(one.path[0], {})[flag] = value
        else:
            own[one.path[0]] = converted(one, value)
    groups = {group: changed(getattr(base, group), theirs) for group, theirs in inner.items()}
    return dataclasses.replace(base, **own, **groups)  # type: ignore[type-var]


def flat(tree: Any) -> dict[str, Any]:
    """Flag -> value."""
    found = {}
    for one in settings_of(type(tree)).values():
        value = tree
        for name in one.path:
            value = getattr(value, name)
        found[one.flag] = value
    return found


def converted(one: Setting, value: Any) -> Any:
    """A value given by keyword, as the command line would have said it. None is one where it is the default."""
    if one.kind is str and isinstance(value, (list, tuple)):
        value = one.join.join(map(str, value))
    elif one.kind is str and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is not None or one.default is not None:
        require_type(one.flag, value, one.kind, EXAMPLES[one.kind])
    return value


def help_of(cls: type) -> dict[str, str]:
    """Flag -> the docstring under its field, and `group:` -> the docstring of its class."""
    hints = get_type_hints(cls)
    found: dict[str, str] = {}
    docs = {
        name: text for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base) for name, text in _docs(base)
    }
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            inner = hints[field.name]
            found |= {f"{field.name}:": inspect.getdoc(inner) or "", **help_of(inner)}  # type: ignore[arg-type]
        else:
            found[field.metadata.get("flag") or field.name] = docs.get(field.name, "")
    return found


def _docs(cls: type) -> Iterator[tuple[str, str]]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for field, below in zip(body.body, body.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                yield field.target.id, " ".join(below.value.value.split())
