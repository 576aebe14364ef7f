"""A batch of cifar-10-python, which is a pickle: read without making any object that it names.

numpy's own classes are not safe to hand to a pickle: ``ndarray(shape, dtype, buffer)`` with a dtype of objects
turns bytes of the file into addresses of objects. So what it names becomes a stand-in that keeps what it was given, and
the one array is made here, of uint8, from values that have been looked at.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from statewise.errors import DataError, excerpt, reason
from statewise.files.limits import most

N_CLASSES = 10
# Those of plain values, lists, tuples, dicts, and calls of what find_class gives; no sets, no classes, no extensions
OPERATION_NAMES = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 BINFLOAT STRING BINSTRING
    SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_LIST APPEND APPENDS
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT SETITEM SETITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET
    LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD
"""
OPERATIONS = frozenset(getattr(pickle, name)[0] for name in OPERATION_NAMES.split())


def read_batch(data: bytes, name: str, width: int) -> tuple[np.ndarray, list[int]]:
    """The images, (n, width) uint8, and their labels.

    Errors:  DataError for a pickle that is damaged, asks for anything else than an array, or holds something else.
    """
    try:
        reader = _Reader(io.BytesIO(data), encoding="bytes")
        reader.left = most(len(data))
        batch = reader.load()
        pixels, labels = batch[b"data"], batch[b"labels"]
        if type(pixels) is not _Array or type(labels) is not list:
            raise pickle.UnpicklingError("its data are not an array, or its labels not a list")
        array = pixels.bytes()
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"{name} is not a batch of cifar-10-python: {reason(error)}") from error
    if array.shape != (len(labels), width):
        raise DataError(f"{name} is not a batch of cifar-10-python: it holds {array.dtype} {array.shape}")
    for label in labels:
        if type(label) is not int or not 0 <= label < N_CLASSES:
            raise DataError(f"{name} is not a batch of cifar-10-python: it has a label that is not one of 0 to 9")
    return array, labels


class _StandIn:
    """Keeps what it was called with and its state, and does nothing with them."""

    __slots__ = ("given", "state")

    def __init__(self, *given: Any) -> None:
        self.given, self.state = given, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Dtype(_StandIn):
    __slots__ = ()


class _Array(_StandIn):
    __slots__ = ()

    def bytes(self) -> np.ndarray:
        """As uint8. Errors: UnpicklingError for any other dtype, and if the data are not as many as the shape says."""
        if type(self.state) is not tuple or len(self.state) != 5:
            raise pickle.UnpicklingError("its array was not filled")
        _, shape, dtype, is_fortran, data = self.state
        if type(dtype) is not _Dtype or type(dtype.given[:1]) is not tuple or dtype.given[:1] not in _UINT8:
            raise pickle.UnpicklingError("its array is not uint8")
        if type(shape) is not tuple or not all(type(n) is int and 0 <= n <= len(data) for n in shape):
            raise pickle.UnpicklingError("its array has an impossible shape")
        if type(data) is not bytes or len(shape) != 2 or math.prod(shape) != len(data):
            raise pickle.UnpicklingError("its array does not have as many bytes as its shape says")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if is_fortran is True or is_fortran == 1 else "C")


_UINT8 = ((b"u1",), ("u1",), (b"|u1",), ("|u1",))


class _Bytes:
    """How Python 3 writes bytes under the old protocols: ``_codecs.encode(text, "latin1")``."""

    def __new__(cls, text: str, encoding: str) -> Any:
        return str.encode(text, "latin1")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes an object that it may only call")


KNOWN: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _Bytes,
}


class _Reader(pickle._Unpickler):
    """The unpickler that is written in Python: the one in C sets aside as much memory as a file's marks claim."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    left: int  # bytes that calls may still make: a pickle can name one long text any number of times

    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"it asks for {excerpt(f'{module}.{name}', quoted=False)}")
        return KNOWN[module, name]

    def _refused(self) -> None:
        raise pickle.UnpicklingError("it has an operation that these batches do not use")

    def _set_items(self) -> None:
        items = self.pop_mark()
        self._set(items[::2], items[1::2])

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key], [value])

    def _set(self, keys: list[Any], values: list[Any]) -> None:
        """Only of plain keys: to hash a tuple of tuples may take for ever."""
        if type(self.stack[-1]) is not dict or not all(type(key) in (bytes, str, int) for key in keys):
            raise pickle.UnpicklingError("it has keys that are not text")
        self.stack[-1].update(zip(keys, values, strict=True))

    def _call(self) -> None:
        given, made = self.stack.pop(), self.stack[-1]
        if made not in KNOWN.values() or type(given) is not tuple:
            raise pickle.UnpicklingError("it calls something other than numpy's classes")
        if made is _Bytes:
            self.left -= len(given[0]) if given and type(given[0]) is str else 0
            if self.left < 0:
                raise pickle.UnpicklingError("it grows to many times its size")
        self.stack[-1] = made(*given)

    def _build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, _StandIn):
            raise pickle.UnpicklingError("it sets the state of an object without one")
        made.__setstate__(state)

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **dict.fromkeys(range(256), _refused),
        **{code: read for code, read in pickle._Unpickler.dispatch.items() if code in OPERATIONS},
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.REDUCE[0]: _call,
        pickle.BUILD[0]: _build,
    }
