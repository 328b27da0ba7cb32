"""Parameters divided over the ranks that share a stage: exact under every plan that takes it; each keeps its share."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from halocline.plan import Layout, Plan, Stage
from halocline.runtime.parallel.shard import shard, whole
from halocline.runtime.parallel.sharding import check_sharding
from harness.checks.transformers import batch, clipped, compare_all, engine_of, exact, model, plan
from harness.ranks import on_processes

REPLICAS: dict[str, Any] = {"split_size": 1, "parts": 2, "replicas": 2, "shard": "parameters"}


def test_replicas_share_parameters() -> None:
    cases = [(name, plan(name, **REPLICAS)) for name in ("gpt", "t5", "wide-resnet")]
    cases += [("bert", plan("bert", **{**REPLICAS, "recompute": "all", "parts": 3}))]
    exact(on_processes(2, compare_all, cases))


def test_with_a_pipeline_and_with_tensor_ranks() -> None:
    cases = [
        ("gpt", plan("gpt", **{**REPLICAS, "split_size": 2})),
        ("t5", plan("t5", **{**REPLICAS, "split_size": 2, "schedule": "gpipe"})),
        ("gpt", plan("gpt", **{**REPLICAS, "split_size": 2, "schedule": "interleaved", "chunks": 2})),
        ("gpt", plan("gpt", **{**REPLICAS, "tp": 2})),
        ("bloom", plan("bloom", **{**REPLICAS, "tp": 2})),
    ]
    exact(on_processes(4, compare_all, cases))


def test_one_stage_alone_is_sharded() -> None:
    """A field of each stage: the first divides its parameters, the second the optimizer's state."""
    stages = (Stage((0, 3), shard="parameters"), Stage((3, len(model("gpt").layers)), shard="optimizer"))
    exact(on_processes(4, compare_all, [("gpt", Plan(stages, microbatches=2, replicas=2).to_toml())]))


def test_clipping_counts_every_part_once() -> None:
    for worst, _ in on_processes(4, clipped, "gpt", plan("gpt", **{**REPLICAS, "tp": 2})):
        assert worst < 1e-12


def kept(text: str) -> tuple[int, int, int, float, float]:
    """Numbers of parameters, of their memory and of optimizer state on this rank; an evaluation of three samples, whose
    microbatches are not all filled, before and after a step."""
    engine = engine_of("bert", text, {"tied": False})
    data = batch(model("bert", tied=False), 4, 0)
    few = batch(model("bert", tied=False), 3, 1)
    first = engine.evaluate(*few).loss
    engine.step(*data)
    second = engine.evaluate(*few).loss
    parameters = [shard(p) for p in engine.parameters()]
    state = [shard(t) for s in engine.optimizers[0].state.values() for t in s.values() if t.ndim]
    return (
        sum(p.numel() for p in parameters),
        sum(p.untyped_storage().nbytes() // p.element_size() for p in parameters),
        sum(t.numel() for t in state),
        first,
        second,
    )


def test_a_rank_keeps_its_share() -> None:
    sharded = on_processes(2, kept, plan("bert", **REPLICAS))
    whole = on_processes(2, kept, plan("bert", **{**REPLICAS, "shard": "none"}))
    assert sum(held for held, *_ in sharded) == whole[0][0]
    for (held, memory, state, *losses), (_, _, _, *expected) in zip(sharded, whole):
        assert held < 0.6 * whole[0][0]
        assert memory < 0.75 * whole[0][0], "parts are padded, and no more"
        assert state == 2 * held
        assert losses == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("stages", "fields", "said"),
    [
        (2, {"schedule": "gems", "pipes": 2}, "pipes = 2"),
        (2, {"schedule": "zb-h1"}, "backwards in two halves"),
    ],
)
def test_plans_that_cannot_are_refused(stages: int, fields: dict[str, Any], said: str) -> None:
    made = tuple(Stage((s, s + 1), shard="parameters") for s in range(stages))
    with pytest.raises(ValueError, match=said):
        check_sharding(Layout(Plan(made, microbatches=2, replicas=2, **fields)))
    with pytest.raises(ValueError, match="which replicas can share"):
        check_sharding(Layout(Plan((Stage((0, 1), lanes=2, shard="parameters"),))))


def test_what_is_shared_is_a_field_of_a_stage() -> None:
    made = Plan.from_flags(split_size=2, shard="parameters")
    assert [stage.shard for stage in made.stages] == ["parameters", "parameters"]
    assert Plan.from_toml(made.to_toml()) == made
    with pytest.raises(ValueError, match=r"did you mean 'parameters'\?"):
        Stage((0, 1), shard="parameter")


def test_gathering_over_two_axes_needs_no_remark(caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint of parameters that data and tensor ranks share used to print a warning of torch's on every rank."""
    logger = logging.getLogger("torch.distributed.tensor._redistribute")

    class Spread:
        def detach(self) -> Spread:
            return self

        def full_tensor(self) -> str:
            logger.warning("2 sequential all_gather operations will be performed")
            return "all of it"

    assert whole(Spread()) == "all of it"  # type: ignore[arg-type,comparison-overlap]
    assert not caplog.records
    logger.warning("something else")
    assert len(caplog.records) == 1
