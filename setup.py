"""Builds the C kernels during installation; all other metadata is in pyproject.toml.

The library is a plain shared object that ctypes loads, so a wheel with it fits every Python 3 of its platform
(py3-none-PLATFORM), and one without it every platform. Without a compiler, or with STATEWISE_NO_C=1, the package is
installed without the library and says so in `statewise info`.
"""

import importlib.util
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
PACKAGE = "statewise/native"

spec = importlib.util.spec_from_file_location("native_build", HERE / PACKAGE / "build.py")
native_build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native_build)


class BuildKernels(build_ext):
    """Compiles with native/build.py, which also serves developers, instead of as an extension module of Python."""

    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext):
        output, current = Path(self.get_ext_fullpath(ext.name)), HERE / PACKAGE / native_build.LIBRARY.name
        if self.editable_mode and native_build.is_current(current):  # each further extra of a checkout installs again
            output.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(current, output)
            return
        native_build.build_or_explain(output)

    def copy_extensions_to_source(self):
        """What an editable installation adds to the source tree: the library, or why there is none."""
        built = Path(self.build_lib) / PACKAGE
        for name in (native_build.LIBRARY.name, native_build.REASON.name):
            (HERE / PACKAGE / name).unlink(missing_ok=True)
            if (built / name).exists():
                shutil.copyfile(built / name, HERE / PACKAGE / name)


class Wheel(bdist_wheel):
    def get_tag(self):
        built = any(Path(self.bdist_dir).rglob(native_build.LIBRARY.name)) if self.bdist_dir else True
        return "py3", "none", super().get_tag()[2] if built else "any"


setup(
    ext_modules=[Extension("statewise.native._kernels", sources=[], optional=True)],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
)
