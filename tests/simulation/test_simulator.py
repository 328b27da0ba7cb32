"""Messages, reductions, memory and events of the simulator, on schedules small enough to do by hand."""

import math
import time
from itertools import pairwise

import pytest

from halocline.plan import Plan, Stage
from halocline.schedule import generate
from halocline.schedule.instruction import BACKWARD, FORWARD, RECEIVE, REDUCE, SEND, STEP
from halocline.simulation import Costs, simulate


def two(microbatches: int = 1, **fields: bool) -> Plan:
    return Plan((Stage((0, 1), **fields), Stage((1, 2))), "gpipe", microbatches)


def test_latency_is_paid_on_every_hop() -> None:
    assert simulate(generate(two()), Costs(1, 2, latency=0.5)).makespan == 6 + 2 * 0.5


def test_latency_does_not_hold_up_the_sender() -> None:
    result = simulate(generate(Plan.uniform(2, schedule="gpipe", microbatches=4)), Costs(1, 2, latency=10))
    assert result.makespan == (4 + 1) * 3 + 20


def test_a_link_sends_one_message_after_the_other() -> None:
    # Each activation takes 3 on the wire and 1 to make: the third is there at 1 + 3 * 3.
    result = simulate(generate(two(3)), Costs(1, 2, boundary_bytes=30, bandwidth=10), events=True)
    arrivals = [e.end for e in result.events if e.rank == 1 and e.instruction.kind == RECEIVE]
    assert arrivals == [4, 7, 10]


def test_infinite_bandwidth_costs_nothing() -> None:
    plan = Plan.uniform(3, microbatches=4)
    assert simulate(generate(plan), Costs(boundary_bytes=1e9)).makespan == simulate(generate(plan), Costs()).makespan


def test_a_tiled_boundary_is_shared_among_its_links() -> None:
    plan = Plan((Stage((0, 1), tiles=(2, 2)), Stage((1, 2))), "gpipe", 1)
    result = simulate(generate(plan), Costs(1, 2, boundary_bytes=(0, 40), bandwidth=10), events=True)
    sizes = {round(e.end - e.start, 6) for e in result.events if e.instruction.kind == SEND}
    assert sizes == {1.0}, "four messages of 10 bytes each way"
    assert result.makespan == 6 + 2


def test_a_team_waits_for_its_slowest_member() -> None:
    plan = Plan((Stage((0, 1), tiles=(1, 2)), Stage((1, 2))), "gpipe", 1)
    events = simulate(generate(plan), Costs(1, 2), events=True).events
    starts = {e.start for e in events if e.instruction.kind == BACKWARD and e.instruction.stage == 0}
    assert starts == {4}


def test_a_reduction_runs_beside_the_computation_and_the_step_waits_for_it() -> None:
    plan = Plan.uniform(2, schedule="gpipe", microbatches=1, replicas=2)
    result = simulate(generate(plan), Costs(1, 2, reduce=(5, 3), step=0.25), events=True)
    # Stage 1 is done at 4 and reduced at 7; stage 0 at 6 and 11.
    steps = {e.rank: (e.start, e.end) for e in result.events if e.instruction.kind == STEP}
    assert steps == {1: (7, 7.25), 0: (11, 11.25)}
    assert result.makespan == 11.25
    assert result.busy == (3, 3)
    assert not any(e.instruction.kind == REDUCE for e in simulate(generate(two()), events=True).events)


def test_a_backward_recomputes_unless_a_recompute_stood_before_it() -> None:
    late = simulate(generate(two(recompute=True)), Costs(1, 2, recompute=0.5))
    assert late.busy == (3.5, 3)
    assert late.makespan == 6.5
    early = Plan((Stage((0, 1), recompute=True), Stage((1, 2))), "early-recompute-1f1b", 1)
    result = simulate(generate(early), Costs(1, 2, recompute=0.5))
    assert result.busy == (3.5, 3)
    assert result.makespan == 6, "recomputed while the gradient was on its way"


def test_memory_by_hand() -> None:
    # Rank 0 keeps 100 and two activations of 10, and a sent buffer of 3 each until one operation later.
    # Rank 1 keeps 100, both activations and, during the first backward, the gradient that it makes.
    costs = Costs(activation_bytes=10, boundary_bytes=3, weight_bytes=100)
    result = simulate(generate(two(2)), costs)
    assert result.peak_memory == (100 + 20 + 3 + 3, 100 + 20 + 3)
    assert result.peak_activations == (2, 2)


def test_a_recomputing_stage_keeps_only_inputs() -> None:
    plan = Plan((Stage((0, 1)), Stage((1, 2), recompute=True)), "gpipe", 4)
    result = simulate(generate(plan), Costs(activation_bytes=100, boundary_bytes=1))
    assert result.peak_activations == (4, 1)
    assert result.peak_inputs == (0, 4)
    assert result.peak_memory[1] == 4 + 100 + 1, "four inputs, one rebuilt stage, one gradient to send"


def test_a_mirrored_rank_keeps_the_weights_of_both_its_stages() -> None:
    plan = Plan.uniform(3, schedule="gems", microbatches=2, pipes=2)
    result = simulate(generate(plan), Costs(weight_bytes=(1, 10, 100)))
    assert result.peak_memory == (101, 10, 101)


def test_events_are_kept_only_on_request_and_do_not_overlap() -> None:
    schedule = generate(Plan.uniform(4, schedule="chimera", microbatches=8, pipes=2))
    costs = Costs(1, 2, latency=0.1)
    assert simulate(schedule, costs).events == ()
    result = simulate(schedule, costs, events=True)
    assert result.makespan == simulate(schedule, costs).makespan
    for rank in range(4):
        computed = sorted(
            (e.start, e.end) for e in result.events if e.rank == rank and e.instruction.kind in (FORWARD, BACKWARD)
        )
        assert len(computed) == 16
        assert all(end <= start for (_, end), (start, _) in pairwise(computed))
        assert sum(end - start for start, end in computed) == pytest.approx(result.busy[rank])


def test_waits_add_up_to_idle_time() -> None:
    result = simulate(generate(Plan.uniform(4, schedule="gpipe", microbatches=4)), Costs(1, 2), events=True)
    last = [e for e in result.events if e.rank == 3]
    assert sum(e.wait for e in last if e.instruction.kind in (FORWARD, BACKWARD)) == 3


def test_a_rank_that_never_waits_has_no_bubble() -> None:
    for ranks in range(2, 9):  # whose mean is rounded up or down
        result = simulate(generate(Plan((Stage((0, 1), lanes=ranks),), microbatches=3)), Costs(0.1, 0.2))
        assert 0 <= result.bubble < 1e-12


def test_64_ranks_times_512_microbatches_take_seconds() -> None:
    started = time.process_time()  # this process's own: what else the machine does is not the simulator's fault
    schedule = generate(Plan.uniform(64, microbatches=512))
    result = simulate(schedule, Costs(1, 2, activation_bytes=1))
    assert time.process_time() - started < 120, "about 3 s on an idle machine"
    assert result.bubble == pytest.approx(63 / (512 + 63))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"forward": -1}, ["forward = -1", "0 or more"]),
        ({"forward": math.nan}, ["forward = nan", "0 or more"]),
        ({"forward": math.inf}, ["forward = inf", "0 or more"]),
        ({"backward": "2"}, ["backward = '2'", "not a number"]),
        ({"backward": True}, ["backward = True", "not a number"]),
        ({"backward": (1, -2)}, ["backward[1] = -2", "0 or more"]),
        ({"forward": ()}, ["forward has 0 numbers"]),
        ({"latency": -0.5}, ["latency = -0.5"]),
        ({"bandwidth": 0}, ["bandwidth = 0", "above 0"]),
        ({"bandwidth": -1}, ["bandwidth = -1"]),
        ({"step": (1, 2)}, ["step = (1, 2)", "not a number"]),
        ({"activation_bytes": -1}, ["activation_bytes = -1"]),
        ({"forward": (1, 2)}, ["forward has 2 numbers", "4 stages", "or 4"]),
        ({"weight_bytes": (1, 2, 3)}, ["weight_bytes has 3 numbers", "4 stages"]),
        ({"backward": 2, "weight": 3}, ["weight = 3", "backward = 2", "at most 2"]),
    ],
)
def test_costs_that_cannot_be(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        simulate(generate(Plan.uniform(4, microbatches=2)), Costs(**fields))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_costs_per_place_or_per_stage_with_chunks() -> None:
    plan = Plan.uniform(4, schedule="interleaved", chunks=2, microbatches=2)
    assert [row.forward for row in Costs(forward=(2, 4)).per_stage(plan)] == [1, 2, 1, 2]
    assert [row.forward for row in Costs(forward=(1, 2, 3, 4)).per_stage(plan)] == [1, 2, 3, 4]
    assert [row.boundary_bytes for row in Costs(boundary_bytes=6).per_stage(plan)] == [6, 6, 6, 6]
    with pytest.raises(ValueError, match="forward has 3 numbers and the plan 2 places of 2 stages each"):
        Costs(forward=(1, 2, 3)).per_stage(plan)
