"""The scores of a small U-Net after a step, on this process or on each of several."""

from __future__ import annotations

from halocline.plan import Plan
from halocline.train import Settings, Trainer


def scores_here(directory: str, plan: str) -> dict[str, float]:
    settings = Settings.of(
        model="unet",
        model_options="depth=2,base_width=4",
        num_classes=3,
        dtype="float64",
        device="cpu",
        run_dir=directory,
        image_size="18",
        samples=20,
        evaluation_fraction=0.35,
        steps=1,
        save_every=0,
        deadline=300.0,
    )
    return Trainer(settings, plan=Plan.from_toml(plan)).fit().scores
