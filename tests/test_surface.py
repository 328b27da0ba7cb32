"""What users may import from `halocline`, frozen: a change here is a change for every user."""

from pathlib import Path

import halocline

SURFACE = ["Costs", "Engine", "Layout", "Plan", "Schedule", "Simulation", "Stage", "check", "generate", "tiling"]


def test_the_public_surface_is_this() -> None:
    assert halocline.__all__ == SURFACE
    for name in SURFACE:
        assert getattr(halocline, name) is not None


def test_a_room_does_not_hide_a_name() -> None:
    """A public function with the name of a room would become that room as soon as the room is imported."""
    rooms = {path.name for path in Path(halocline.__file__).parent.iterdir() if path.is_dir()}
    assert rooms & set(SURFACE) == {"tiling"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(halocline, "plans")
