"""The page's JavaScript in node: a question in JSON, an answer in JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest

MODULES = ("linear", "hippo", "systems", "duality", "model", "backend")

DRIVER = """
for (const name of {modules}) require({folder} + '/' + name + '.js');
const S = globalThis.statewise, data = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const plain = (key, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
const answer = async () => {{ {body} }};
answer().then((value) => process.stdout.write(JSON.stringify(value, plain)));
"""


def in_node(body: str, data: Any = None) -> Any:
    """What the body of a JavaScript function returns; it finds the page's parts in ``S`` and its question in ``data``.
    Skips the test where node is not installed."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    folder = json.dumps(str(files("statewise.explore") / "page"))
    script = DRIVER.format(modules=json.dumps(MODULES), folder=folder, body=body)
    done = subprocess.run([node, "-e", script], input=json.dumps(data), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
