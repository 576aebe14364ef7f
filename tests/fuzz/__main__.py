"""``python -m fuzz``: every target for some minutes, some targets, or one case again."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from fuzz.draw import Draw
from fuzz.run import run_target, shares
from fuzz.sanitized import NoSanitizer, environment
from fuzz.targets import TARGETS
from statewise.data.made_once import cache_folder
from statewise.native.build import sources_digest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)}; none: all")
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0, help="other seeds, other cases")
    parser.add_argument("--case", type=int, help="run this case of one target here, under no limit")
    parser.add_argument(
        "--sanitize",
        choices=("auto", "all", "none"),
        nargs="?",
        const="all",
        default="none",
        help="the C kernels built with sanitizers: for all targets that run them, or (auto) for those that ask for it "
        "where there is a compiler that can",
    )
    given = parser.parse_args()
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    names = given.targets or list(TARGETS)
    if given.case is not None:
        if len(names) != 1:
            parser.error("--case needs the name of one target")
        if given.sanitize == "none":
            return _again(names[0], given.case)
    environments = _sanitized(names, given.sanitize)
    if given.case is not None:
        command = [sys.executable, "-m", "fuzz", names[0], "--case", str(given.case)]
        return subprocess.run(command, env={**os.environ, **environments.get(names[0], {})}).returncode
    return _all(names, given.seed, given.minutes, environments)


def _tell(text: str) -> None:
    print(text, flush=True)


def _again(name: str, case: int) -> int:
    draw = Draw(case)
    try:
        TARGETS[name].load()(draw)
    finally:
        for note, value in draw.notes.items():
            print(f"{note} = {value}")
    print(f"{name}: case {case} is as it should be")
    return 0


def _sanitized(names: list[str], which: str) -> dict[str, dict[str, str]]:
    """What each target's workers have in their environment."""
    chosen = {name for name in names if TARGETS[name].sanitize or (which == "all" and TARGETS[name].runs_c)}
    if which == "none" or not chosen:
        return {}
    library = cache_folder() / "sanitized" / f"{sources_digest()}.so"
    if not library.exists():
        print("building the C kernels with sanitizers: minutes, once for these sources", flush=True)
    try:
        return dict.fromkeys(chosen, environment(library))
    except NoSanitizer as why:
        if which == "all":
            sys.exit(f"python -m fuzz: error: --sanitize: {why}")
        print(f"without sanitizers: {why}", flush=True)
        return {}


def _all(names: list[str], seed: int, minutes: float, environments: dict[str, dict[str, str]]) -> int:
    findings = 0
    for name, seconds in shares(names, 60 * minutes).items():
        begin = time.monotonic()
        report = run_target(name, seed, seconds, tell=_tell, environment=environments.get(name))
        took = time.monotonic() - begin
        print(f"{name}: {report.cases:,} cases in {took:.0f} s, {len(report.findings)} findings", flush=True)
        findings += len(report.findings)
    print(f"seed {seed}: {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:  # how run.py begins a worker: --worker TARGET FIRST_CASE
        from fuzz.worker import run

        run(sys.argv[2], int(sys.argv[3]))
    sys.exit(main())
