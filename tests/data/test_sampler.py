"""The sampler: every sample once per epoch, the same order everywhere, and a position that can be saved."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline.data import Sampler
from halocline.data.generated import Lesions
from halocline.data.sampler import DealtBatch


def dealt(sampler: Sampler, count: int) -> list[DealtBatch]:
    """The next batches, handed out."""
    batches = []
    for batch in islice(sampler.upcoming(), count):
        sampler.advance(batch)
        batches.append(batch)
    return batches


@settings(max_examples=200, deadline=None)
@given(samples=st.integers(1, 40), batch=st.integers(1, 12), seed=st.integers(0, 9), drop=st.booleans())
def test_every_sample_once_per_epoch(samples: int, batch: int, seed: int, drop: bool) -> None:
    batch = min(batch, samples)
    sampler = Sampler(samples, batch, seed=seed, drop_last=drop)
    for epoch in range(3):
        batches = dealt(sampler, len(sampler))
        seen = [sample for b in batches for sample in b.samples]
        assert {b.epoch for b in batches} == {epoch}
        assert len(set(seen)) == len(seen) == (samples - samples % batch if drop else samples)
        assert all(len(b.samples) == batch for b in batches[:-1])
        assert (sampler.epoch, sampler.position) == (epoch + 1, 0)


@settings(max_examples=100, deadline=None)
@given(
    samples=st.integers(2, 30),
    batch=st.integers(1, 7),
    taken=st.integers(0, 20),
    ahead=st.integers(0, 9),
    drop=st.booleans(),
)
def test_a_saved_position_goes_on_exactly(samples: int, batch: int, taken: int, ahead: int, drop: bool) -> None:
    batch = min(batch, samples)
    straight = dealt(Sampler(samples, batch, seed=1, drop_last=drop), taken + 10)
    sampler = Sampler(samples, batch, seed=1, drop_last=drop)
    first = dealt(sampler, taken)
    list(islice(sampler.upcoming(), ahead))  # somebody reads ahead
    state = json.loads(json.dumps(sampler.state()))
    resumed = Sampler(samples, batch, seed=99, drop_last=drop)
    resumed.load(state)
    assert first + dealt(resumed, 10) == straight


def test_a_position_means_the_same_with_another_batch_size() -> None:
    sampler = Sampler(24, 4, seed=1)
    first = dealt(sampler, 3)
    other = Sampler(24, 3)
    other.load(sampler.state())
    rest = dealt(other, 4)
    assert sorted(s for b in first + rest for s in b.samples) == list(range(24))
    assert {b.epoch for b in rest} == {0}


def test_orders_differ_by_epoch_and_seed() -> None:
    orders = {tuple(Sampler(20, 5, seed=seed).order(epoch).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert Sampler(20, 5, shuffle=False).order(3).tolist() == list(range(20))


def test_mistakes() -> None:
    for arguments, message in (
        ((0, 1), "0 samples cannot make a batch of 1"),
        ((5, 0), "a batch of 0 holds nothing"),
        ((5, 6), "a batch of 6 cannot be filled with 5 samples: use a batch of 5 or less"),
    ):
        with pytest.raises(ValueError, match=message):
            Sampler(*arguments)
    sampler = Sampler(5, 2)
    with pytest.raises(ValueError, match="the saved position is in 6 samples, the data now has 5"):
        sampler.load({"epoch": 0, "position": 0, "seed": 0, "samples": 6})
    with pytest.raises(ValueError, match="the sampler's state lacks seed"):
        sampler.load({"epoch": 0, "position": 0, "samples": 5})
    with pytest.raises(ValueError, match="position 9 of epoch 0 is not in 5 samples"):
        sampler.load({"epoch": 0, "position": 9, "seed": 0, "samples": 5})


def test_an_order_says_nothing_of_labels() -> None:
    """Both once came from the same random numbers: an epoch began with every image of class 0."""
    dataset = Lesions(samples=400, image=(32, 32), seed=3)
    labels = [dataset.label(sample) for sample in Sampler(400, 4, seed=3).order(0)]
    first = sum(labels[:200]) / 200
    assert 0.35 < first < 0.65
