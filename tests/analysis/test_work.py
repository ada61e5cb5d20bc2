"""Counted work as values: what receipts find, sizes that are rounded up, and what a page says of tiles."""

from __future__ import annotations

import msgspec
import pytest

from opscope.analysis.work.receipt import CountRequest, differences, read_receipt, receipt_of
from opscope.analysis.work.work import CountedOperator, RestWork, Work, padded_sizes
from opscope.core.errors import TraceFormatError
from opscope.reports.document.markdown import markdown_document
from opscope.reports.work import work_document

REQUEST = CountRequest(target="qemu-aarch64", sve_bits=128, sme_bits=512)


def operator(**fields: object) -> CountedOperator:
    """A product of 1,024 multiply-accumulates, one outer product of a tile."""
    usual = {
        **dict.fromkeys(("method", "name", "layer", "category", "kind"), "linear"),
        **dict.fromkeys(("instruction", "position", "bytes_loaded", "bytes_stored"), 0),
        "instructions": 8,
        "classes": {"outer_product": 1, "scalar": 7},
        "outer_products": 1,
        **dict.fromkeys(("mac_capacity", "tile_capacity", "macs"), 1024),
    }
    return CountedOperator(**(usual | fields))  # type: ignore[arg-type]


def work(*operators: CountedOperator, **fields: object) -> Work:
    """Of some operators."""
    rest = RestWork(0, 0, 0)
    made = Work("m.pte", "0" * 64, "ExecuTorch 1.5.1", "Arm", "QEMU", [], [], list(operators), rest)
    return msgspec.structs.replace(made, **fields)


def shown(found: Work) -> str:
    """Its page."""
    return markdown_document(work_document(found), level=1)


def test_tiles_are_told_with_what_fills_them() -> None:
    """Where a part of the products is not summed up on tiles, how far these are filled is not known."""
    assert "SME ran 100.0 % of the multiply-accumulates, tiles filled to 50.0 %" in shown(work(operator(macs=512)))
    mixed = operator(mac_capacity=2048)
    assert "SME: 1 outer product, streaming mode entered 0 times; tile fill unknown" in shown(work(mixed))
    assert "tile fill unknown" in shown(work(operator(macs=None)))
    assert "SME" not in shown(work(operator(tile_capacity=0, outer_products=0)))


def test_a_receipt_names_the_first_field_that_differs() -> None:
    """The instructions where these do, and other feature groups before any operator."""
    stated = work(operator(), others=[work(operator(), off=["sme"])])
    assert differences(stated, stated) == []
    more = msgspec.structs.replace(stated, operators=[operator(instructions=9, bytes_loaded=1)])
    assert differences(stated, more) == ["linear: instructions 8 in the receipt, 9 here"]
    loaded = msgspec.structs.replace(stated, operators=[operator(bytes_loaded=1)])
    assert differences(stated, loaded) == ["linear: bytes_loaded 0 in the receipt, 1 here"]
    assert differences(stated, work(operator())) == [
        "feature groups: this run switched off other ones than the receipt"
    ]


def test_a_receipt_that_was_changed_is_refused() -> None:
    """By its digest; what is none is refused as such."""
    receipt = receipt_of(work(operator()), REQUEST)
    content = msgspec.json.encode(receipt)
    assert read_receipt(content, "r") == receipt
    with pytest.raises(TraceFormatError, match="do not match its digest"):
        read_receipt(content.replace(b'"bytes_loaded":0', b'"bytes_loaded":1'), "r")
    with pytest.raises(TraceFormatError, match="not a receipt"):
        read_receipt(b"{}", "r")


@pytest.mark.parametrize(
    ("macs", "capacity", "shape", "found"),
    [
        (32 * 32 * 20 * 144, 32 * 32 * 32 * 145, (1, 32, 32, 20), [("output channels", 20, 32)]),
        (4096 * 32 * 27, 4096 * 32 * 36, (1, 64, 64, 32), [("input channels", 3, 4)]),
        (14 * 14 * 288 * 48, 224 * 288 * 49, (1, 14, 14, 288), [("rows", 196, 224)]),
        (1000, 1000, (10, 10), []),
        (1000, 1001, (10, 10), []),
        (1000, 2000, (0, 10), []),
    ],
)
def test_sizes_are_explained_exactly_or_not_at_all(
    macs: int, capacity: int, shape: tuple[int, ...], found: list[tuple[str, int, int]]
) -> None:
    """A bias may be one more step; what fits nothing has no explanation."""
    sizes = padded_sizes(macs, capacity, shape, -1, 512)
    assert [(one.name, one.needed, one.executed) for one in sizes] == found
