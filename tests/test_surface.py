"""What users may import from `halocline`, frozen: a change here is a change for every user."""

import halocline

SURFACE = ["Costs", "Layout", "Plan", "Schedule", "Stage", "check", "generate", "simulate", "tiling"]


def test_the_public_surface_is_this() -> None:
    assert halocline.__all__ == SURFACE
    for name in SURFACE:
        assert getattr(halocline, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(halocline, "plans")
