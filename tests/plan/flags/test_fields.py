"""A tree of settings by its flags: what is said takes its place in it, and what does not fit is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from halocline.plan.flags.fields import changed, flat, help_of, setting, settings_of
from halocline.plan.settings import PlanSettings


@dataclass(frozen=True)
class Leaves:
    """leaves: what a tree has"""

    colour: str = setting("green", flag="leaf_colour", also="--colour", common=True)
    """What one sees
    of them."""
    count: int | None = None
    """How many."""


@dataclass(frozen=True)
class Tree:
    """A tree."""

    leaves: Leaves = field(default_factory=Leaves)
    height: float = 2.0
    """Metres."""


def test_each_field_is_a_flag() -> None:
    known = settings_of(Tree)
    assert list(known) == ["leaf_colour", "count", "height"]
    colour = known["leaf_colour"]
    assert (colour.path, colour.group, colour.kind, colour.also) == (("leaves", "colour"), "leaves", str, "--colour")
    assert (colour.common, known["count"].common, known["count"].kind, known["height"].group) == (True, False, int, "")


def test_help_is_the_docstrings() -> None:
    assert help_of(Tree) == {
        "leaves:": "leaves: what a tree has",
        "leaf_colour": "What one sees of them.",
        "count": "How many.",
        "height": "Metres.",
    }
    assert all(text.endswith((".", ")")) for text in help_of(PlanSettings).values())


def test_what_is_said_takes_its_place() -> None:
    tree = changed(Tree(), {"leaf_colour": "red", "height": 3})
    assert tree == Tree(Leaves("red"), 3)
    assert flat(tree) == {"leaf_colour": "red", "count": None, "height": 3}
    assert changed(tree, {"count": None, "height": 2.0}).leaves is not tree.leaves
    assert changed(tree, {}) == tree


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"hieght": 3.0}, "setting = 'hieght' is unknown: did you mean 'height'?"),
        ({"height": "tall"}, "height = 'tall' is not a number: give 2.5"),
        ({"count": 2.5}, "count = 2.5 is not a whole number: give 4"),
        ({"count": True}, "count = True is not a whole number"),
        ({"leaf_colour": 2.5}, "leaf_colour = 2.5 is not text"),
    ],
)
def test_what_does_not_fit_is_told(said: dict[str, object], answer: str) -> None:
    with pytest.raises(ValueError) as caught:
        changed(Tree(), said)
    assert answer in str(caught.value) and "\n" not in str(caught.value)


def test_keywords_take_lists_and_numbers_where_the_command_line_takes_commas() -> None:
    made = changed(PlanSettings(), {"balance": [4, 4], "image_size": (512, 384), "tiles": (2, 3)})
    assert made == PlanSettings(balance="4,4", image_size="512,384", tiles="2x3")
    assert changed(PlanSettings(), {"image_size": 512}).image == (512, 512)


def test_a_tree_of_settings_is_flat_by_flag() -> None:
    assert flat(PlanSettings(file="plan.toml", stages=3))["plan"] == "plan.toml"
    assert set(flat(PlanSettings())) == set(settings_of(PlanSettings))
