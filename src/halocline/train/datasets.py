"""From settings to data: the training and the evaluation samples that a model takes. Knows no ranks."""

from __future__ import annotations

from halocline.data.dataset import Dataset
from halocline.models.model import Model
from halocline.plan.plan import Plan
from halocline.train.config import Config


def open_datasets(config: Config, plan: Plan, model: Model) -> tuple[Dataset, Dataset | None]:
    raise NotImplementedError
