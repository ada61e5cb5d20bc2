"""Settings of a measurement: each one with its type, its limits, its usual value and its meaning.

From here come the options of the command line, the keys of configurations and their JSON Schema, what a manifest keeps
of the request, what ``--resume`` compares, and the command that reproduces a run.
"""

from __future__ import annotations

import types
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_DAY = 86_400.0
QUICK: dict[str, Any] = {
    "rounds": 1,
    "runs": 5,
    "warmup": 2,
    "untouched": False,
    "ceilings": False,
    "guess_inputs": True,
}
"""Settings of a first look if nothing else is requested: one process per variant, and nothing beside them."""
MORE_ROUNDS = 4
"""Factor by which rounds may grow if rounds are added and no limit is given."""
PACING = ("min_seconds", "until", "max_rounds", "cooldown_seconds", "max_temperature")
"""Settings that may differ when a run is finished."""
NOTHING_OFF = "none"
"""Word in place of feature groups to measure the model as it runs, with nothing switched off."""

Threads: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1024)]
ThreadCounts: TypeAlias = Threads | Annotated[tuple[Threads, ...], msgspec.Meta(min_length=1, max_length=64)]
Rounds: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Runs: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Warmup: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seed: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 2)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=_DAY)]
Limit: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=_DAY)]
Width: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]
Celsius: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=150)]
Nice: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=19)]
Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
MANY = msgspec.Meta(max_length=1000)
"""Limit on the entries of a list that a person writes."""
Many: TypeAlias = Annotated[tuple[Text, ...], MANY]
Cpu: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=4095)]
CpuNumbers: TypeAlias = Annotated[tuple[Cpu, ...], msgspec.Meta(max_length=4096)]
SessionOptions: TypeAlias = Annotated[dict[Text, Annotated[str, msgspec.Meta(max_length=4096)]], MANY]
Sizes: TypeAlias = Annotated[dict[Text, Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]], MANY]
DataType: TypeAlias = Literal["fp32", "fp16", "int8", "dynamic-int8", "8da4w"]
WEIGHT_BITS: Mapping[DataType, frozenset[int]] = {
    "fp32": frozenset({32}),
    "fp16": frozenset({16}),
    "int8": frozenset({8}),
    "dynamic-int8": frozenset({8}),
    "8da4w": frozenset({8}),
}
"""Widths of the weights of an export, as :meth:`opscope.runtimes.runtime.Runtime.weight_bits` returns them."""
SwitchName: TypeAlias = Literal["auto", "cpuinfo", "trap", "hwcap"]
"""Name of a mechanism of :class:`opscope.bundle.manifest.Mechanism`, or ``auto``."""
DelegateName: TypeAlias = Literal["xnnpack", "none"]
"""Name of the delegate that runs a LiteRT model; with none, LiteRT's own kernels run it."""
DelegateChoice: TypeAlias = Literal["xnnpack", "none", "both"]
"""Choice of what runs a LiteRT model: the XNNPACK delegate, LiteRT's own kernels, or both, to compare them."""


_ACCELERATION, _MODEL = "Acceleration", "Model and inputs"
_PROCESSES, _REPETITIONS = "Processes", "Repetitions"


class Option(NamedTuple):
    """Command line option of a setting."""

    meaning: str  # one sentence, also of the key in a configuration
    word: str = ""  # of the command line; empty: the name of the field with dashes
    metavar: str = ""  # what stands for its value in help texts; empty: its type
    usual: str = ""  # what happens without it, where no value says that
    each: bool = False  # whether it is given once for each entry; else entries stand in one word, between commas
    off: str = ""  # what giving it does, of a word that sets the value to false; empty for others
    # what two measurements with different values of it differ in, where they cannot be compared, nor a bundle be
    # finished with another value; empty where that does not matter, or the manifest tells it beside the request
    compared: str = ""
    group: str = ""  # of options that help texts show together
    common: bool = False  # whether the short help has it

    @property
    def text(self) -> str:
        """Meaning of the setting, with what happens without it."""
        return self._with_usual(self.meaning)

    @property
    def help(self) -> str:
        """Effect of giving the option, with what happens without it."""
        return self._with_usual(self.off or self.meaning)

    def _with_usual(self, text: str) -> str:
        return f"{text} [default: {self.usual}]" if self.usual else text

    def named(self, field: str) -> str:
        """Return the word of the command line for a field."""
        return self.word or f"--{field.replace('_', '-')}"


def option(meaning: str, **how: Any) -> msgspec.Meta:  # noqa: ANN401 - fields of Option
    """Return the annotation of a field: its command line option and its description in schemas."""
    settings_option = Option(meaning, **how)
    return msgspec.Meta(description=settings_option.text, extra={"option": settings_option})


class ExperimentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a measurement; each field has its own meaning."""

    ablate: Annotated[
        Many,
        option(
            "Feature groups to switch off in the baseline, or none.",
            metavar="FEATURES",
            usual="the strongest that the weights can use",
            group=_ACCELERATION,
            common=True,
        ),
    ] = ()
    ladder: Annotated[
        bool, option("Switch feature groups off one after another.", group=_ACCELERATION, common=True)
    ] = False
    switch: Annotated[
        SwitchName,
        option(
            "How features are switched off: cpuinfo, trap (x86-64 Linux), hwcap (64-bit Arm Linux), or auto: the "
            "first that can be verified.",
            metavar="MECHANISM",
            group=_ACCELERATION,
        ),
    ] = "auto"
    untouched: Annotated[
        bool | None,
        option(
            "With trap or hwcap: also run a variant without the mechanism.",
            usual="until a run shows that it changes nothing",
            group=_ACCELERATION,
        ),
    ] = None
    runtime: Annotated[
        Text | None,
        option(
            "Runtime that runs the model, where several can, such as openvino for an .onnx.",
            metavar="NAME",
            usual="the format's own",
            group=_MODEL,
        ),
    ] = None
    delegate: Annotated[
        DelegateChoice | None,
        option(
            "For a LiteRT model: xnnpack, none (LiteRT's own kernels), or both, to compare them.",
            metavar="NAME",
            usual="xnnpack",
            group=_MODEL,
        ),
    ] = None
    session_options: Annotated[
        SessionOptions,
        option(
            "Option of a runtime's session, such as graph_optimization_level=basic of ONNX Runtime. Repeatable.",
            word="--session-option",
            metavar="KEY=VALUE",
            each=True,
            group=_MODEL,
        ),
    ] = {}
    threads: Annotated[ThreadCounts, option("Thread pool sizes.", metavar="N,N...", group=_PROCESSES, common=True)] = 1
    oversubscribe: Annotated[bool, option("Allow more threads than the target has usable CPUs.", group=_PROCESSES)] = (
        False
    )
    affinity: Annotated[
        CpuNumbers, option("CPUs to pin to, by number.", metavar="N,N...", usual="all", group=_PROCESSES)
    ] = ()
    nice: Annotated[
        Nice,
        option(
            "Niceness of measured processes, as in nice(1), from 0 to 19.",
            compared="niceness of a process",
            group=_PROCESSES,
        ),
    ] = 0
    rounds: Annotated[
        Rounds, option("Repetitions of each variant, each in a new process.", group=_REPETITIONS, common=True)
    ] = 10
    runs: Annotated[Runs, option("Measured inferences per process.", group=_REPETITIONS, common=True)] = 50
    warmup: Annotated[Warmup, option("Warm-up inferences, discarded.", group=_REPETITIONS)] = 5
    dtype: Annotated[
        DataType,
        option("Number type to export in: fp32, fp16, int8, dynamic-int8 or 8da4w.", group=_MODEL, common=True),
    ] = "fp32"
    min_seconds: Annotated[
        Seconds,
        option("Add rounds until each variant was measured for this long.", metavar="SECONDS", group=_REPETITIONS),
    ] = 0.0
    until: Annotated[
        Width | None,
        option(
            "Add rounds until each speedup's 95 % interval is narrower than this share of it, such as 0.02.",
            metavar="WIDTH",
            group=_REPETITIONS,
        ),
    ] = None
    max_rounds: Annotated[
        Rounds | None,
        option(
            "Maximum rounds when min-seconds or until adds some.",
            usual=f"{MORE_ROUNDS} x rounds",
            group=_REPETITIONS,
        ),
    ] = None
    cooldown_seconds: Annotated[Seconds, option("Pause between processes.", metavar="SECONDS", group=_REPETITIONS)] = (
        0.0
    )
    max_temperature: Annotated[
        Celsius | None,
        option("Before each process, wait until the machine cools to this.", metavar="CELSIUS", group=_REPETITIONS),
    ] = None
    seed: Annotated[Seed, option("Seed for the order of runs and the inputs.", group=_REPETITIONS)] = 0
    timeout: Annotated[Limit, option("Time limit for one process.", metavar="SECONDS", group=_REPETITIONS)] = 600.0
    untraced: Annotated[
        bool,
        option(
            "Also run each variant without event tracing, for its latency.",
            word="--traced-only",
            off="Skip the untraced runs; latency then includes tracing overhead.",
            group=_REPETITIONS,
        ),
    ] = True
    methods: Annotated[
        Many,
        option(
            "Methods or phases to call in each run: prefill,decode:16 or prefill_128,decode_at_500.",
            metavar="NAME[:N],...",
            usual="all",
            group=_MODEL,
        ),
    ] = ()
    input: Annotated[
        Many,
        option(
            "An input: float32[1,3,224,224], int64[1,9]=random(0,99), 5, none or mask=ones. Repeatable.",
            metavar="[NAME=]SPEC",
            usual="random",
            each=True,
            group=_MODEL,
            common=True,
        ),
    ] = ()
    dim: Annotated[
        Sizes,
        option(
            "Value of a dynamic size by name, such as height=320. Repeatable.",
            metavar="NAME=SIZE",
            each=True,
            group=_MODEL,
        ),
    ] = {}
    guess_inputs: Annotated[
        bool, option("Use typical values for dynamic sizes and integer inputs, and report them.", group=_MODEL)
    ] = False
    inputs: Annotated[
        Text | None,
        option(
            "File with the input arrays, instead of input; an array named labels adds top-1 agreement.",
            metavar="FILE.npz",
            group=_MODEL,
        ),
    ] = None
    data: Annotated[
        Text | None,
        option("Weights outside the program.", metavar="FILE.ptd", usual="the matching file next to it", group=_MODEL),
    ] = None
    ceilings: Annotated[
        bool | None,
        option(
            "Measure the machine's ceilings again, or skip them.",
            usual="reuse stored ones that are still valid",
            group=_REPETITIONS,
        ),
    ] = None

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Sizes of the thread pool, each once, in their order."""
        return thread_counts(self.threads)

    @property
    def cpus(self) -> list[int]:
        """Numbers of the CPUs to stay on, each once, in order; empty for all."""
        return sorted(set(self.affinity))

    @property
    def most_rounds(self) -> int:
        """Largest number of rounds with those that may be added; ``rounds`` if none may."""
        if self.until is None and not self.min_seconds:
            return self.rounds
        return self.max_rounds or MORE_ROUNDS * self.rounds

    def limit_problem(self) -> tuple[str, str | None] | None:
        """Return what is wrong with ``max_rounds`` beside the other settings, and the next step; None if nothing is."""
        if self.max_rounds is None:
            return None
        if self.until is None and not self.min_seconds:
            return "nothing adds rounds", "set until or min_seconds, or leave it out"
        if self.max_rounds < self.rounds:
            return f"{self.max_rounds} is below rounds, which is {self.rounds}", None
        return None

    def own(self) -> dict[str, Any]:
        """Return the experiment's settings without fields of subclasses; a single thread count is a number."""
        counts = self.thread_counts
        threads = counts[0] if len(counts) == 1 else counts
        return {name: getattr(self, name) for name in ExperimentSettings.__struct_fields__} | {"threads": threads}


USUAL = ExperimentSettings()
"""Settings of a measurement if the user gives none."""


def thread_counts(threads: ThreadCounts) -> tuple[int, ...]:
    """Return the sizes of the thread pool, each once, in their order."""
    return tuple(dict.fromkeys([threads] if isinstance(threads, int) else threads))


def options_of(kind: type[msgspec.Struct]) -> dict[str, Option]:
    """Return the options of a type's fields by field name, in order, for the fields that have one."""
    options: dict[str, Option] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        metas = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        options.update((name, meta.extra["option"]) for meta in metas if isinstance(meta, msgspec.Meta) and meta.extra)
    return options


COMPARED = {name: setting for name, setting in options_of(ExperimentSettings).items() if setting.compared}
"""Settings, by name, that must agree in measurements that are compared or finished."""


def words_of(settings: ExperimentSettings, names: Iterable[str]) -> Iterator[str]:
    """Return the command line words that request some settings; none for settings with their usual values."""
    options = options_of(ExperimentSettings)
    for name in names:
        value, settings_option = getattr(settings, name), options[name]
        if value != getattr(USUAL, name):
            yield from _words_of(settings_option.named(name), settings_option, value)


def _words_of(word: str, settings_option: Option, value: Any) -> Iterator[str]:  # noqa: ANN401 - of any setting
    if isinstance(value, bool):
        yield word if value or settings_option.off else f"--no-{word.removeprefix('--')}"
    elif isinstance(value, dict):
        yield from (text for key, entry_value in value.items() for text in (word, f"{key}={entry_value}"))
    elif isinstance(value, tuple):
        entries = value if settings_option.each else [",".join(map(str, value))]
        yield from (text for entry in entries for text in (word, str(entry)))
    else:
        yield from (word, f"{value:.17g}" if isinstance(value, float) else str(value))


def choices_of(kind: type[msgspec.Struct]) -> dict[str, tuple[str, ...]]:
    """Return the words that each field may hold, for fields that hold one of a few."""
    hints = {name: _literal_words(hint) for name, hint in get_type_hints(kind).items()}
    return {name: words for name, words in hints.items() if words}


def _literal_words(hint: object) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return tuple(get_args(hint))
    if get_origin(hint) in {Union, types.UnionType}:
        return tuple(word for alternative in get_args(hint) for word in _literal_words(alternative))
    return ()
