"""Merak's flags in Halocline's own words."""

from __future__ import annotations

from typing import Any

import pytest

from halocline.plan.flags.dialects import FOREIGN, PASSING, SHORT, native
from halocline.plan.flags.reader import read


def said(words: str) -> dict[str, Any]:
    """What a command line of one flag after the other says here."""
    kinds = {name: flag.kind for name, flag in FOREIGN.items()}
    kinds |= (
        dict.fromkeys(("schedule", "recompute", "energy_server", "profile"), str)
        | dict.fromkeys(("batch_size", "steps"), int)
        | PASSING
    )
    return native(read(kinds, words.split(), (), SHORT))


MERAK = (
    "--pp 4 --tp 1 --dp 2 --partition_method custom:0,1,2,3,4 --train_schedule early_recompute_1f1b "
    "--num_warmup_steps 1 --num_prof_steps 2 --perseus_url http://localhost:7787 --energy_breakdown true"
)


def test_merak_in_our_own_words() -> None:
    assert said(MERAK) == {
        "stages": 4,
        "tensor": 1,
        "replicas": 2,
        "balance": "custom:0,1,2,3,4",
        "schedule": "early-recompute-1f1b",
        "recompute": "but-last",
        "profile_warmup": 1,
        "profile_steps": 2,
        "energy_server": "http://localhost:7787",
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--train_schedule instruction_profiler", {"schedule": "1f1b", "sweep": True}),
        (
            "--train_schedule instruction_profiler --perseus_url http://a:1",
            {"schedule": "1f1b", "energy_server": "http://a:1"},
        ),
        ("--train_schedule full_critical_path_1f1b", {"schedule": "1f1b", "recompute": "but-last"}),
        ("--train_schedule shifted_critical_path", {"schedule": "1f1b", "recompute": "but-last"}),
        ("--train_schedule ds_default", {"schedule": "1f1b"}),
        ("--profile true", {"sweep": True}),
        ("--profile false", {}),
        ("--profile true --pfo_server_url http://a:1", {"energy_server": "http://a:1"}),
        ("--profile out.csv", {"profile": "out.csv"}),
        ("--train_schedule last_no_recompute_1f1b", {"schedule": "1f1b", "recompute": "but-last"}),
        ("--activation_checkpointing", {"recompute": "all"}),
        ("--activation_checkpointing false --recompute none", {"recompute": "none"}),
        ("--checkpoint_num_layers 1", {"recompute": "all"}),
        ("--activation_checkpointing true --checkpoint_num_layers 0", {"recompute": "none"}),
        ("--activation_checkpointing false --checkpoint_num_layers 1", {"recompute": "none"}),
        (
            "--checkpoint_num_layers 1 --train_schedule last_no_recompute_1f1b",
            {"schedule": "1f1b", "recompute": "but-last"},
        ),
        (
            "--seq_length 128 --hidden_size 64 --num_heads 4 --model_name gpt3-xl",
            {"seq": 128, "hidden": 64, "heads": 4, "model": "gpt3-xl"},
        ),
        ("--wall_clock_breakdown true --print_details False", {"timeline": True, "verbose": False}),
        ("--zero_stage 1", {"shard_optimizer": True}),
        ("--energy_breakdown true", {}),
        ("--export_timing_csv true --export_pytorch_trace", {"timing_csv": True, "pytorch_trace": True}),
    ],
)
def test_what_a_few_flags_say(words: str, expected: dict[str, object]) -> None:
    assert said(words) == expected


ASKS_FOR_NOTHING = (
    "--parallel_vocab false --tp_overlapping_level 0 --finetune false --no_load_optim=False --no_load_rng 0 "
    "--no_save_rng --no_save_optim false --split_inputs false --return_logits false --num_transformers 0 "
    "--num_initial_embeddings 0 --init_method_std 0.02 --prescale_gradients false --gradient_predivide_factor 1 "
    "--loss_scale 0 --initial_scale_power 32 --loss_scale_window 1000 --hysteresis 2 --min_loss_scale 1 "
    "--cache_sharding true --cache_dir cache --full_profiling false --num_swaps 0 --zero_stage 0"
)


def test_what_asks_for_nothing_is_accepted_and_says_nothing() -> None:
    assert said(ASKS_FOR_NOTHING) == {}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--checkpoint_num_layers 4", "checkpoint_num_layers = 4 recomputes that many layers at once"),
        ("--activation_checkpoint_ratio 0.5", "activation_checkpoint_ratio = 0.5 recomputes a part of a stage"),
        ("--tp_overlapping_level 2", "--sequence-parallel"),
        ("--finetune", "finetune = true begins with weights alone: write them by halocline export RUN --to-hf DIR"),
        ("--no_load_optim true", "--from-hf DIR"),
        ("--no_load_rng", "--seed"),
        ("--no_save_optim", "halocline export RUN --out"),
        ("--split_inputs", "--lanes"),
        ("--return_logits", "halocline.Engine"),
        ("--input_names input_ids", "package.module:callable"),
        ("--shard_count 26", "halocline models"),
        ("--num_transformers 24", "--layers"),
        ("--init_method_std 0.006", "--from-hf"),
        ("--prescale_gradients", "leave it out"),
        ("--loss_scale 128", "loss_scale = 128 is for fp16"),
        ("--zero_stage 2", "--shard parameters"),
        ("--train_schedule envpipe", "train_schedule = 'envpipe' is unknown"),
        ("--perseus_url http://a:1 --pfo_server_url http://b:2", "both say what --energy-server is"),
        ("--activation_checkpointing true --recompute none", "both say which stages recompute"),
    ],
)
def test_what_there_is_not_is_refused_by_name_with_the_way(words: str, answer: str) -> None:
    with pytest.raises(ValueError) as caught:
        said(words)
    assert answer in str(caught.value) and "\n" not in str(caught.value)
    assert words.split()[0].removeprefix("--").partition("_")[0] in str(caught.value)
