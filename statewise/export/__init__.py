"""A model's step for other runtimes: as a program of plain PyTorch operators, and as an ONNX file."""

from __future__ import annotations

from statewise.export.files import ExportedFile as ExportedFile
from statewise.export.files import export_file as export_file
from statewise.export.files import export_onnx as export_onnx
from statewise.export.step import export_step as export_step
from statewise.export.step import refusal as refusal
from statewise.export.step import state_names as state_names
