"""Dashed curves that keep clear of each other, for the drawings of "pathfinder-gen" and "path-x-gen".

Two target curves begin ``seed_distance`` apart and grow in turn, a step at a time, each step a dash and a gap; shorter
curves beside them distract. Two marks stand on a beginning and an end, of one curve or of two. The images are our own:
what the published generator draws is alike in kind (Linsley et al. 2018, arXiv:1805.08315), not in its pixels.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import numpy as np

N_CHOICES = 8  # directions, or places to begin, that are tried for a step
WIDENING = np.linspace(1, 3, N_CHOICES)  # a curve turns sharply only where it has no room to go on smoothly
N_TRIALS = 3  # for each distracting curve, which is left out if none has room


class CurveSettings(NamedTuple):
    """Lengths in pixels, angles in radians. ``clearance``: the least distance between curves, and between parts of one
    that are not next to each other; below a step's length.  n_points: of a step that are held against others.
    """

    side: int
    dash: float
    gap: float
    thickness: float
    brightness: float
    mark_radius: float
    seed_distance: float
    clearance: float
    n_distractors: int
    n_dashes: int = 14
    n_distractor_dashes: int = 4
    max_turn: float = 0.7
    padding: float = 2.0
    n_points: int = 3

    @property
    def step(self) -> float:
        return self.dash + self.gap


SETTINGS = {  # sizes after lra_benchmarks/data/pathfinder.py, which has them for 32 and 128 pixels
    "pathfinder-gen": CurveSettings(32, 1.5, 1.5, 1.0, 0.75, 1.5, 7.0, 2.0, 5, n_points=2),
    "path-x-gen": CurveSettings(128, 5.0, 2.5, 1.5, 0.9, 3.0, 20.0, 4.5, 8),
}


class Curves(NamedTuple):
    """The curves of n images. targets: (n, 2, n_dashes, 4), the dashes of both curves, each from (y, x) to (y, x).
    distractors: (n, n_distractors, n_distractor_dashes, 4), NaN where there was no room.
    """

    targets: np.ndarray
    distractors: np.ndarray


class _Growing:
    """Curves of n images side by side. A curve is its place in ``points``; those that are not there are infinitely
    far away.
    """

    def __init__(self, generator: np.random.Generator, n: int, settings: CurveSettings) -> None:
        self.generator, self.settings = generator, settings
        sizes = [settings.n_dashes] * 2 + [settings.n_distractor_dashes] * settings.n_distractors
        self.begins = np.cumsum([0, *(1 + n_dashes * settings.n_points for n_dashes in sizes)])
        self.points = np.full((n, int(self.begins[-1]), 2), np.inf, np.float32)
        self.headings = np.zeros((n, len(sizes)), np.float32)

    def only(self, kept: np.ndarray) -> _Growing:
        """Copies of some of the images."""
        part = copy.copy(self)
        part.points, part.headings = self.points[kept], self.headings[kept]
        return part

    def free(self, places: np.ndarray, curve: int, latest: slice) -> np.ndarray:
        """Which of places (n, choices, points, 2) are inside, and clear of the points of this curve and of those before
        it (of both targets), all but the ``latest``: (n, choices).
        """
        low, high = self.settings.padding, self.settings.side - 1 - self.settings.padding
        inside = ((places >= low) & (places <= high)).all((2, 3))
        others = self.points[:, None, None, : self.begins[max(curve, 1) + 1]]
        squares = (places[..., None, 0] - others[..., 0]) ** 2 + (places[..., None, 1] - others[..., 1]) ** 2
        squares[..., latest] = np.inf
        return inside & (squares.min((2, 3)) >= self.settings.clearance**2)

    def begin(self, curve: int, places: np.ndarray) -> np.ndarray:
        """Puts the beginning of a curve on the first free one of places (n, choices, 2); gives where there was one."""
        free = self.free(places[:, :, None], curve, slice(0, 0))
        self.points[:, self.begins[curve]] = places[np.arange(len(places)), free.argmax(1)]
        return np.asarray(free.any(1))

    def grow(self, curve: int, step: int) -> np.ndarray:
        """One step further in the first direction that is free; gives where there was one."""
        n_points, n = self.settings.n_points, len(self.points)
        begin = int(self.begins[curve])
        tip = begin + step * n_points
        widest = np.full(N_CHOICES, math.pi) if step == 0 else self.settings.max_turn * WIDENING
        turns = self.generator.uniform(-widest, widest, (n, N_CHOICES)).astype(np.float32)
        angles = self.headings[:, curve, None] + turns
        along = self.settings.step * np.arange(1, n_points + 1, dtype=np.float32) / n_points
        ways = np.stack([np.sin(angles), np.cos(angles)], -1)[:, :, None] * along[:, None]
        places = self.points[:, tip, None, None] + ways
        latest = slice(begin, begin + 1) if step == 0 else slice(tip - n_points + 1, tip + 1)
        free = self.free(places, curve, latest)
        rows, chosen = np.arange(n), free.argmax(1)
        self.headings[:, curve] = angles[rows, chosen]
        self.points[:, tip + 1 : tip + 1 + n_points] = places[rows, chosen]
        return np.asarray(free.any(1))

    def dashes(self, curve: int, n_dashes: int) -> np.ndarray:
        """(n, n_dashes, 4), not finite where the curve is not there."""
        begin, n_points = int(self.begins[curve]), self.settings.n_points
        knots = self.points[:, begin : begin + 1 + n_dashes * n_points : n_points]
        first, last = knots[:, :-1], knots[:, 1:]
        share = np.float32(self.settings.dash / self.settings.step)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            return np.concatenate([first, first + (last - first) * share], -1)


def grow_curves(generator: np.random.Generator, n: int, settings: CurveSettings) -> Curves:
    """Curves for ``n`` images or fewer: those of ``n`` in which both targets found room.

    Cost:    O(points^2) an image in numpy, all images a step at a time: about 0.8 ms for each that is kept.
    """
    growing = _Growing(generator, n, settings)
    low, high = settings.padding, settings.side - 1 - settings.padding
    first = generator.uniform(low, high, (n, 1, 2)).astype(np.float32)
    around = generator.uniform(0, 2 * math.pi, (n, N_CHOICES))
    second = first + settings.seed_distance * np.stack([np.sin(around), np.cos(around)], -1).astype(np.float32)
    growing.begin(0, first)  # nothing is in its way
    growing = growing.only(growing.begin(1, second))
    for step in range(settings.n_dashes):
        for curve in range(2):
            growing = growing.only(growing.grow(curve, step))
    for curve in range(2, 2 + settings.n_distractors):
        own = slice(int(growing.begins[curve]), int(growing.begins[curve + 1]))
        missing = np.arange(len(growing.points))
        for _ in range(N_TRIALS):
            trial = growing.only(missing)
            places = generator.uniform(low, high, (len(missing), N_CHOICES, 2)).astype(np.float32)
            there = trial.begin(curve, places)
            for step in range(settings.n_distractor_dashes):
                there &= trial.grow(curve, step)
            growing.points[missing[there], own] = trial.points[there, own]
            missing = missing[~there]
    targets = np.stack([growing.dashes(curve, settings.n_dashes) for curve in range(2)], 1)
    others = [growing.dashes(2 + i, settings.n_distractor_dashes) for i in range(settings.n_distractors)]
    return Curves(targets, np.stack(others, 1))
