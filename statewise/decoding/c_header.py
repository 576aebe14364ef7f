"""The instructions as C declares them: the text of ``instructions.h``. To read it:

    python statewise/native/build.py --header

It is written while the C code is compiled, where there may be no package: the modules of the declarations are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def c_header(operands: Any, instructions: Any) -> str:
    """The text of the header for the modules ``operands`` and ``instructions``."""
    return "\n".join(_lines(operands, instructions)) + "\n"


def _lines(of: Any, instructions: Any) -> Iterator[str]:
    n_bytes = 8 * instructions.N_FIELDS
    names = [of.c_name(one) for one in instructions.INSTRUCTIONS]
    yield "/* Made of statewise/decoding/instructions.py and its neighbours, which say what each is: change those. */"
    yield "#ifndef STATEWISE_INSTRUCTIONS_H\n#define STATEWISE_INSTRUCTIONS_H\n#include <stdint.h>\n"
    yield f"#define BLOCK {of.BLOCK}\n#define TILE {of.TILE}\n#define HEADS {of.HEADS}"
    yield f"#define LOGITS ({of.LOGITS})\n#define NOWHERE ({of.NOWHERE})\n"
    for kinds in (of.Precision, of.Prefetch, of.NormKind, of.ActivationKind, of.DecayKind, of.RouterKind):
        yield f"enum {{ {', '.join(f'{kind.name} = {int(kind)}' for kind in kinds)} }};"
    for one in (of.Buffer, of.Place, of.Matrix, of.Routes, of.History, *instructions.INSTRUCTIONS):
        inside = "\n".join(f"    {_member(of, *member)};" for member in of.members(one).items())
        yield f"\ntypedef struct {{\n{inside}\n}} {of.c_name(one)};"
        yield f'_Static_assert(sizeof({of.c_name(one)}) == {8 * of.n_fields(one)}, "a member is 64 bits wide");'
    yield f"\nenum {{ {', '.join(name.upper() for name in names)} }};"
    yield f"#define EACH_INSTRUCTION(DO) {' '.join(f'DO({name.upper()}, {name})' for name in names)}\n"
    yield "typedef struct {\n    int64_t kind, wait;\n    union {"
    yield from (f"        {name} {name};" for name in names)
    yield "    };\n} instruction;"
    yield f'_Static_assert(sizeof(instruction) == {n_bytes}, "as long as a row of the table");\n\n#endif'


def _member(of: Any, name: str, kind: Any) -> str:
    kind = of.present(kind)
    if to := of.pointer(kind):
        return f"{to.to} *{name}"
    return f"{of.c_name(kind) if of.is_struct(kind) else 'double' if kind is of.Real else 'int64_t'} {name}"
