"""Features of CPUs: their positions in ``cpuinfo_isa``, and which belong together.

XNNPACK picks its kernels by the struct ``cpuinfo_isa`` of pytorch/cpuinfo, one byte a feature. Source of the
field
orders: ``include/cpuinfo.h`` of pytorch/cpuinfo, sections of x86-64 and arm64, at the commits that each layout
names.
The size of the symbol tells the layout of a library; that it is this one is proved against the processor
(:func:`proved_layout`) before anything is cleared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import FeatureError, did_you_mean
from opscope.machine.cpu_reading import expected_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from opscope.machine.cpu_reading import CpuReading


# The newest orders; older layouts lack the fields that came later.
_X86_64_FIELDS = tuple(
    """
    rdtscp rdpid sysenter msr clzero clflush clflushopt mwait mwaitx fxsave xsave three_d_now three_d_now_plus
    prefetch prefetchw prefetchwt1 sse3 ssse3 sse4_1 sse4_2 sse4a misaligned_sse avx avxvnni fma3 fma4 xop f16c avx2
    avx512f avx512pf avx512er avx512cd avx512dq avx512bw avx512vl avx512ifma avx512vbmi avx512vbmi2 avx512bitalg
    avx512vpopcntdq avx512vnni avx512bf16 avx512fp16 avx512vp2intersect avx512_4vnniw avx512_4fmaps avx10_1 avx10_2
    amx_bf16 amx_tile amx_int8 amx_fp16 amx_fp8 avx_vnni_int8 avx_vnni_int16 avx_ne_convert hle rtm xtest mpx
    cmpxchg16b clwb movbe lahf_sahf fs_gs_base lzcnt popcnt tbm bmi bmi2 adx aes vaes pclmulqdq vpclmulqdq gfni rdrand
    rdseed sha rng ace ace2 phe pmm lwp
    """.split()
)
_ARM64_LOW = tuple(
    "atomics bf16 sve sve2 i8mm sme sme2 sme2p1 sme_i16i32 sme_bi32i32 sme_b16b16 sme_f16f16 fp8 f8dot f8mm".split()
)
_ARM64_HIGH = tuple("rdm fp16arith dot jscvt fcma fhm aes sha1 sha2 pmull crc32".split())
# Between them stand two 32-bit vector lengths, svelen and smelen, on a multiple of four.
_ARM64_LENGTHS = 8
_FP8 = {"fp8", "f8dot", "f8mm"}
_AMX_FP8 = {"amx_fp8"}
_AVX10 = {"avx10_1", "avx10_2"}
_AMX_AND_VNNI = {"amx_bf16", "amx_tile", "amx_int8", "amx_fp16", "avx_vnni_int8", "avx_vnni_int16", "avx_ne_convert"}


class FeatureLayout(NamedTuple):
    """Positions of features in ``cpuinfo_isa``."""

    size: int  # of the struct in bytes
    offsets: dict[str, int]  # field -> byte offset
    since: str  # commit of pytorch/cpuinfo that made the struct this size, with its date


def _x86_layout(since: str, lacking: set[str]) -> FeatureLayout:
    """Return the layout of x86-64 without some fields."""
    offsets = {name: at for at, name in enumerate(name for name in _X86_64_FIELDS if name not in lacking)}
    return FeatureLayout(len(offsets), offsets, since)


def _arm_layout(since: str, lacking: set[str]) -> FeatureLayout:
    """Return the layout of 64-bit Arm without some fields."""
    low = [name for name in _ARM64_LOW if name not in lacking]
    high_at = -(-len(low) // 4) * 4 + _ARM64_LENGTHS
    offsets = {name: at for at, name in enumerate(low)} | {name: high_at + at for at, name in enumerate(_ARM64_HIGH)}
    return FeatureLayout(-(-(high_at + len(_ARM64_HIGH)) // 4) * 4, offsets, since)


_KNOWN = {
    "x86_64": (
        _x86_layout("before d6860c4 (2023-11-04)", {"avxvnni"} | _AMX_AND_VNNI | _AVX10 | _AMX_FP8),
        _x86_layout("3c8b153 (2024-04-17)", _AVX10 | _AMX_FP8),
        _x86_layout("6fb6cab (2025-01-30)", _AMX_FP8),
        _x86_layout("9c6d248 (2026-07-14)", set()),
    ),
    "aarch64": (_arm_layout("077e89f (2025-03-27)", _FP8), _arm_layout("6882af5 (2026-07-16)", set())),
}
LAYOUTS = {arch: {layout.size: layout for layout in layouts} for arch, layouts in _KNOWN.items()}
"""By architecture and size of the struct in bytes."""
_ORDER = {"x86_64": _X86_64_FIELDS, "aarch64": (*_ARM64_LOW, *_ARM64_HIGH)}


class Group(NamedTuple):
    """Features that are switched together."""

    name: str  # as on the command line
    fields: tuple[str, ...]  # of `cpuinfo_isa` that it clears, those of dependent groups included
    meaning: str  # for people
    bits: int | None = None  # of the only weights that it helps; None: of whatever weights


_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}

_AMX = ("amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "amx_fp8")
_AVX512 = (*(name for name in _X86_64_FIELDS if name.startswith("avx512")), "avx10_1", "avx10_2", *_AMX)
_AVX2 = ("avx2", "fma3", "f16c", "avxvnni", "avx_vnni_int8", "avx_vnni_int16", "avx_ne_convert", *_AVX512)
_AVX = ("avx", "fma4", "xop", *_AVX2)
_SSE4 = ("sse4_1", "sse4_2", "sse4a", *_AVX)
_SME2 = ("sme2", "sme2p1")
_SME = (*(name for name in _ARM64_LOW if name.startswith("sme")),)

# Strongest first; a group's first field tells whether the CPU has it.
GROUPS: dict[str, tuple[Group, ...]] = {
    "x86_64": (
        Group("amx", _AMX, "matrix tiles (AMX)", bits=8),
        Group("avx512", _AVX512, "512-bit vectors, all of AVX-512, and AMX, which needs it"),
        Group("avx2", _AVX2, "256-bit integer vectors, FMA3, F16C, VNNI, and all above"),
        Group("avx", _AVX, "256-bit vectors, and all above"),
        Group("sse4", _SSE4, "SSE4.1 and 4.2, and all above"),
    ),
    "aarch64": (
        Group("sme2", _SME2, "the second version of the matrix extension; SME remains"),
        Group("sme", _SME, "the scalable matrix extension, SME2 included"),
        Group("i8mm", ("i8mm",), "8-bit matrix multiplication in NEON", bits=8),
        Group("dotprod", ("dot", "i8mm"), "8-bit dot products in NEON, and i8mm", bits=8),
        Group("bf16", ("bf16",), "bfloat16 arithmetic", bits=16),
        Group("fp16", ("fp16arith", "fhm"), "half-precision arithmetic", bits=16),
        Group("sve", ("sve", "sve2"), "scalable vectors"),
    ),
}
# The staircase removes one group after the other. On Arm bf16, fp16 and sve stand beside it, not on it.
_LADDERS = {"x86_64": ("amx", "avx512", "avx2", "avx", "sse4"), "aarch64": ("sme2", "sme", "i8mm", "dotprod")}
# What "acceleration off" means by default: SME2 is switched off together with SME, or SME kernels would run.
_DEFAULTS = {"x86_64": ("amx", "avx512", "avx2", "avx", "sse4"), "aarch64": ("sme", "i8mm", "dotprod", "fp16")}


def architecture(machine: str) -> str:
    """Return the architecture's name in these tables, from the operating system's name for it."""
    try:
        return _ARCHITECTURES[machine.lower()]
    except KeyError:
        raise FeatureError(f"CPU features of type {machine} are unknown", hint=_NO_MASKS) from None


_NO_MASKS = "switching works on x86-64 and 64-bit Arm; elsewhere, give two builds of the runner"


def group(arch: str, name: str) -> Group:
    """Return the feature group of that name."""
    for candidate in GROUPS[arch]:
        if candidate.name == name:
            return candidate
    other_arch = next((a for a, groups in GROUPS.items() if a != arch and name in {g.name for g in groups}), None)
    if other_arch:
        hint = f"groups of {arch}: {', '.join(g.name for g in GROUPS[arch])}"
        raise FeatureError(f"{name} is a feature of {other_arch}, this CPU is {arch}", hint=hint)
    raise FeatureError(f"unknown feature group {name!r}", hint=did_you_mean(name, (g.name for g in GROUPS[arch])))


def check_name(name: str) -> None:
    """Refuse a feature group that no architecture has, without asking a machine."""
    known = {candidate.name for groups in GROUPS.values() for candidate in groups}
    if name not in known:
        raise FeatureError(f"unknown feature group {name!r}", hint=did_you_mean(name, known))


def switchable(arch: str) -> frozenset[str]:
    """Return all fields that some group clears."""
    return frozenset(field for candidate in GROUPS[arch] for field in candidate.fields)


def present(arch: str, fields: frozenset[str]) -> list[Group]:
    """Return the groups that a CPU with these fields has, strongest first."""
    return [candidate for candidate in GROUPS[arch] if candidate.fields[0] in fields]


def strongest(arch: str, fields: frozenset[str], bits: Collection[int] = ()) -> Group | None:
    """Return the group to switch off when no other is named: the strongest of this CPU that a model's weights can use.

    ``fields`` are those that the CPU has, ``bits`` widths of the weights, empty where they are not known.
    """
    candidates = (group(arch, name) for name in _DEFAULTS[arch])
    usable = (candidate for candidate in candidates if not bits or candidate.bits is None or candidate.bits in bits)
    return next((candidate for candidate in usable if candidate.fields[0] in fields), None)


def default_ablation(arch: str, fields: frozenset[str], bits: Collection[int] = ()) -> Group:
    """Return the group of :func:`strongest`, for callers that need one; raise an error where there is none."""
    chosen = strongest(arch, fields, bits)
    if chosen is None and strongest(arch, fields):
        widths = ", ".join(map(str, sorted(bits)))
        problem = f"no feature that can be switched off here speeds up {widths}-bit weights"
        raise FeatureError(problem, hint="name one with --ablate to measure anyway")
    if chosen is None:
        raise FeatureError("this CPU has no switchable feature", hint=_NO_MASKS)
    return chosen


def ladder(arch: str, fields: frozenset[str]) -> list[list[str]]:
    """Return the staircase of this CPU: for every step down, the groups that are off on it and on the steps above."""
    names = [name for name in _LADDERS[arch] if group(arch, name).fields[0] in fields]
    return [names[: number + 1] for number in range(len(names))]


def stays_on(fields: Iterable[str]) -> FeatureError:
    """Return the error for fields that cannot be switched off, since libraries set them because they know the cores."""
    problem = (
        f"hwcap cannot switch off {', '.join(fields)} here: libraries recognise these cores without asking the system"
    )
    return FeatureError(problem, hint="choose another group of `opscope doctor --features`, or --ablate none")


def needed(fields: Iterable[str]) -> FeatureError:
    """Return the error for fields that cannot be switched off, since the runtime runs no model without them."""
    problem = f"{', '.join(fields)} cannot be switched off: the runtime runs no model without them"
    return FeatureError(problem, hint="choose another group of `opscope doctor --features`, or --ablate none")


def cleared_fields(
    arch: str, names: list[str], fields: frozenset[str], fixed: frozenset[str] = frozenset()
) -> list[str]:
    """Return the fields to clear for switching off these groups, as far as the CPU has them, in the struct's order."""
    to_clear: set[str] = set()
    for name in names:
        candidate = group(arch, name)
        if candidate.fields[0] not in fields:
            have = ", ".join(g.name for g in present(arch, fields)) or "none"
            raise FeatureError(f"this CPU does not have {name}", hint=f"it has: {have}")
        to_clear.update(candidate.fields)
    if to_clear & fixed:
        raise needed(sorted(to_clear & fixed)) if arch == "x86_64" else stays_on(sorted(to_clear & fixed))
    return sorted(to_clear & fields, key=_ORDER[arch].index)


WITHOUT_SWITCH = "everything else works: `opscope profile --ablate none` measures the model as is"
_MOST_NAMED = 4
_FLAG = 1
_ODD = 1


def known_layout(arch: str, size: int) -> FeatureLayout:
    """Return the layout of a struct of that size."""
    layouts = LAYOUTS[arch]
    if size not in layouts:
        known = ", ".join(map(str, sorted(layouts)))
        problem = f"this runtime's cpuinfo_isa has {size} bytes; layouts are known for {known} on {arch}"
        raise FeatureError(f"{problem}, so its fields cannot be located", hint=WITHOUT_SWITCH)
    return layouts[size]


def proved_layout(arch: str, content: Sequence[int], size: int | None, reading: CpuReading) -> FeatureLayout:
    """Return the layout of ``cpuinfo_isa``, proved by its fields.

    Every field that could be switched off must read as the processor says. Of the others one may differ, since
    nothing
    depends on it; two may not: on some machines nothing else shows that all fields stand one byte further (the test
    with the recorded machines says on which). Where the size is not stated (macOS) the layout is chosen by all
    known
    fields; a field that could then still stand in two places is left out.
    """
    expected = expected_fields(reading)
    switchable_fields = switchable(arch)
    if not switchable_fields <= expected.keys():
        problem = "cannot query the processor's features, so the layout of cpuinfo_isa cannot be checked"
        raise FeatureError(problem, hint=WITHOUT_SWITCH)
    if size is not None:
        layout = known_layout(arch, size)
        wrong = disagreements(layout, content, expected)
        if len(wrong) > _ODD or switchable_fields & wrong.keys():
            raise FeatureError(_refusal_text(arch, layout, wrong), hint=WITHOUT_SWITCH)
        return layout
    return _choose_layout(arch, content, expected)


def disagreements(
    layout: FeatureLayout, content: Sequence[int], expected: Mapping[str, frozenset[bool]]
) -> dict[str, tuple[int | None, bool]]:
    """Find the fields that contradict the processor's: value (None beyond the end), and whether they should be set.

    A field that the layout does not have is none of them.
    """
    differing = {}
    for field, possible in expected.items():
        at = layout.offsets.get(field)
        if at is None:
            continue
        value = content[at] if at < len(content) else None
        if value is None or value > _FLAG or bool(value) not in possible:
            differing[field] = (value, True in possible)
    return differing


def _choose_layout(arch: str, content: Sequence[int], expected: Mapping[str, frozenset[bool]]) -> FeatureLayout:
    """Return the layout that all known fields agree with; raise an error where there is none."""
    layouts = sorted(LAYOUTS[arch].values(), key=lambda layout: layout.size)
    wrong = [disagreements(layout, content, expected) for layout in layouts]
    agreeing = [layout for layout, fields in zip(layouts, wrong, strict=True) if not fields]
    if not agreeing:
        nearest = min(range(len(layouts)), key=lambda number: len(wrong[number]))
        raise FeatureError(_refusal_text(arch, layouts[nearest], wrong[nearest]), hint=WITHOUT_SWITCH)
    first, *further = agreeing
    certain = {f: at for f, at in first.offsets.items() if all(layout.offsets.get(f) == at for layout in further)}
    return first._replace(offsets=certain)


def _refusal_text(arch: str, layout: FeatureLayout, wrong: Mapping[str, tuple[int | None, bool]]) -> str:
    """Return the reason why a layout is not used, with the fields that differ."""
    switched = switchable(arch)
    ordered = sorted(wrong, key=lambda field: (field not in switched, field))
    texts = [f"{field} reads {wrong[field][0]}, the CPU says {int(wrong[field][1])}" for field in ordered]
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    fields = "; ".join(texts[:_MOST_NAMED])
    return (
        f"cpuinfo_isa does not have the known layout for {layout.size} bytes: {fields}{more}. Clearing by this layout "
        "would switch off other features"
    )
