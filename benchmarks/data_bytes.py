"""How much of a file a rank reads and decodes when an image is cut into tiles: bytes and processor time per rank (the
rank that needs most), for one rank, 2 x 2, 4 x 4 and 8 x 8, and both as ratios to one rank. 1/4, 1/16 and 1/64 are the
best there can be.

    OMP_NUM_THREADS=1 python benchmarks/data_bytes.py [--side 4096] [--folder DIR]
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from halocline.data.generated import Lesions
from halocline.data.picture import open_picture
from halocline.tiling.boxes import balanced_cuts

GRIDS = (1, 2, 4, 8)


def writers() -> dict[str, Callable[[Path, NDArray], None]]:
    def tiff(**options: object) -> Callable[[Path, NDArray], None]:
        return lambda path, image: tifffile.imwrite(path, image, photometric="rgb", **options)  # type: ignore[arg-type]

    return {
        "tiles of 256, JPEG": tiff(tile=(256, 256), compression="jpeg"),
        "tiles of 256, Deflate": tiff(tile=(256, 256), compression="zlib", predictor=True),
        "tiles of 1024, Deflate": tiff(tile=(1024, 1024), compression="zlib", predictor=True),
        "strips of 64 rows, Deflate": tiff(rowsperstrip=64, compression="zlib", predictor=True),
        "one strip, uncompressed": tiff(),
        "PNG": lambda path, image: Image.fromarray(image).save(path, format="PNG", compress_level=1),
    }


def worst(path: Path, side: int, parts: int, repeats: int) -> tuple[int, float]:
    """Bytes and seconds of the rank that needs most, opening the file included."""
    cuts = balanced_cuts(side, parts)
    most, slowest = 0, 0.0
    corners = [0, len(cuts) // 2 - 1, len(cuts) - 2]  # a row of tiles costs like every other: three tell
    for row in sorted(set(corners)):
        for column in sorted(set(corners)):
            box = list(pairwise(cuts))[row], list(pairwise(cuts))[column]
            best = float("inf")
            for _ in range(repeats):
                start = time.process_time()
                picture = open_picture(str(path))
                picture.read(box)
                picture.close()
                best = min(best, time.process_time() - start)
            most, slowest = max(most, picture.bytes_read), max(slowest, best)
    return most, slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=4096, help="pixels of the image's sides")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where the files are written (left out: temporary)")
    arguments = parser.parse_args()
    side = arguments.side
    image = (Lesions(1, (side, side)).pixels(0, ((0, side), (0, side))) * 255).astype(np.uint8).transpose(1, 2, 0)
    print(
        f"{side} x {side} RGB, {image.nbytes / 2**20:.0f} MiB of pixels; {platform.processor() or platform.machine()}"
    )
    print(
        f"{'file':28}{'MiB':>7}  " + "".join(f"{f'{g} x {g}: MiB':>13}{'ratio':>7}{'ms':>7}{'ratio':>7}" for g in GRIDS)
    )
    with tempfile.TemporaryDirectory() as temporary:
        for number, (name, write) in enumerate(writers().items()):
            path = (arguments.folder or Path(temporary)) / f"{number}{'.png' if name == 'PNG' else '.tif'}"
            write(path, np.ascontiguousarray(image))
            line = f"{name:28}{path.stat().st_size / 2**20:7.1f}  "
            whole: tuple[int, float] | None = None
            for grid in GRIDS:
                read, seconds = worst(path, side, grid, arguments.repeats)
                whole = whole or (read, seconds)
                line += f"{read / 2**20:13.2f}{read / whole[0]:7.3f}{1e3 * seconds:7.0f}{seconds / whole[1]:7.3f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
