"""Whether ``cpuinfo_isa`` is laid out as known: by its size, and by the fields that matter, against the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import FeatureError
from opscope.machine import isa
from opscope.machine.cpu_reading import expected_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.machine.cpu_reading import CpuReading
    from opscope.machine.isa import FeatureLayout

WITHOUT_SWITCH = "everything else works: `opscope profile --ablate none` measures the model as is"
_MOST_NAMED = 4
_FLAG = 1
_ODD = 1


def known_layout(arch: str, size: int) -> FeatureLayout:
    """The layout of a struct of that size."""
    layouts = isa.LAYOUTS[arch]
    if size not in layouts:
        known = ", ".join(map(str, sorted(layouts)))
        problem = f"this runtime's cpuinfo_isa has {size} bytes; layouts are known for {known} on {arch}"
        raise FeatureError(f"{problem}, so its fields cannot be located", hint=WITHOUT_SWITCH)
    return layouts[size]


def proved_layout(arch: str, content: Sequence[int], size: int | None, reading: CpuReading) -> FeatureLayout:
    """The layout of ``cpuinfo_isa``, proved by its fields.

    Every field that could be switched off must read as the processor says. Of the others one may differ, since nothing
    depends on it; two may not: on some machines nothing else shows that all fields stand one byte further (the test
    with the recorded machines says on which). Where the size is not stated (macOS) the layout is chosen by all known
    fields; a field that could then still stand in two places is left out.
    """
    expected = expected_fields(reading)
    wanted = isa.switchable(arch)
    if not wanted <= expected.keys():
        problem = "cannot query the processor's features, so the layout of cpuinfo_isa cannot be checked"
        raise FeatureError(problem, hint=WITHOUT_SWITCH)
    if size is not None:
        layout = known_layout(arch, size)
        wrong = disagreements(layout, content, expected)
        if len(wrong) > _ODD or wanted & wrong.keys():
            raise FeatureError(_refusal(arch, layout, wrong), hint=WITHOUT_SWITCH)
        return layout
    return _chosen(arch, content, expected)


def disagreements(
    layout: FeatureLayout, content: Sequence[int], expected: Mapping[str, frozenset[bool]]
) -> dict[str, tuple[int | None, bool]]:
    """Fields that do not read as the processor says: what stands there (None beyond the end), and what should.

    A field that the layout does not have is none of them.
    """
    found = {}
    for field, possible in expected.items():
        at = layout.offsets.get(field)
        if at is None:
            continue
        value = content[at] if at < len(content) else None
        if value is None or value > _FLAG or bool(value) not in possible:
            found[field] = (value, True in possible)
    return found


def _chosen(arch: str, content: Sequence[int], expected: Mapping[str, frozenset[bool]]) -> FeatureLayout:
    layouts = sorted(isa.LAYOUTS[arch].values(), key=lambda layout: layout.size)
    wrong = [disagreements(layout, content, expected) for layout in layouts]
    agreeing = [layout for layout, fields in zip(layouts, wrong, strict=True) if not fields]
    if not agreeing:
        nearest = min(range(len(layouts)), key=lambda number: len(wrong[number]))
        raise FeatureError(_refusal(arch, layouts[nearest], wrong[nearest]), hint=WITHOUT_SWITCH)
    first, *others = agreeing
    certain = {f: at for f, at in first.offsets.items() if all(other.offsets.get(f) == at for other in others)}
    return first._replace(offsets=certain)


def _refusal(arch: str, layout: FeatureLayout, wrong: Mapping[str, tuple[int | None, bool]]) -> str:
    switched = isa.switchable(arch)
    ordered = sorted(wrong, key=lambda field: (field not in switched, field))
    named = [f"{field} reads {wrong[field][0]}, the CPU says {int(wrong[field][1])}" for field in ordered]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    fields = "; ".join(named[:_MOST_NAMED])
    return (
        f"cpuinfo_isa does not have the known layout for {layout.size} bytes: {fields}{more}. Clearing by this layout "
        "would switch off other features"
    )
