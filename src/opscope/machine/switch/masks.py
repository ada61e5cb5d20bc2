"""Which bits of the processor's answers have to be cleared for a field to be off."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import Mechanism
from opscope.core.errors import FeatureError
from opscope.machine.cpu_reading import CPUID_BITS, hwcap_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Version in leaf 0x24; nothing asks for it where leaf 7 does not state AVX10.
_FOLLOWS = {"avx10_2"}
# Features that need one of these, and that cpuinfo has no field for. Leaf, subleaf, register and bit; source: Intel's
# Software Developer's Manual, volume 2, CPUID: AVX-IFMA, AMX-COMPLEX.
_ALONG = {"avx2": (7, 1, 0, 23), "amx_tile": (7, 1, 3, 8)}


class Mask(NamedTuple):
    """Bits that are cleared in an answer.

    Attributes:
        leaf: of CPUID; 0 for hardware capabilities.
        subleaf: likewise.
        register: 0 to 3 for eax, ebx, ecx, edx; 0 and 1 for AT_HWCAP and AT_HWCAP2.
        bits: in it.
    """

    leaf: int
    subleaf: int
    register: int
    bits: int


def masks(mechanism: Mechanism, fields: Iterable[str]) -> list[Mask]:
    """What has to be cleared for fields of ``cpuinfo_isa`` to be off, in order; nothing for none.

    Raises:
        FeatureError: the mechanism does not know a field.
    """
    found: dict[tuple[int, int, int], int] = defaultdict(int)
    for field in fields:
        places = _cpuid(field) if mechanism is Mechanism.TRAP else _hwcaps(field)
        if not places and field not in _FOLLOWS:
            raise FeatureError(f"the mechanism {mechanism.value} does not know the field {field}")
        for leaf, subleaf, register, bits in places:
            found[leaf, subleaf, register] |= bits
    return [Mask(*place, bits) for place, bits in sorted(found.items())]


def _cpuid(field: str) -> Sequence[tuple[int, int, int, int]]:
    known = CPUID_BITS.get(field)
    own = [(known.leaf, known.subleaf, known.register, 1 << known.bit)] if known else []
    along = _ALONG.get(field)
    return own + ([(*along[:3], 1 << along[3])] if along else [])


def _hwcaps(field: str) -> Sequence[tuple[int, int, int, int]]:
    return [(0, 0, register, bits) for register, bits in enumerate(hwcap_bits(field)) if bits]
