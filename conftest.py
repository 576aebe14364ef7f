"""Doctests are collected from every module: those of the integrations only where the library is that they need."""

from __future__ import annotations

import importlib.util

NEEDED = {
    "transformers": "transformers",
    "lm_eval": "lm_eval",
}  # a folder of statewise/integrations: its package

collect_ignore_glob = ["tests/conftest.py", "tests/*/conftest.py"]  # several of one name, without doctests
collect_ignore_glob += [
    f"statewise/integrations/{folder}/*.py"
    for folder, package in NEEDED.items()
    if importlib.util.find_spec(package) is None
]
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob.append("statewise/kernels/*/triton*.py")
