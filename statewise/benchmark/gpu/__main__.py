"""python -m statewise.benchmark.gpu [--out FOLDER] [--science --data-dir DATA]: see docs/gpu.md."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path

import torch

from statewise.benchmark.gpu.kernels_on_card import canaries, ceilings, times
from statewise.benchmark.gpu.models_on_card import decoding, memory, training
from statewise.benchmark.gpu.science import stages as science_stages
from statewise.benchmark.gpu.stages import Settings, Stage, card, run_stage, run_stages
from statewise.benchmark.gpu.tests_on_card import laws, marked

AT_ONCE = min(12, os.cpu_count() or 1)  # processes of tests, which share the GPU: the host is what they wait for
DAY = (  # in this order: what says whether anything is right comes first; together they stay below ten minutes
    Stage("canary", 80, canaries),
    Stage("tests", 90, marked, at_once=AT_ONCE),
    Stage("laws", 150, laws, at_once=AT_ONCE),
    Stage("ceilings", 10, ceilings),
    Stage("kernels", 80, times),
    Stage("decoding", 60, decoding),
    Stage("training", 70, training),
    Stage("memory", 50, memory),
)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m statewise.benchmark.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-day"), help="folder of the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to see that everything runs")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no figure to trust")
    parser.add_argument("--science", action="store_true", help="ten minutes of the next long training instead")
    parser.add_argument("--data-dir", type=Path, help="the data sets of the trainings")
    parser.add_argument("--stage", help="only this one, in this process")
    options = parser.parse_args(given)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: PyTorch finds no CUDA device; --device cpu --quick shows that everything runs")
        return 3
    out = options.out.resolve()
    settings = Settings(options.device, options.quick, out, options.data_dir and options.data_dir.resolve())
    if options.stage is not None:
        known = {stage.name: stage for stage in (*DAY, *science_stages())}
        if options.stage not in known:
            parser.error(f"--stage {options.stage} is unknown; use one of {', '.join(known)}")
        run_stage(known[options.stage], settings)
        return 0
    stages, begun = science_stages() if options.science else DAY, time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - begun:4.0f} s] {line}", flush=True)

    found = run_stages(stages, settings, tell, most=1 if options.science and not options.quick else None)
    name = re.sub(r"[^a-z0-9]+", "-", card(options.device).partition(",")[0].lower()).strip("-")
    path = out / f"gpu-{'science' if options.science else 'day'}-{name}.json"
    path.write_text(
        json.dumps({"card": card(options.device), "quick": options.quick, "stages": found}, indent=1) + "\n"
    )
    left = [stage for stage, record in found.items() if record.get("state") != "done"]
    tell(
        f"{path}, for experiments/results/" + (f"; still to do, by the same command: {', '.join(left)}" if left else "")
    )
    failed = any("error" in item or item.get("failed") for r in found.values() for item in r.get("items", {}).values())
    return 2 if left else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
