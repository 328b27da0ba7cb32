"""Which models and losses of other libraries run on tiles, and how far from one device they are.

    PYTHONPATH=src python benchmarks/tiling_models.py [--results FILE] [--write] [--again] [family or name ...]

Each is built with random weights and does one training step in float64 on 2 x 2 uneven tiles, four ranks that are
threads of a process of its own, against the same step on one device: outputs, the gradients of the image and of every
parameter, and running statistics. Exactness needs no GPU. What is tried is in benchmarks/peers.py; what is not
installed is left out. Prints a line for each, then the tables of docs/tiling.md, where `--write` puts them. `--results`
keeps what was found in a file and tries only what is not in it yet (or, with `--again`, what was neither exact nor
refused).
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import importlib
import importlib.metadata
import json
import multiprocessing
import random
import re
import sys
import textwrap
import threading
import time
import warnings
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from peers import FAMILIES, Case, Family, cases
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from halocline import tiling
from halocline.runtime.proof.norms import WrittenNorms

DOCUMENT = Path(__file__).parent.parent / "docs" / "tiling.md"
START, END = "<!-- peers: made by benchmarks/tiling_models.py --write -->", "<!-- end of peers -->"
NAMED = torch.library.Library("torchvision", "FRAGMENT")
PATIENCE = 90
"""Seconds for one case; what takes longer is left out of the tables."""
EXACT, WRONG, REFUSED, CRASHED, UNABLE, SLOW = "exact", "WRONG", "refused", "CRASHED", "one device fails", "too slow"
ROUNDED = "exact, but for the rounding of float32"


LOCK = threading.Lock()
DRAWING = re.compile("rand|bernoulli|normal_|uniform|exponential|multinomial|dropout|gumbel|attention|rrelu")


class Generators(threading.local):
    """Python's and NumPy's generators of random numbers, of each thread its own."""

    def __init__(self) -> None:
        self.of = {random: random.Random(1), numpy.random: numpy.random.RandomState(1)}


GENERATORS = Generators()


def drawn(module: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(GENERATORS.of[module], name)(*args, **kwargs)


for module, shared in ((random, random._inst), (numpy.random, numpy.random.mtrand._rand)):  # type: ignore[attr-defined]
    for name, value in list(vars(module).items()):  # before the libraries that import them by name
        if name == "seed" or getattr(value, "__self__", None) is shared:
            setattr(module, name, partial(drawn, module, name))


def widened(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float32 else dtype


class OwnChance(TorchFunctionMode):
    """Ranks that are threads share one generator of random numbers; within this, each goes on from its own state.
    Where `wide`, what turns to float32 stays in float64."""

    wide = False

    def __init__(self) -> None:
        super().__init__()
        torch.set_default_dtype(torch.float64 if self.wide else torch.float32)
        GENERATORS.__init__()
        self.state = torch.Generator().manual_seed(1).get_state()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.wide:
            func = torch.Tensor.double if func is torch.Tensor.float else func
            args, kwargs = tree_map_only(torch.dtype, widened, (args, kwargs))
        if tiling.TileTensor in types:
            with self:  # what the rule draws
                return tiling.TileTensor.__torch_function__(func, types, args, kwargs)
        if not DRAWING.search(getattr(func, "__name__", "")):
            return func(*args, **(kwargs or {}))
        with LOCK:
            torch.set_rng_state(self.state)
            out = func(*args, **(kwargs or {}))
            self.state = torch.get_rng_state()
            return out


def prepared(model: Any, dtype: torch.dtype) -> Any:
    """In training, in one dtype, and without constant parameters: a scale of zero would hide what comes before it."""
    if not isinstance(model, nn.Module):
        return model
    model = model.to(dtype).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() and parameter.min() == parameter.max():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    for module in model.modules() if OwnChance.wide else ():
        held = {k: v for k, v in vars(module).items() if isinstance(v, Tensor)}  # without being buffers
        vars(module).update({k: v.to(widened(v.dtype)) for k, v in held.items()})
    return model


def outputs(value: Any) -> list[Tensor]:
    if isinstance(value, tiling.TileTensor):
        return [value.full()]
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for v in values for t in outputs(v)]


def loss_of(results: list[Tensor]) -> Tensor:
    """Another weight for each value, so that no error cancels."""
    terms = []
    for r in results:
        if r.dtype.is_floating_point and r.requires_grad:
            weights = torch.linspace(-1.0, 0.9, r.numel(), dtype=torch.float64) / r.numel() ** 0.5
            terms.append((r.double() * weights.view(r.shape)).sum())
    return torch.stack(terms).sum()


def difference(actual: Tensor | None, expected: Tensor | None) -> float:
    """The largest difference, relative to the largest value expected (or to 1)."""
    if actual is None or expected is None:
        return 0.0 if actual is expected else float("inf")
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    finite = expected.isfinite()
    if not torch.equal(finite, actual.isfinite()):
        return float("inf")
    if not finite.any():
        return 0.0
    actual, expected = actual[finite].double(), expected[finite].double()
    return ((actual - expected).abs().max() / max(1.0, expected.abs().max().item())).item()


def cuts_of(image: Tensor) -> list[list[int]]:
    """Uneven tiles for four ranks: of a sequence, of an image, or of the first and the last dim of a volume."""
    shares = {3: [(0.3, 0.55, 0.8)], 4: [(0.6,), (0.4,)], 5: [(0.6,), (), (0.4,)]}[image.ndim]
    sizes = image.shape[-len(shares) :]
    return [[0, *(int(n * share) for share in inner), n] for n, inner in zip(sizes, shares)]


def tiled(inputs: list[Tensor], case: Case, exchanger: tiling.Exchanger) -> list[Tensor]:
    """The first input as a tile, and the others that are as large unless the case wants them plain."""
    cuts = cuts_of(inputs[0])
    size = [c[-1] for c in cuts]
    return [
        tiling.tile(t, group=exchanger, cuts=cuts)
        if not i or (not case.plain_targets and list(t.shape[-len(size) :]) == size)
        else t
        for i, t in enumerate(inputs)
    ]


def norms(case: Case) -> AbstractContextManager[Any]:
    return WrittenNorms() if case.batch == 1 else nullcontext()


def step(model: Any, inputs: list[Tensor], case: Case, exchanger: tiling.Exchanger | None) -> list[Tensor | None]:
    """All that a training step makes: outputs, gradients and buffers."""
    leaf = inputs[0].clone().requires_grad_()
    given = [leaf, *inputs[1:]]
    with norms(case), OwnChance():
        results = outputs(model(*(given if exchanger is None else tiled(given, case, exchanger))))
        loss_of(results).backward()
    made: list[Tensor | None] = [*[r.detach() for r in results], leaf.grad]
    return made + ([*[p.grad for p in model.parameters()], *model.buffers()] if isinstance(model, nn.Module) else [])


def on_one_device(case: Case) -> tuple[Any, list[Tensor], list[Tensor | None]]:
    """A model, inputs of the first size and dtype that it takes, and what a step makes of them."""
    first: Exception | None = None
    for inputs in [*case.inputs(torch.float64), *case.inputs(torch.float32)]:
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float32)
        try:
            model = prepared(case.build(inputs), inputs[0].dtype)
            if case.channels_last:
                order = torch.channels_last if inputs[0].ndim == 4 else torch.channels_last_3d
                model = model.to(memory_format=order) if isinstance(model, nn.Module) else model
                inputs = [t.to(memory_format=order) if t.ndim == inputs[0].ndim else t for t in inputs]
            return model, inputs, step(copy.deepcopy(model), inputs, case, None)
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def verdict(case: Case) -> tuple[str, str]:
    try:
        model, inputs, expected = on_one_device(case)
    except Exception as error:
        return UNABLE, said(error)
    exchangers = tiling.ThreadExchanger.connect(4, deadline=60.0)
    worst, errors = [0.0] * 4, []
    models = [copy.deepcopy(model) for _ in range(4)]

    def run(rank: int) -> None:
        try:
            actual = step(models[rank], inputs, case, exchangers[rank])
            assert len(actual) == len(expected), f"{len(actual)} results, one device {len(expected)}"
            worst[rank] = max(difference(a, e) for a, e in zip(actual, expected))
        except BaseException as error:
            errors.append(error)
            exchangers[rank].abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda e: "which has failed" in str(e)):
        if isinstance(error, tiling.UntiledOperation):
            return REFUSED, str(error).split("(")[0]
        return CRASHED, said(error)
    return (EXACT if max(worst) <= 1e-10 else WRONG), f"{max(worst):.1e}"


def judged(case: Case) -> tuple[str, str]:
    """A difference is rounding if it is float32's, and gone once what turns to float32 stays in float64."""
    kind, why = verdict(case)
    if kind == WRONG and float(why) <= 1e-5:
        OwnChance.wide = True
        kind = ROUNDED if verdict(case)[0] == EXACT else WRONG
    return kind, why


def said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def answer(case: Case, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        pipe.send(judged(case))
    except BaseException as error:
        pipe.send((CRASHED, said(error)))


def in_a_process(case: Case) -> tuple[str, str]:
    """A copy of this process, which has imported the library but computed nothing, tries one case."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(case, theirs), daemon=True)
    process.start()
    theirs.close()
    found = (SLOW, f"more than {PATIENCE} s")
    if ours.poll(PATIENCE):
        try:
            found = ours.recv()
        except EOFError:
            found = (CRASHED, "the process died")
    process.kill()
    process.join()
    return found


# ------------------------------------------------------------------------------------------------------------- tables


def table(found: dict[str, dict[str, Any]], versions: str) -> str:
    """How many of each family are what, and which of them are not plainly exact."""
    rows = [(f.name, c.name, *found[f.name][c.key]) for f in FAMILIES for c in cases(f) if c.key in found[f.name]]
    rows = [row for row in rows if row[2] != SLOW]
    lines = ["| family | tried | exact | but for rounding | refused | wrong | one device fails |", "|---" * 7 + "|"]
    for family in [*dict.fromkeys(row[0] for row in rows), "all"]:
        counts = Counter(kind for name, _, kind, _ in rows if family in (name, "all"))
        wrong = counts[WRONG] + counts[CRASHED]
        shown = (counts.total(), counts[EXACT], counts[ROUNDED], counts[REFUSED], wrong, counts[UNABLE])
        lines.append(f"| {family} | {' | '.join(map(str, shown))} |")
    for kind in (REFUSED, WRONG, CRASHED, UNABLE, ROUNDED):
        groups: dict[tuple[str, str], list[tuple[str, str]]] = {}  # by family, and by the operator that is refused
        for family, name, found_kind, why in rows:
            if found_kind == kind:
                group = family, f" (`{why}`)" if kind == REFUSED else ""
                groups.setdefault(group, []).append((f"`{name.partition('(')[0]}`", why))
        if groups:
            lines += ["", f"{kind[0].upper()}{kind[1:]}:\n"]
        for (family, why), members in groups.items():
            names = ", ".join(dict.fromkeys(name for name, _ in members))
            most = f" (up to {max((why for _, why in members), key=float)})" if kind in (WRONG, ROUNDED) else ""
            lines.append(wrapped(f"- {family}: {names}{why}{most}."))
    return "\n".join([wrapped(f"With {versions}:"), "", *lines])


def wrapped(line: str) -> str:
    return textwrap.fill(line, 120, subsequent_indent="  " * (line[0] == "-"), break_on_hyphens=False)


def installed(families: list[Family]) -> str:
    """The versions of torch and of the libraries tried."""
    names = dict.fromkeys(["torch", *(f.library.split(".")[0] for f in families)])
    shown = []
    for name in names:
        try:
            shown.append(f"{name} {importlib.metadata.version(name).split('+')[0]}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(shown)


def write(section: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, found, rest = text.partition(START)
    _, closed, after = rest.partition(END)
    assert found and closed, f"{DOCUMENT} has no place for the tables"
    DOCUMENT.write_text(f"{before}{START}\n\n{section}\n\n{END}{after}", encoding="utf-8")


def import_of(library: str) -> bool:
    """Whether a library is there. A torchvision built for another torch imports once its operators have names."""
    try:
        importlib.import_module(library)
    except ImportError:
        return False
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        NAMED.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        NAMED.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in [n for n in sys.modules if n.split(".")[0] in (library.split(".")[0], "torchvision")]:
            del sys.modules[name]
        importlib.import_module(library)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("patterns", nargs="*")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    if options.results and options.results.exists():
        found = json.loads(options.results.read_text())
    warnings.simplefilter("ignore")
    import_of("torchvision")  # which others import when they are used
    for family in FAMILIES:
        known = found.setdefault(family.name, {})
        if not import_of(family.library):
            print(f"{family.library} is not installed")
            continue
        for case in cases(family):
            asked = not options.patterns or any(
                fnmatch.fnmatch(n, p) for p in options.patterns for n in (family.name, case.name)
            )
            settled = not options.again or known.get(case.key, [""])[0] in (EXACT, ROUNDED, REFUSED)
            if not asked or (case.key in known and settled):
                continue
            started = time.perf_counter()
            known[case.key] = in_a_process(case)
            print(
                family.name,
                case.name,
                *known[case.key],
                f"{time.perf_counter() - started:.1f} s",
                sep=" | ",
                flush=True,
            )
            if options.results:
                options.results.write_text(json.dumps(found, indent=1))
    section = table(found, installed(list(FAMILIES)))
    print(section)
    if options.write:
        write(section)


if __name__ == "__main__":
    sys.exit(main())
