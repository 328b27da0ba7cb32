"""The text form gives every schedule back, and says which line it could not read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline.plan import SCHEDULES, Plan, Stage
from halocline.schedule import ScheduleError, check, generate
from halocline.schedule.text import read, write


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    schedule = draw(st.sampled_from(SCHEDULES))
    pipes = 2 if schedule in ("gems", "chimera") else 1
    chunks = 2 if schedule == "interleaved" else 1
    places = draw(st.integers(1, 4)) * (2 if schedule == "chimera" else 1)
    microbatches = draw(st.integers(1, 3)) * (places if chunks > 1 else 2)
    grids = draw(st.lists(st.sampled_from([(1, 1), (1, 2), (2, 2)]), min_size=places, max_size=places))
    recompute = draw(st.booleans())
    stages = tuple(
        Stage(
            (s, s + 1),
            tiles=grids[s % places],
            lanes=draw(st.integers(1, 2)) if chunks == 1 else 1,
            recompute=recompute,
        )
        for s in range(places * chunks)
    )
    return Plan(stages, schedule, microbatches, pipes, replicas=draw(st.integers(1, 2)), chunks=chunks)


@given(plans())
@settings(max_examples=60, deadline=None)
def test_read_gives_back_what_write_wrote(plan: Plan) -> None:
    schedule = generate(plan)
    text = write(schedule)
    again = read(text)
    assert again.plan == plan
    assert again.ranks == schedule.ranks
    assert write(again) == text
    check(again)


def text_of(stages: int = 2, microbatches: int = 2) -> str:
    return write(generate(Plan.uniform(stages, microbatches=microbatches)))


def test_comments_blank_lines_and_indent_are_free() -> None:
    text = text_of()
    loose = text.replace("  forward p0 s0 m0\n", "\n# the first\nforward   p0 s0 m0   # here\n\n")
    assert loose != text
    assert read(loose).ranks == read(text).ranks


def test_an_edited_schedule_is_read_and_then_refused_by_the_checker() -> None:
    text = text_of()
    edited = text.replace("  backward p0 s1 m0\n", "", 1)
    with pytest.raises(ScheduleError, match=r"rank 1: backward p0 s1 m0 is missing"):
        check(read(edited))


LINE = {line.strip(): number for number, line in reversed(list(enumerate(text_of().splitlines(), start=1)))}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("forward p0 s0 m0", "forwards p0 s0 m0", "did you mean 'forward'"),
        ("forward p0 s0 m0", "forward p0 s0", "write 'forward p0 s0 m0'"),
        ("forward p0 s0 m0", "forward s0 p0 m0", "write 'forward p0 s0 m0'"),
        ("forward p0 s0 m0", "forward p0 s0 mx", "forward p0 s0 mx"),
        ("forward p0 s0 m0", "forward p0 s0 m0 -> 1", "says more than an instruction"),
        ("forward p0 s0 m0", "forward p0 s0 m-1", "forward p0 s0 m-1"),
        ("send activation p0 s0 m0 -> 1", "send p0 s0 m0 -> 1", "one of activation, gradient"),
        ("send activation p0 s0 m0 -> 1", "send activation p0 s0 m0", "names no peer"),
        ("send activation p0 s0 m0 -> 1", "send activation p0 s0 m0 <- 1", "send activation p0 s0 m0 <- 1"),
        ("rank 1", "rank 2", "rank 1 comes next"),
        ("rank 0", "# rank 0", "stands before any rank"),
    ],
)
def test_errors_name_the_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(text_of().replace(old, new, 1))
    # Without its heading, the first line that has no rank is the one after it.
    line = LINE[old] + 1 if new.startswith("#") else LINE[old]
    assert f"line {line}:" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: a schedule begins with its plan"),
        ("rank 0\n", "line 1: a schedule begins with its plan"),
        ("+++\nmicrobatches = 2\n", "line 1: the plan has no end"),
        ("+++\nmicrobatches = \n+++\n", "at line 2"),
        ('+++\nschedule = "2f2b"\n[[stages]]\nlayers = [0, 1]\n+++\n', "lines 1 to 5: schedule = '2f2b' is unknown"),
    ],
)
def test_errors_in_the_plan_name_its_lines(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(text)
    assert message in str(caught.value)
