"""What is trained on: synthetic images, CIFAR, image folders, whole slides and text, read box by box.

Knows files, pixels, tokens and samples; nothing of ranks or models.
"""

from halocline.data.augment import Augment, parse_augment
from halocline.data.dataset import IGNORED, Dataset, Spec, Subset
from halocline.data.images import Images, Source
from halocline.data.loader import Loader, Step
from halocline.data.opening import open_dataset
from halocline.data.picture import BadFile
from halocline.data.sampler import Sampler

__all__ = [
    "IGNORED",
    "Augment",
    "BadFile",
    "Dataset",
    "Images",
    "Loader",
    "Sampler",
    "Source",
    "Spec",
    "Step",
    "Subset",
    "open_dataset",
    "parse_augment",
]
