"""Models for other runtimes: as a program of plain PyTorch operators, and as ONNX files."""

from __future__ import annotations

from statewise.export.files import ExportedFile as ExportedFile
from statewise.export.files import export_file as export_file
from statewise.export.files import export_onnx as export_onnx
from statewise.export.parts import state_names as state_names
from statewise.export.step import PARTS as PARTS
from statewise.export.step import export_step as export_step
from statewise.export.step import refusal as refusal
