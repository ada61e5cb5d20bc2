"""The answers of the evidence ladder, rung by rung, each with its source or the reason why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from opscope.analyze.rungs import Answer, Rung, Step
from opscope.program.kernel_symbols import SME_FAMILY, IsaClass, parse_symbol
from opscope.program.sme_rules import RULES, TABLE, Verdict
from opscope.stats.effect import Verdict as Effect
from opscope.units import milliseconds, ratio_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opscope.analyze.compare import OperatorChange
    from opscope.analyze.findings import Place
    from opscope.analyze.kernel_sources import KernelSource
    from opscope.analyze.operators import Operator
    from opscope.analyze.rungs import Known
    from opscope.program.kernel_calls import OperatorCalls

Amount = TypeVar("Amount", int, "int | None")
_PACKED = ("PF", "PQS")
_DYNAMIC = ("QP",)
_X86 = "on x86-64 the library's kernels have no exported names"


def _unknown(rung: Rung, why: str) -> Step:
    return Step(rung, Answer.UNKNOWN, why)


def eligible(known: Known, place: Place) -> Step:
    """Whether an accelerated kernel could run an operator, by its types and shape and by what the CPU has."""
    rung = Rung.ELIGIBLE
    if not known.arm:
        return _unknown(rung, f"no rules are known that tell which operators {known.about} can run")
    found = known.sme.get(place)
    if found is None:
        return _unknown(rung, "the program does not tell what this operator computes")
    if found.verdict is not Verdict.ELIGIBLE:
        answer = Answer.NO if found.verdict is Verdict.NOT_ELIGIBLE else Answer.UNKNOWN
        return Step(rung, answer, found.reason, found.source)
    if known.features is None:
        return _unknown(rung, "by its types and shape it is; what the CPU has is not known")
    if "sme" not in known.features:
        return Step(rung, Answer.NO, "by its types and shape it is, but SME is absent or off here", "features")
    return Step(rung, Answer.YES, f"{found.types}: {found.reason}", f"{TABLE}: {found.source}")


def _names(known: Known, place: Place) -> list[str]:
    """Kernels of the SME family that can run an operator; empty where no rule names any."""
    found = known.sme.get(place)
    rules = [rule for rule in RULES if found and rule.form is found.form and rule.types_name == found.types]
    texts = [text for rule in rules if rule.kernels for text in rule.kernels]
    return [f"kai_run_matmul_clamp_{name}" for text in texts for name in text.split(", ")]


def in_binary(known: Known, place: Place) -> Step:
    """Whether the library has such a kernel, by its exported names."""
    rung = Rung.IN_BINARY
    if not known.arm:
        return _unknown(rung, _X86)
    if known.exported is None:
        return _unknown(rung, "nobody looked into the library: count kernels, or name it with --library")
    names = _names(known, place)
    there = [name for name in names if name in known.exported]
    if there:
        return Step(rung, Answer.YES, ", ".join(there), "exported symbols of the library")
    why = "no kernel is known for it" if not names else "none of its kernels is exported, which proves nothing"
    return _unknown(rung, why)


def selected(known: Known, row: Operator) -> Step:
    """Whether the library chose one, by the operator's name in the trace."""
    rung, types = Rung.SELECTED, _types(row.name)
    source = "operator name in the trace"
    if any(word.startswith(_PACKED) for word in types):
        return Step(rung, Answer.YES, f"{', '.join(types)}: packed types, which only the SME family has", source)
    if not known.arm:
        return _unknown(rung, "on x86-64 names are the same whichever instruction set is used")
    if not types:
        return _unknown(rung, "the name tells no number types")
    if any(word.startswith(_DYNAMIC) for word in types):
        return _unknown(
            rung, f"{', '.join(types)}: types quantised at run time have the same name with and without SME"
        )
    return Step(rung, Answer.NO, f"{', '.join(types)}: types that are not packed for SME", source)


def _types(name: str) -> list[str]:
    """Number types in the name of an event, the layout left out: ``Convolution (NHWC, PF32) IGEMM #1``."""
    inside = name.partition("(")[2].partition(")")[0]
    return [word.strip() for word in inside.split(",")[1:]]


def executed(known: Known, place: Place) -> Step:
    """Whether one was called, by counts or else by samples."""
    own = known.calls.get(place) if known.calls else None
    if own is not None and known.counted:
        return _counted(own, known.counted)
    if known.counted and not _sme(known.counted.amounts):
        detail = f"none of {len(known.counted.universe or ())} counted kernels of the SME family was called"
        return Step(Rung.EXECUTED, Answer.NO, detail, _calls_of(known.counted))
    if known.sampled:
        return _by_samples(known, place, known.sampled)
    return _unknown(Rung.EXECUTED, _why_not_executed(known))


def _why_not_executed(known: Known) -> str:
    if known.problem:
        return known.problem
    if not known.arm:
        return f"{_X86}; a profiler can tell functions and instructions"
    if known.registered:
        return "the log lists what was registered, which is not run"
    return "no calls were counted, and no recording was given"


def _counted(own: OperatorCalls, source: KernelSource) -> Step:
    sme = _sme(own.calls)
    runs = f"in {own.runs} run{'' if own.runs == 1 else 's'}"
    if sme:
        told = _told(sme)
        return Step(Rung.EXECUTED, Answer.YES, f"{told} {runs}", _calls_of(source), _strongest(sme))
    others = f", but {_told(own.calls)}" if own.calls else ""
    detail = f"no kernel of the SME family {runs}{others}"
    return Step(Rung.EXECUTED, Answer.NO, detail, _calls_of(source))


def _told(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count} time{'' if count == 1 else 's'}" for name, count in calls.items())


def _sme(calls: Mapping[str, Amount]) -> dict[str, Amount]:
    """Calls of kernels of the SME family that compute; those that only lay data out are left out."""
    found = {name: parse_symbol(name) for name in calls}
    return {n: calls[n] for n, symbol in found.items() if symbol and symbol.isa in SME_FAMILY and not symbol.packs}


def _strongest(names: Iterable[str]) -> IsaClass | None:
    found = {symbol.isa for name in names if (symbol := parse_symbol(name))}
    return next((isa for isa in IsaClass if isa in found), None)


def _calls_of(source: KernelSource) -> str:
    return f"calls counted, {source.path}"


def _by_samples(known: Known, place: Place, sampled: KernelSource) -> Step:
    """A profiler knows processes and threads, no operators: it speaks for one only where no other could be meant."""
    rung, names = Rung.EXECUTED, set(_names(known, place))
    seen = sorted(names & set(sampled.amounts))
    if not names or not known.arm:
        isa = _classes(sampled)
        return _unknown(
            rung, f"the recording names kernels of {isa or 'no known instruction set'}, not their operators"
        )
    if not seen:
        return _unknown(rung, "none of its kernels has a sample; it may have run between two samples")
    rivals = sum(1 for other in known.sme if names & set(_names(known, other)))
    if rivals == 1:
        told = f"samples in {', '.join(seen)}"
        return Step(rung, Answer.YES, told, f"recording {sampled.path}", _strongest(seen))
    return _unknown(rung, f"{', '.join(seen)} ran, in one of {rivals} operators of these types")


def _classes(source: KernelSource) -> str:
    found = {symbol.isa for name in source.amounts if (symbol := parse_symbol(name))}
    return ", ".join(isa.value for isa in IsaClass if isa in found and isa is not IsaClass.UNKNOWN)


def faster(known: Known, place: Place) -> Step:
    """Whether the operator is faster than on the baseline, by the verdict of the comparison."""
    rung = Rung.FASTER
    if known.emulated:
        return _unknown(rung, "an emulator ran it: its times mean nothing")
    if known.comparison is None:
        return _unknown(rung, "it is not compared with a baseline")
    rows = known.comparison.operators
    found = next((row for row in rows if (row.method, row.instruction, row.position) == place), None)
    if found is None or found.speedup is None:
        return _unknown(rung, "the baseline has no such operator")
    source = f"{known.comparison.baseline.label} against {known.comparison.candidate.label}"
    return Step(rung, _VERDICTS[found.verdict], _effect(found), source)


_VERDICTS = {
    Effect.FASTER: Answer.YES,
    Effect.SLOWER: Answer.NO,
    Effect.NO_DIFFERENCE: Answer.NO,
    Effect.UNDECIDABLE: Answer.UNKNOWN,
}


def _effect(change: OperatorChange) -> str:
    words = change.verdict.value.replace("_", " ")
    saved = change.ci95_saved_ns
    interval = f", 95 % interval {milliseconds(saved[0])} to {milliseconds(saved[1])} ms saved" if saved else ""
    return f"{words}: {ratio_text(change.speedup or 0.0)}{interval}"
