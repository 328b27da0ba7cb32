"""The environment of Perseus's and Zeus's server: what is taken over, what is named, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from halocline.energy.server.environment import options_of


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, {}),
        ({"PATH": "/bin", "PERSEUS_PORT": "7787", "PERSEUS_URL": "x", "ZEUS_PFO_SCHEDULER": ""}, {}),
        ({"ZEUS_PFO_SCHEDULER": "InstructionProfiler3D"}, {"scheduler": "instruction-profiler"}),
        ({"PERSEUS_SCHEDULER": "AllMaxFrequency", "PERSEUS_MODE": "frequency"}, {"scheduler": "all-max"}),
        ({"zeus_pfo_scheduler": "all-max"}, {"scheduler": "all-max"}),
        ({"ZEUS_PFO_SCHEDULER": "AllMax", "PERSEUS_SCHEDULER": "InstructionProfiler"}, {"scheduler": "all-max"}),
        (
            {"ZEUS_PFO_SCHEDULER": "PointSolution", "ZEUS_PFO_SCHEDULER_ARGS": '{"solution_path": "a b.py"}'},
            {"scheduler": "point-solution", "plans": "a b.py"},
        ),
        # Zeus's server plays a solution where nothing else is said.
        ({"ZEUS_PFO_SCHEDULER_ARGS": '{"solution_path": "x.py"}'}, {"scheduler": "point-solution", "plans": "x.py"}),
        ({"PERSEUS_SCHEDULER_ARGS": '{"minimum_power_state": 850}'}, {"lowest_frequency": 850}),
        ({"ZEUS_PFO_MAX_JOB_IDLE_TIME": "604800"}, {"keep_days": 7.0}),
    ],
)
def test_what_has_an_option_is_taken_over(variables: dict[str, str], options: dict[str, Any]) -> None:
    found = options_of(variables)
    assert (found.options, found.unused) == (options, [])
    assert bool(found.line()) == bool(options)


def test_the_rest_is_named_with_what_takes_its_place() -> None:
    found = options_of(
        {
            "ZEUS_PFO_SCHEDULER": "PointSolution3D",
            "ZEUS_PFO_SCHEDULER_ARGS": json.dumps(
                {"solution_path": "p.py", "warmup_iters": 2, "reverse": True, "x": 1}
            ),
            "ZEUS_PFO_DUMP_DATA": "true",
            "ZEUS_PFO_DUMP_DIR": "./dump",
            "ZEUS_PFO_LOG_LEVEL": "INFO",
            "ZEUS_PFO_NEW": "1",
            "PERSEUS_DUMP_DIR": "beside Zeus's",
        }
    )
    line = found.line()
    assert line.startswith("from the environment: --scheduler point-solution --plans p.py; not used: ")
    assert "\n" not in line
    for words in (
        "ZEUS_PFO_DUMP_DATA (--data keeps everything)",
        "ZEUS_PFO_DUMP_DIR (--data keeps everything)",
        "ZEUS_PFO_LOG_LEVEL (errors are logged)",
        "warmup_iters of ZEUS_PFO_SCHEDULER_ARGS (the job leaves out --profile-warmup steps)",
        "reverse of ZEUS_PFO_SCHEDULER_ARGS (one plan is played)",
        "x of ZEUS_PFO_SCHEDULER_ARGS",
        "ZEUS_PFO_NEW",
    ):
        assert words in line
    assert "PERSEUS" not in line


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ZEUS_PFO_SCHEDULER", "ZeusGlobalPowerLimit", "ZEUS_PFO_SCHEDULER: scheduler = 'ZeusGlobalPowerLimit'"),
        ("ZEUS_PFO_SCHEDULER_ARGS", "solution_path=x.py", "ZEUS_PFO_SCHEDULER_ARGS = 'solution_path=x.py' is no JSON"),
        ("ZEUS_PFO_SCHEDULER_ARGS", "[" * 100_000, "is no JSON object"),
        ("PERSEUS_SCHEDULER_ARGS", "[]", "PERSEUS_SCHEDULER_ARGS = '\\[\\]' is no JSON object"),
        ("ZEUS_PFO_SCHEDULER_ARGS", '{"solution_path": 7}', "solution_path = '7' is no path"),
        ("ZEUS_PFO_SCHEDULER_ARGS", '{"minimum_power_state": "low"}', "minimum_power_state = 'low' is no frequency"),
        ("ZEUS_PFO_SCHEDULER_ARGS", '{"minimum_power_state": -1}', "minimum_power_state = '-1' is no frequency"),
        ("ZEUS_PFO_MAX_JOB_IDLE_TIME", "0", "ZEUS_PFO_MAX_JOB_IDLE_TIME = '0' is no number of seconds above 0"),
        ("ZEUS_PFO_MAX_JOB_IDLE_TIME", "a week", "ZEUS_PFO_MAX_JOB_IDLE_TIME = 'a week'"),
        ("PERSEUS_MODE", "power limit", "PERSEUS_MODE = 'power limit': clocks are set here"),
    ],
)
def test_what_is_wrong_is_told_with_its_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        options_of({variable: value})
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
