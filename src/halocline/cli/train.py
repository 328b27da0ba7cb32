"""`halocline train`: trains a model under a plan, on processes of this machine or on those a launcher has started."""

from __future__ import annotations

from halocline.train.config import Config

Options = Config


def run(options: Config) -> int:
    if options.model is None and options.resume is None and options.from_hf is None:
        raise ValueError(
            "no model to train: write halocline train MODEL, e.g. resnet-v1-20 or package.module:callable; "
            "halocline models lists them"
        )
    if options.dry_run:
        from halocline.cli.dry_run import dry_run

        return dry_run(options)

    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("loading"):
            # torch takes seconds to load: wrong options have been answered by now, and something moves.
            from halocline.train.start import start
    else:
        from halocline.train.start import start
    return start(options)
