"""Tensor parallelism: every combination of pipeline, replicas and tensor ranks equals one device, for every family of
models; and what cannot be divided is refused with the arithmetic."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from halocline.plan import Plan, Stage
from halocline.runtime import Engine, PeerLost, World
from halocline.runtime.parallel.shard import shard
from harness.checks import transformers as check_transformers
from harness.checks.transformers import MODELS, clipped, compare_all, engine_of, exact, model, plan, world
from harness.ranks import close, on_processes


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_pipeline_replicas_and_tensor_ranks(processes: int) -> None:
    """pp x dp x tp in {1, 2}^3, five models each."""
    sizes = [(pp, dp, tp) for pp in (1, 2) for dp in (1, 2) for tp in (1, 2) if pp * dp * tp == processes]
    cases = [(name, plan(name, split_size=pp, parts=2, replicas=dp, tp=tp)) for pp, dp, tp in sizes for name in MODELS]
    answers = on_processes(processes, compare_all, cases) if processes > 1 else [compare_all(cases)]
    exact(answers)
    assert len(answers[0]) == 5 * len(sizes)


def test_tensor_ranks_share_the_tokens() -> None:
    """Sequence parallelism."""
    cases = [(name, plan(name, split_size=2, parts=2, tp=2), {"seq": 6}) for name in ("gpt", "bert", "t5", "bloom")]
    exact(on_processes(4, compare_all, cases, sequence_parallel=True))


def tokens_at_norms(text: str) -> list[int]:
    engine = engine_of("gpt", text, {"seq": 6}, sequence_parallel=True)
    seen: list[int] = []
    norm = engine.modules[0][2][1].attention_norm
    norm.register_forward_hook(lambda module, args, output: seen.append(output.shape[1]))  # type: ignore[union-attr]
    engine.step(*check_transformers.batch(model("gpt", seq=6), 4, 0))
    return seen


def test_norms_see_some_of_the_tokens() -> None:
    for seen in on_processes(2, tokens_at_norms, plan("gpt", split_size=1, parts=2, tp=2)):
        assert set(seen) == {3}


def mixed(name: str, *stages: Stage, **fields: Any) -> str:
    return Plan(stages, **{"microbatches": 2, **fields}).to_toml()


def test_teams_of_any_kind() -> None:
    """Stages of different tensor degrees and what is tied between them, mirrored pipes, lanes, recomputation."""
    last = len(model("gpt").layers)
    cases = [
        ("gpt", mixed("gpt", Stage((0, 2), tensor=2), Stage((2, 3)), Stage((3, last)))),
        ("gpt", mixed("gpt", Stage((0, 2)), Stage((2, 3)), Stage((3, last), tensor=2))),
        ("t5", plan("t5", split_size=2, parts=2, tp=2, schedule="gems")),
        ("gpt", plan("gpt", split_size=2, parts=2, tp=2, schedule="zb-h1")),
        ("bert", plan("bert", split_size=2, parts=2, tp=2, recompute="all")),
        ("gpt", plan("gpt", split_size=2, parts=2, tp=2, schedule="interleaved", chunks=2)),
        ("gpt", mixed("gpt", Stage((0, last), tensor=2, lanes=2))),
        ("t5", mixed("t5", Stage((0, 8), tensor=2, lanes=2))),
        ("bert", mixed("bert", Stage((0, 1), lanes=2), Stage((1, 4), tensor=2))),
        ("gpt", mixed("gpt", Stage((0, last), tensor=4)), {"heads": 4}),
    ]
    exact(on_processes(4, compare_all, cases))


def test_the_optimizers_state_is_divided_over_those_with_the_same_shard() -> None:
    cases = [("gpt", plan("gpt", split_size=1, parts=2, replicas=2, tp=2, shard="optimizer"))]
    exact(on_processes(4, compare_all, cases))


def test_mirrored_pipes_meet_in_a_stage() -> None:
    """One stage in both pipes: every rank holds one shard of it."""
    stages = (Stage((0, len(model("gpt").layers)), tensor=2),)
    exact(on_processes(2, compare_all, [("gpt", mixed("gpt", *stages, schedule="gems", pipes=2))]))


def test_gradients_are_clipped_by_the_norm_of_the_whole_model() -> None:
    for worst, _ in on_processes(4, clipped, "gpt", plan("gpt", split_size=2, parts=2, tp=2)):
        assert worst < 1e-12


# -- what a rank holds ---------------------------------------------------------------------------------------------


def sizes(text: str) -> dict[str, tuple[tuple[int, ...], int]]:
    """Of each parameter its shape here, and the numbers that its memory has room for."""
    engine = engine_of("gpt", text, {"vocab": 13})
    return {
        name: (tuple(shard(p).shape), shard(p).untyped_storage().nbytes() // p.element_size())
        for name, p in engine.named_parameters()
    }


def test_a_rank_keeps_its_share_and_no_more() -> None:
    text = plan("gpt", split_size=1, parts=2, tp=2)
    first, second = on_processes(2, sizes, text)
    assert first["2.attention.qkv.weight"] == ((12, 8), 96)
    assert first["2.attention.out.weight"] == ((8, 4), 32)
    assert first["0.tokens.weight"][0] == (7, 8) and second["0.tokens.weight"][0] == (6, 8), "13 words on two ranks"
    assert first["0.tokens.weight"][1] == 56


def loss_kinds(text: str, whole: bool) -> tuple[float, bool]:
    """The loss, and whether it was made of divided logits."""
    from halocline.runtime.parallel import vocabulary_loss

    found = model("gpt")

    def by_hand(logits: Tensor, target: Tensor) -> Tensor:
        return -logits.log_softmax(-1).gather(-1, target.clamp(min=0).unsqueeze(-1)).mean()

    calls: list[bool] = []
    kept = vocabulary_loss._CrossEntropy.forward

    def counted(*args: Any) -> Tensor:
        calls.append(True)
        return kept(*args)

    vocabulary_loss._CrossEntropy.forward = counted  # type: ignore[method-assign]
    try:
        loss = by_hand if whole else found.loss
        engine = Engine(Plan.from_toml(text), found.layers, loss=loss, tied=found.tied, world=world())
        result = engine.step(*check_transformers.batch(found, 4, 0))
    finally:
        vocabulary_loss._CrossEntropy.forward = kept  # type: ignore[method-assign]
    alone = Engine(Plan.from_toml(text), found.layers, loss=loss, tied=found.tied, world=world())
    assert alone.evaluate(*check_transformers.batch(found, 4, 0)).loss == pytest.approx(result.loss, rel=1e-5)
    return result.loss, bool(calls)


def test_a_loss_that_wants_whole_logits_gets_them() -> None:
    text = plan("gpt", split_size=1, parts=2, tp=2)
    assert {divided for _, divided in on_processes(2, loss_kinds, text, False)} == {True}
    assert {divided for _, divided in on_processes(2, loss_kinds, text, True)} == {False}


def cross_entropies() -> float:
    """The largest difference of our cross-entropy of divided logits from PyTorch's, in values and gradients."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    from halocline.runtime.parallel.vocabulary_loss import loss_of_parts

    world().make_groups([(0, 1)])
    mesh = DeviceMesh.from_group(world().group((0, 1)), "cpu")
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 7, (3, 4), generator=generator)
    target[0, 1] = 6
    worst = 0.0
    for options in (
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"ignore_index": 6},
        {"label_smoothing": 0.2, "ignore_index": 6},
        {"weight": torch.arange(1.0, 8.0, dtype=torch.float64)},
    ):
        for dim in (1, 2):
            shape = (3, 7, 4) if dim == 1 else (3, 4, 7)
            ours = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
            theirs = ours.detach().clone().requires_grad_()

            def loss(logits: Tensor, target: Tensor, dim: int = dim, options: Any = options) -> Tensor:
                if dim == 2:
                    logits, target = logits.flatten(0, 1), target.flatten()
                return (F.cross_entropy(logits, target, **options) * 1.5).sum()

            expected = loss(theirs, target)
            expected.backward()
            mine = ours.chunk(2, dim)[world().rank]
            parts = DTensor.from_local(mine, mesh, [Shard(dim)], shape=ours.shape, stride=ours.stride())
            found = loss_of_parts(loss, parts, target)
            assert found is not None
            found.backward()
            assert ours.grad is not None and theirs.grad is not None
            expected_here = theirs.grad.chunk(2, dim)[world().rank]
            given_here = ours.grad.chunk(2, dim)[world().rank]
            worst = max(worst, float((found - expected).abs()), float((given_here - expected_here).abs().max()))
    return worst


def test_cross_entropy_of_divided_logits() -> None:
    assert max(on_processes(2, cross_entropies)) < 1e-13


# -- what cannot be divided ----------------------------------------------------------------------------------------


def refusal(name: str, text: str, given: dict[str, Any], options: dict[str, Any]) -> str:
    """What the engine says: when it is made, or at the first step."""
    try:
        engine = engine_of(name, text, given, **options)
        engine.step(*check_transformers.batch(model(name, **given), 4, 0))
    except ValueError as error:
        return str(error)
    return ""


def test_refusals_show_the_arithmetic() -> None:
    """All in processes that go on: each rank refuses by itself, before anyone waits for it."""
    text = plan("gpt", split_size=1, parts=2, tp=2)
    asked: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"heads": 1}, {}, "2.attention has 1 heads, which do not divide among tensor = 2 ranks (1 % 2 = 1)"),
        ({"ff": 9}, {}, "2.feed_forward.up has 9 output features, which do not divide among tensor = 2 ranks"),
        ({"vocab": 1}, {}, "0.tokens has 1 words, which leave the last of tensor = 2 ranks none"),
        ({"attention_dropout": 0.1}, {}, "layer 2 draws random numbers (attention dropout, p = 0.1)"),
        ({"seq": 6, "dropout": 0.1, "attention_dropout": 0.0}, {"sequence_parallel": True}, "layer 2 draws random"),
        ({}, {"sequence_parallel": True}, "layer 2: 5 tokens do not divide among tensor = 2 ranks (5 % 2 = 1)"),
    ]
    for given, options, said in asked:
        for answer in on_processes(2, refusal, "gpt", text, given, options):
            assert said in answer


def test_dropout_of_whole_activations_is_exact() -> None:
    given = {"dropout": 0.2, "attention_dropout": 0.0}
    cases = [(name, plan(name, split_size=1, parts=2, tp=2), given) for name in ("gpt", "bert", "bloom")]
    exact(on_processes(2, compare_all, cases))


def test_tiles_and_tensor_ranks_are_refused_together() -> None:
    text = Plan((Stage((0, 1), tiles=(1, 2), tensor=2),)).to_toml()
    with pytest.raises(ValueError, match=r"stages\[0\] has tiles = \[1, 2\] and tensor = 2"):
        from halocline.plan import Layout
        from halocline.runtime.building import check_tensor

        check_tensor(Layout(Plan.from_toml(text)))


def undeclared(text: str) -> list[str]:
    """What is said of layers without a declaration."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("halocline.runtime.building")
    logger.addHandler(handler)
    try:
        layers = [lambda: nn.Linear(4, 4), nn.Tanh, lambda: nn.Linear(4, 3)]
        engine = Engine(Plan.from_toml(text), layers, loss=F.cross_entropy, world=world())
        engine.step(torch.randn(4, 4), torch.zeros(4, dtype=torch.int64))
    finally:
        logger.removeHandler(handler)
    return said


def test_layers_that_declare_nothing_are_held_whole_and_it_is_said_once() -> None:
    text = Plan((Stage((0, 3), tensor=2),), microbatches=2).to_toml()
    first, second = on_processes(2, undeclared, text)
    assert second == []
    assert len(first) == 1
    assert "35 of 35 parameters are in layers that declare no split" in first[0]


def one_waits(text: str) -> str:
    """The others take no part in a step; what rank 0 hears of it."""
    dist.barrier()
    all_three = World.join(deadline=10.0)
    found = model("gpt")
    engine = Engine(Plan.from_toml(text), found.layers, loss=found.loss, tied=found.tied, world=all_three)
    if all_three.rank:
        return ""
    try:
        engine.step(*check_transformers.batch(found, 4, 0))
    except PeerLost as error:
        return str(error)
    return "nothing"


def test_a_tensor_rank_that_is_gone_is_missed() -> None:
    text = mixed("gpt", Stage((0, 2), tensor=2), Stage((2, len(model("gpt").layers))))
    first, *_ = on_processes(3, one_waits, text)
    close(3)  # an expired wait closes gloo's connections
    assert "rank 0 waits in forward p0 s0 m0 for its team" in first
