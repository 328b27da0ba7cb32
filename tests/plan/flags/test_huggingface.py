"""Hugging Face's TrainingArguments in Halocline's own words."""

from __future__ import annotations

from typing import Any

import pytest

from halocline.plan.flags.dialects import FOREIGN, PASSING, SHORT, native
from halocline.plan.flags.fields import changed, settings_of
from halocline.plan.flags.reader import read
from halocline.train.settings import Settings

KINDS = {
    **PASSING,
    **{name: flag.kind for name, flag in FOREIGN.items()},
    **{one.flag: one.kind for one in settings_of(Settings).values()},
}


def said(words: str) -> dict[str, Any]:
    """What a command line says here, of which the settings can be made."""
    found = native(read(KINDS, words.split(), (), SHORT))
    changed(Settings(), found)
    return found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--learning_rate 3e-4 --weight_decay 0.1", {"lr": 3e-4, "weight_decay": 0.1}),
        ("--adam_beta1 0.9 --adam_beta2 0.95 --adam_epsilon 1e-8", {"momentum": 0.9, "beta2": 0.95}),
        ("--optim adamw_torch", {"optimizer": "adamw"}),
        ("--max_grad_norm 0.5", {"clip": 0.5}),
        ("--max_grad_norm 0", {"clip": None}),
        ("--max_steps 7 --num_train_epochs 3.0", {"steps": 7}),
        ("--max_steps -1 --num_train_epochs 3.0", {"epochs": 3}),
        ("--lr_scheduler_type linear --warmup_steps 10", {"lr_schedule": "linear", "warmup": 10}),
        ("--lr_scheduler_type constant_with_warmup --warmup_steps 2", {"lr_schedule": "constant", "warmup": 2}),
        ("--warmup_ratio 0.1 --max_steps 25", {"steps": 25, "warmup": 3}),
        ("--warmup_ratio 0.1 --warmup_steps 4 --max_steps 25", {"steps": 25, "warmup": 4}),
        ("--warmup_ratio 0.0 --warmup_steps 0", {"warmup": 0}),
        ("--bf16", {"dtype": "bf16"}),
        ("--fp16 false --bf16=False --no_tf32", {}),
        ("--gradient_checkpointing", {"recompute": "all"}),
        ("--gradient_checkpointing False", {"recompute": "none"}),
        (
            "--per_device_train_batch_size 4 --gradient_accumulation_steps 8",
            {"microbatch_size": 4, "microbatches": 8},
        ),
        ("--dataloader_num_workers 0", {"workers": 0}),
        ("--output_dir out --logging_steps 10 --disable_tqdm true --local_rank 0", {"run_dir": "out"}),
        ("--resume_from_checkpoint true", {"resume": "latest"}),
        ("--resume_from_checkpoint runs/x", {"resume": "runs/x"}),
        ("--resume_from_checkpoint false --overwrite_output_dir false", {}),
        ("--save_steps 100 --save_total_limit 2", {"save_every": 100, "keep": 2}),
        ("--save true --save_steps 100", {"save_every": 100}),
        ("--save true", {"save_every": None}),
        ("--save false --save_steps 100", {"save_every": 0}),
        ("--save_strategy no", {"save_every": 0}),
        ("--save_strategy epoch --save_steps 100", {"save_every": None}),
        ("--save_strategy steps", {"save_every": 500}),
        ("--do_train --do_eval --eval_steps 50", {"evaluation_fraction": 0.1, "eval_every": 50}),
        ("--do_eval false", {"evaluation_fraction": 0.0}),
        ("--evaluation_strategy no --eval_steps 50", {"evaluation_fraction": 0.0}),
        ("--eval_strategy epoch --evaluation_fraction 0.2", {"evaluation_fraction": 0.2}),
        ("--report_to tensorboard", {"tensorboard": True}),
        ("--report_to none", {"tensorboard": False}),
        ("--seed 3 --torch_compile true", {"seed": 3, "compile": True}),
        ("--use_cpu", {"device": "cpu"}),
    ],
)
def test_what_they_say(words: str, expected: dict[str, object]) -> None:
    assert said(words) == expected


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--fp16", "fp16 = true needs its loss scaled, which is not done here: use --bf16 (--dtype bf16)"),
        ("--fp16=True", "fp16 = true"),
        ("--fp16=maybe", "--fp16 = 'maybe' is not true or false"),
        ("--adam_epsilon 1e-6", "adam_epsilon = 1e-06 is always 1e-08 here"),
        ("--optim adafactor", "optim = adafactor is not here: use adamw_torch or sgd"),
        ("--lr_scheduler_type polynomial", "--lr-schedule"),
        ("--lr_scheduler_type constant --warmup_steps 5", "use constant_with_warmup"),
        ("--warmup_ratio 0.1", "a share of steps that nothing says: use warmup_steps, or max_steps"),
        ("--warmup_ratio 2 --max_steps 5", "not in [0, 1)"),
        ("--num_train_epochs 0.5", "num_train_epochs = 0.5 is not a whole number"),
        ("--overwrite_output_dir", "another --run-dir"),
        ("--do_train false", "do_train = false leaves nothing to do"),
        ("--report_to wandb", "use tensorboard or none"),
        (
            "--deepspeed ds.json",
            "deepspeed = ds.json is another program's way to divide a model: use --shard optimizer",
        ),
        ("--fsdp full_shard", "--shard parameters"),
        ("--save_strategy best", "save_strategy = 'best' is unknown"),
        ("--save_steps 0", "save_steps = 0 is below 1"),
        ("--logging_dir logs", "--run-dir"),
        ("--learning_rate 1 --lr 2", "lr = 2.0 and learning_rate = 1.0 both say what --lr is"),
    ],
)
def test_what_there_is_not_is_refused_by_name_with_the_way(words: str, answer: str) -> None:
    with pytest.raises(ValueError) as caught:
        said(words)
    assert answer in str(caught.value) and "\n" not in str(caught.value)
