"""Kernels in the columns of the Arm kit's lists, one file for each source.

``count`` is what the source counts: calls, samples, or lines of a log, of which the kit knows only the last. A number
that is not known is left empty. The other columns come from the names; for kernels of KleidiAI, which the kit's grammar
does not know, ``arch_chain`` is the instruction set alone.
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

from opscope.analysis.kernels.kernel_sources import KernelState
from opscope.program.kernels.names import parse_kernel
from opscope.program.kernels.symbols import SME_FAMILY, IsaClass, parse_symbol
from opscope.reports.content.text import csv_cell, distinct

if TYPE_CHECKING:
    from opscope.analysis.kernels.kernels import KernelColumn, KernelLine, KernelView

COLUMNS = (
    *("model_id", "kernel_name", "category", "count", "dtype", "xnn_op", "variant"),
    *("ukernel_shape", "arch_chain", "has_sme", "has_sme2"),
)
_NAMED = (KernelState.COUNTED, KernelState.SAMPLED, KernelState.PRESENT)
_PLAIN = re.compile(r"[^A-Za-z0-9_.+-]+")


def kernel_csv(view: KernelView) -> dict[str, bytes]:
    """A file for each column of a view, by name; kernels that the column does not name are in none."""
    stems = distinct(_stem(column) for column in view.columns)
    return {f"{stem}_kernels.csv": _file(view, number) for number, stem in enumerate(stems)}


def _stem(column: KernelColumn) -> str:
    threads = "" if column.threads is None else f"_t{column.threads}"
    return f"{_PLAIN.sub('_', column.variant).strip('.') or 'kernels'}{threads}"[:100]


def _file(view: KernelView, number: int) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    column = view.columns[number]
    for line in view.kernels:
        cell = line.cells[number]
        if cell.state in _NAMED and cell.amount != 0:
            writer.writerow(_cells(line, column, cell.amount))
    return text.getvalue().encode()


def _cells(line: KernelLine, column: KernelColumn, amount: int | None) -> list[str]:
    kernel, symbol = parse_kernel(line.name), parse_symbol(line.name)
    isa = symbol.isa if symbol else IsaClass.UNKNOWN
    chain = "_".join(kernel.isa_chain) or (isa.value if symbol else "")
    texts = (
        *(column.variant, line.name, column.categories.get(line.name) or line.operator or ""),
        *("" if amount is None else str(amount), line.types or "", line.operator or "", kernel.variant or ""),
        *(line.tile or "", chain, str(isa in SME_FAMILY), str(isa is IsaClass.SME2)),
    )
    return [csv_cell(text) for text in texts]
