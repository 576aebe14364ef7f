"""Strokes to pixels, and the rows of "pathfinder-gen" and "path-x-gen"."""

from __future__ import annotations

import math

import numpy as np

from statewise.data.long_range.config import LongRangeDataConfig
from statewise.data.long_range.curves import SETTINGS, Curves, CurveSettings, grow_curves
from statewise.data.long_range.store import Items, Stored, Write, stored_rows
from statewise.data.progress import Progress
from statewise.data.splits import SPLITS

BLOCK = 256  # images drawn at once


def paint(
    canvas: np.ndarray, image: np.ndarray, strokes: np.ndarray, *, thickness: float, brightness: float = 1.0
) -> None:
    """Paints strokes into ``canvas`` where they are brighter than what is there.

    A pixel at distance d from a stroke gets brightness * min(1, max(0, thickness / 2 + 1/2 - d)), so that edges are
    smooth. A stroke that ends where it begins is a disc.

    Shapes:  canvas: (n, side, side) float32   image: (m,) of each stroke   strokes: (m, 4), from (y, x) to (y, x)
    Cost:    for each stroke the pixels of a square around it, no more.
    """
    side = canvas.shape[1]
    first, last = strokes[:, None, None, :2], strokes[:, None, None, 2:]
    way = last - first
    longest = float(np.sqrt((way**2).sum(-1).max(initial=0)))
    reach = math.ceil(longest / 2 + thickness / 2 + 1)
    at = np.arange(-reach, reach + 1)
    centre = np.rint((strokes[:, :2] + strokes[:, 2:]) / 2).astype(np.int64)
    y, x = centre[:, :1, None] + at[:, None], centre[:, 1:, None] + at
    pixels = np.stack(np.broadcast_arrays(y, x), -1).astype(np.float32)
    length = (way**2).sum(-1)
    share = ((pixels - first) * way).sum(-1) / np.where(length > 0, length, 1)
    nearest = first + np.clip(share, 0, 1)[..., None] * way
    distance = np.sqrt(((pixels - nearest) ** 2).sum(-1))
    value = np.float32(brightness) * np.clip(thickness / 2 + 0.5 - distance, 0, 1)
    y, x = np.broadcast_arrays(y, x)
    inside = (y >= 0) & (y < side) & (x >= 0) & (x < side) & (value > 0)
    where = (np.broadcast_to(image[:, None, None], y.shape)[inside], y[inside], x[inside])
    np.maximum.at(canvas, where, value[inside].astype(np.float32))


def draw(curves: Curves, marks: np.ndarray, settings: CurveSettings) -> np.ndarray:
    """The images, (n, side * side) uint8, of curves and of two marks each, (n, 2, 2) places (y, x)."""
    n = len(marks)
    canvas = np.zeros((n, settings.side, settings.side), np.float32)
    strokes = np.concatenate([curves.targets.reshape(n, -1, 4), curves.distractors.reshape(n, -1, 4)], 1)
    image, there = np.repeat(np.arange(n), strokes.shape[1]), np.isfinite(strokes).all(-1).ravel()
    dashes = strokes.reshape(-1, 4)[there]
    paint(canvas, image[there], dashes, thickness=settings.thickness, brightness=settings.brightness)
    discs = np.concatenate([marks, marks], -1).reshape(-1, 4)
    paint(canvas, np.repeat(np.arange(n), 2), discs, thickness=2 * settings.mark_radius)
    return np.rint(255 * canvas).astype(np.uint8).reshape(n, -1)


def place_marks(curves: Curves, labels: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(n, 2, 2): the beginning of the target curve ``chosen`` (n,), and the end of the same one where the label is 1,
    of the other one where it is 0.
    """
    rows = np.arange(len(labels))
    ends = np.where(labels == 1, chosen, 1 - chosen)
    return np.stack([curves.targets[rows, chosen, 0, :2], curves.targets[rows, ends, -1, 2:]], 1)


def draw_block(generator: np.random.Generator, labels: np.ndarray, settings: CurveSettings) -> np.ndarray:
    """An image for each label."""
    found: list[Curves] = []
    n = 0
    while n < len(labels):
        found.append(grow_curves(generator, BLOCK, settings))
        n += len(found[-1].targets)
    curves = Curves(*(np.concatenate(parts)[: len(labels)] for parts in zip(*found)))
    chosen = generator.integers(2, size=len(labels))
    return draw(curves, place_marks(curves, labels, chosen), settings)


def draw_pathfinder(config: LongRangeDataConfig, progress: Progress | None) -> Stored:
    """Images drawn block by block, each from a generator of (seed, split, block), half of every split of each label."""
    settings = SETTINGS[config.task]
    counts = [config.resolved(f"n_{name}") for name in SPLITS]
    length = settings.side**2

    def make(write: Write) -> Items:
        targets = []
        done = 0
        for part, n in enumerate(counts):
            labels = np.random.default_rng([config.seed, part]).permutation(np.arange(n) % 2)
            targets.append(labels)
            for number, low in enumerate(range(0, n, BLOCK)):
                own = labels[low : low + BLOCK]
                images = draw_block(np.random.default_rng([config.seed, part, number]), own, settings)
                write(images.ravel(), np.full(len(own), length))
                done += len(own)
                if progress is not None:
                    progress(done, sum(counts))
        return Items(np.concatenate(targets), np.repeat(np.arange(len(SPLITS)), counts))

    return stored_rows(config, [list(settings), counts, config.seed], make)
