"""A model's step for other runtimes: as a program of plain PyTorch operators, and as an ONNX file."""

from __future__ import annotations

from statewise.export.files import ExportedFile, export_file, export_onnx
from statewise.export.step import export_step, refusal, state_names

__all__ = ["ExportedFile", "export_file", "export_onnx", "export_step", "refusal", "state_names"]
