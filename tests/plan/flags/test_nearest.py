"""The flag that was meant: near in meaning, or a slip of the keys away; of anything else there is no guess."""

import pytest

from halocline.cli.merak import Options
from halocline.plan.flags.dialects import FOREIGN
from halocline.plan.flags.fields import settings_of
from halocline.plan.flags.nearest import MEANINGS, nearest

OURS = list(settings_of(Options))
KNOWN = [*FOREIGN, *OURS]


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("base_learning_rate", "lr"),
        ("learning_rate_scheduler", "lr_schedule"),
        ("epoch", "epochs"),
        ("max_epochs", "epochs"),
        ("train_iters", "steps"),
        ("batchsize", "batch_size"),
        ("micro_batch_size", "microbatch_size"),
        ("checkpoint_activations", "recompute"),
        ("tensor_model_parallel_size", "tensor"),
        ("pipeline_model_parallel_size", "stages"),
        ("precision", "dtype"),
        ("amp", "dtype"),
        ("clip_grad", "clip"),
        ("dataset", "data"),
        ("save_interval", "save_every"),
        ("gpus", "num_gpus"),
        ("max_seq_length", "seq"),
        ("pretrained", "from_hf"),
    ],
)
def test_near_in_meaning(word: str, flag: str) -> None:
    assert nearest(word, KNOWN) == flag


@pytest.mark.parametrize(
    ("word", "flag"),
    [("stagse", "stages"), ("learing_rate", "learning_rate"), ("export_timing_cvs", "export_timing_csv")],
)
def test_a_slip_of_the_keys(word: str, flag: str) -> None:
    assert nearest(word, KNOWN) == flag


@pytest.mark.parametrize(
    "word", "banana colour x foo quux turbo_mode sugar wheels pizza_oven lorem make_it_fast".split()
)
def test_nonsense_is_not_guessed_at(word: str) -> None:
    assert nearest(word, KNOWN) is None


def test_a_flag_that_is_not_there_is_not_offered() -> None:
    assert nearest("learning_rate", ["stages", "tiles"]) is None


def test_every_meaning_is_a_flag_and_no_phrase_has_two() -> None:
    assert MEANINGS.keys() <= set(OURS)
    phrases = [phrase for every in MEANINGS.values() for phrase in every]
    assert len(phrases) == len(set(phrases))
