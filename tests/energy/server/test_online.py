"""Whole jobs against real servers: profiled, solved and deployed without a restart of training, also when the server is
killed in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from halocline.cli import main
from halocline.cli.energy_serve import Options, settings_of
from halocline.energy.client import Client, RankSchedule, ServerRefused
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import Frontier, solve
from halocline.energy.server import instruction_profiler
from halocline.energy.server.settings import ServerSettings
from halocline.plan.plan import SCHEDULES, Plan
from halocline.plan.stage import Stage
from harness.serving import BLOCKING, FREQUENCIES, Cast, Near, Own, profile

PLAN = Plan.uniform(4, microbatches=6)
WIDE = Plan(tuple(Stage((s, s + 1), tensor=2) for s in range(2)), microbatches=3, replicas=2)


@contextmanager
def cast(server: Near | Own, plan: Plan) -> Iterator[Cast]:
    made = Cast(Client(server.url, timeout=60.0), plan)
    yield made
    made.close()


def frontier_of(plan: Plan) -> Frontier:
    """What the server must find: its sweep sees every frequency, since its patience is large."""
    return solve(plan, profile(len(plan.stages)), BLOCKING)


def frequencies(plan: Plan, frontier: Frontier, factor: float) -> list[tuple[tuple[str, int], ...]]:
    """What every rank must be told."""
    rows = frontier.plan_at(frontier.time_min * factor).frequencies
    return [rows[rank % plan.ranks_per_replica] for rank in range(plan.world_size)]


def told(schedules: list[RankSchedule]) -> list[tuple[tuple[str, int], ...]]:
    return [schedule.frequencies for schedule in schedules]


@pytest.mark.parametrize("plan", [PLAN, WIDE], ids=["pp", "pp dp tp"])
def test_a_job_is_profiled_solved_and_deployed_while_it_trains(near: Callable[..., Near], plan: Plan) -> None:
    server = near(patience=9, solve_wait=60.0)
    frontier = frontier_of(plan)
    with cast(server, plan) as ranks:
        ranks.register()
        played = ranks.play(until="deployed")
        assert [schedules[0].phase for schedules in played] == ["profiling"] * 6 + ["deployed"]
        assert [{f for _, f in schedules[0].frequencies} for schedules in played[:6]] == [
            {1400}, {1200}, {1000}, {800}, {600}, {400},
        ]  # fmt: skip
        assert told(played[-1]) == frequencies(plan, frontier, 1.0)
        assert played[-1][0].time == pytest.approx(frontier.time_min)
        ranks.report(played[-1])

        # A straggler elsewhere: everybody's next schedule is the slowest plan that still meets it.
        answer = ranks.client.straggler(ranks.job, 1.2)
        assert answer["time"] == pytest.approx(1.2 * frontier.time_min)
        assert told(ranks.schedules()) == frequencies(plan, frontier, 1.2)
        # It is over: the next schedule is the fastest again, though nobody has reported.
        ranks.client.straggler(ranks.job, 1.0)
        assert told(ranks.schedules()) == frequencies(plan, frontier, 1.0)

        facts = ranks.client.frontier(ranks.job, time=1.1 * frontier.time_min)
        assert facts["simulated"] and facts["device"] == "simulated"
        assert facts["time_min"] == pytest.approx(frontier.time_min)
        assert facts["time_star"] == pytest.approx(frontier.time_star)
        for time, energy in facts["points"][1:]:
            assert energy == pytest.approx(frontier.energy_at(time), rel=1e-6)
        assert facts["all_max"]["energy"] == pytest.approx(frontier.all_max.energy)
        chosen = frontier.plan_at(1.1 * frontier.time_min)
        assert facts["plan"]["energy"] == pytest.approx(chosen.energy)
        assert facts["plan"]["saved"] == pytest.approx(1 - chosen.energy / frontier.all_max.energy)
        bars = facts["plan"]["timeline"]
        assert len(bars) == plan.ranks_per_replica * plan.microbatches * 2
        assert max(end for *_, end, _ in bars) == pytest.approx(chosen.time)
        # What was measured is what the ranks said: 1 s an iteration at the highest frequency, and less energy since.
        saved = ranks.client.job(ranks.job)["measured"]
        assert saved["energy"] > 0.02 and saved["slowdown"] == pytest.approx(0.0)


def test_a_straggler_that_is_noticed_early_counts_when_the_frontier_is_there(near: Callable[..., Near]) -> None:
    server = near(patience=9, solve_wait=60.0)
    with cast(server, PLAN) as ranks:
        ranks.register()
        assert "frontier" in ranks.client.straggler(ranks.job, 1.1)["applies"]
        assert told(ranks.play(until="deployed")[-1]) == frequencies(PLAN, frontier_of(PLAN), 1.1)


def test_ranks_go_on_at_the_highest_frequency_while_the_frontier_is_solved(
    near: Callable[..., Near], monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = threading.Event()

    def takes_its_time(*arguments: Any) -> Frontier:
        assert enough.wait(60)
        return solve(*arguments)

    monkeypatch.setattr(instruction_profiler, "solve", takes_its_time)
    server = near(patience=9, solve_wait=0.01)
    with cast(server, PLAN) as ranks:
        ranks.register()
        for _ in range(2):
            meanwhile = ranks.play(until="solving")[-1]
            assert {f for schedule in meanwhile for _, f in schedule.frequencies} == {1400}
            ranks.report(meanwhile)
        enough.set()
        assert told(ranks.play(until="deployed")[-1]) == frequencies(PLAN, frontier_of(PLAN), 1.0)


def test_a_report_without_what_is_profiled_is_refused(shared: Near) -> None:
    with cast(shared, PLAN) as ranks:
        ranks.register()
        ranks.schedules()
        with pytest.raises(ServerRefused, match="no backward of stage 0, which is being profiled"):
            ranks.client.report(ranks.job, 0, [1.0], [9.0], {"forward": [[0.1]]}, {"forward": [[0.1]]})
        with pytest.raises(ServerRefused, match="takes 0 s"):
            zeros = {"forward": [[0.0]], "backward": [[0.0]]}
            ranks.client.report(ranks.job, 0, [1.0], [9.0], zeros, zeros)


def test_all_max_has_no_straggler(shared: Near) -> None:
    with cast(shared, PLAN) as ranks:
        ranks.register(scheduler="all-max")
        with pytest.raises(ServerRefused, match="all-max"):
            ranks.client.straggler(ranks.job, 1.2)


def test_kill_9_and_a_restart_continue_the_job(own: Callable[..., Own]) -> None:
    """Killed in the middle of the sweep, between reports of one round, and again when deployed."""
    options = ("--patience", "9", "--solve-wait", "60")
    frontier = frontier_of(PLAN)
    server = own(*options)
    with cast(server, PLAN) as ranks:
        ranks.register()
        for _ in range(2):
            ranks.report(ranks.schedules())
        half = ranks.schedules()
        ranks.report(half[:2])
        server.kill()

        server = own(*options)
        ranks.client = Client(server.url, timeout=60.0)
        assert ranks.client.job(ranks.job)["reports"] == 10
        # Who has not reported is still in the round, and plays the same.
        assert ranks.client.schedule(ranks.job, 3) == half[3]
        ranks.report(half)  # the first two say it again, which counts once
        assert ranks.client.job(ranks.job)["reports"] == 12
        played = ranks.play(until="deployed")
        assert [next(iter(s[0].frequencies))[1] for s in played[:-1]] == [800, 600, 400]
        assert told(played[-1]) == frequencies(PLAN, frontier, 1.0)
        ranks.client.straggler(ranks.job, 1.15)
        slow = ranks.schedules()
        server.kill()

        server = own(*options)
        ranks.client = Client(server.url, timeout=60.0)
        assert ranks.schedules() == slow
        assert told(slow) == frequencies(PLAN, frontier, 1.15)
        ranks.report(slow)
        assert [schedule.round for schedule in ranks.schedules()] == [slow[0].round + 1] * 4


def test_a_job_goes_on_as_it_began_whatever_the_new_settings(tmp_path: Path) -> None:
    data = tmp_path / "x.sqlite"
    job_info = {"pp_degree": 1, "dp_degree": 1, "tp_degree": 1, "world_size": 1}
    rank_info = {"rank": 0, "dp_rank": 0, "pp_rank": 0, "tp_rank": 0, "available_frequencies": [5, 9]}
    first = Near(data, ServerSettings(scheduler="all-max", microbatches=3))
    _, job = first.ask("POST", "/register_job", job_info)
    first.ask("POST", f"/register_rank/{job}", rank_info)
    schedule = first.ask("GET", f"/schedule/{job}?rank=0")
    assert len(schedule[1]["frequencies"]) == 6
    first.stop()
    second = Near(data, ServerSettings(scheduler="instruction-profiler", microbatches=5))
    assert second.ask("GET", f"/schedule/{job}?rank=0") == schedule
    assert second.ask("GET", f"/jobs/{job}")[1]["scheduler"] == "all-max"
    second.stop()


def test_a_sweep_goes_on_as_it_began_whatever_the_new_settings(tmp_path: Path) -> None:
    data = tmp_path / "x.sqlite"
    job_info = {"pp_degree": 1, "dp_degree": 1, "tp_degree": 1, "world_size": 1}
    rank_info = {"rank": 0, "dp_rank": 0, "pp_rank": 0, "tp_rank": 0, "available_frequencies": [9, 8, 7, 6, 5]}
    first = Near(data, ServerSettings(microbatches=1, stride=2))
    _, job = first.ask("POST", "/register_job", job_info)
    first.ask("POST", f"/register_rank/{job}", rank_info)

    def play(server: Near, energy: float) -> int:
        _, schedule = server.ask("GET", f"/schedule/{job}?rank=0")
        both = {"forward": [[1.0]], "backward": [[1.0]]}
        spent = {"forward": [[energy]], "backward": [[energy]]}
        result = {"rank": 0, "iter_time": [2.0], "iter_energy": [2 * energy]}
        status, _ = server.ask("POST", f"/result/{job}", {**result, "time_breakdown": both, "energy_breakdown": spent})
        assert status == 200
        return int(schedule["frequencies"][0][1])

    assert [play(first, 9.0), play(first, 8.0)] == [9, 7]
    first.stop()
    second = Near(data, ServerSettings(microbatches=1, stride=1, lowest_frequency=6))
    assert play(second, 7.0) == 5
    assert second.ask("GET", f"/schedule/{job}?rank=0")[1]["phase"] == "deployed"
    second.stop()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_written_plans_are_played_for_jobs_that_tell_their_degrees_only(schedule: str, tmp_path: Path) -> None:
    """What `energy frontier --schedule S` writes, `energy serve --schedule S --plans DIR` plays."""
    profile(4).write(tmp_path / "profile.csv")
    words = f"--schedule {schedule} --microbatches 4 --plans 2 --blocking-power {BLOCKING} --json"
    files = ["--profile", str(tmp_path / "profile.csv"), "--out", str(tmp_path)]
    assert main(["energy", "frontier", *words.split(), *files]) == 0
    options = Options(scheduler="point-solution", plans=str(tmp_path / "plans"), schedule=schedule)
    server = Near(tmp_path / "x.sqlite", settings_of(options, token=None))
    places = 2 if schedule == "interleaved" else 4
    degrees = {"pp_degree": places, "dp_degree": 1, "tp_degree": 1, "world_size": places}
    status, job = server.ask("POST", "/register_job", degrees)
    assert status == 200, job
    for rank in range(places):
        seat = {"rank": rank, "dp_rank": 0, "pp_rank": rank, "tp_rank": 0}
        server.ask("POST", f"/register_rank/{job}", {**seat, "available_frequencies": FREQUENCIES})
    with ThreadPoolExecutor(places) as pool:
        replies = list(pool.map(lambda rank: server.ask("GET", f"/schedule/{job}?rank={rank}"), range(places)))
    server.stop()
    assert [status for status, _ in replies] == [200] * places, replies
    fastest = FrequencyPlan.load(tmp_path / "plans" / "plan-0.json")
    assert [reply["frequencies"] for _, reply in replies] == [
        [list(pair) for pair in row] for row in fastest.frequencies
    ]
