"""``opscope profile``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opscope.cli.models import ModelsOption  # noqa: TC001 - typer reads the annotations at run time
from opscope.cli.output import (
    JsonOption,
    KeepGoingOption,
    LockOption,
    OversubscribeOption,
    PowerOption,
    QuietOption,
    RemoteDeviceOption,
    notice,
    say,
    show,
    split_words,
    write_json,
)
from opscope.core.printable import shell_command
from opscope.experiment import defaults
from opscope.hosts.target_kinds import AUTO, KINDS, forms

if TYPE_CHECKING:
    from opscope.api import Profiled, Settings


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="A model that can be exported (see `opscope models`), or the path of a .pte, .tflite or .onnx."
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Where to run: {forms(KINDS)}.",
        ),
    ] = AUTO.name,
    remote_device: RemoteDeviceOption = None,
    power: PowerOption = None,
    ablate: Annotated[
        str | None,
        typer.Option(
            metavar="FEATURES",
            help="Feature groups to switch off in the baseline; none: a plain profile. [default: the strongest]",
        ),
    ] = None,
    ladder: Annotated[
        bool, typer.Option("--ladder", help="Switch this CPU's feature groups off one after the other.")
    ] = False,
    switch: Annotated[
        str,
        typer.Option(
            metavar="MECHANISM",
            help="How features are switched off: cpuinfo, trap (x86-64 Linux), hwcap (64-bit Arm Linux), "
            "or auto: the first that can be proved.",
        ),
    ] = defaults.SWITCH,
    untouched: Annotated[
        bool | None,
        typer.Option(
            "--untouched/--no-untouched",
            help="With trap or hwcap: run a variant without the mechanism, too. "
            "[default: until a run has shown that it changes nothing]",
        ),
    ] = None,
    delegate: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of a LiteRT model: xnnpack, none (LiteRT's own kernels), or both, for a comparison. "
            "[default: xnnpack]",
        ),
    ] = None,
    session_options: Annotated[
        list[str] | None,
        typer.Option(
            "--session-option",
            metavar="KEY=VALUE",
            help="Of ONNX Runtime, such as graph_optimization_level=basic or mlas.disable_kleidiai=1; once for each.",
        ),
    ] = None,
    threads: Annotated[str, typer.Option(metavar="N,N...", help="Sizes of the thread pool.")] = str(defaults.THREADS),
    oversubscribe: OversubscribeOption = False,
    rounds: Annotated[int, typer.Option(help="Repetitions of every variant, each in a new process.")] = defaults.ROUNDS,
    runs: Annotated[int, typer.Option(help="Measured inferences of each process.")] = defaults.RUNS,
    warmup: Annotated[int, typer.Option(help="Warm-up inferences, discarded.")] = defaults.WARMUP,
    dtype: Annotated[
        str, typer.Option(help="Number type to export in: fp32, fp16, int8, dynamic-int8 or 8da4w.")
    ] = defaults.DTYPE,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the bundle. [default: opscope-out/MODEL-TIME]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the bundle in --out.")] = False,
    min_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="Add rounds until every variant has been measured for this long.")
    ] = defaults.MIN_SECONDS,
    until: Annotated[
        float | None,
        typer.Option(
            metavar="WIDTH",
            help="Add rounds until the 95 % interval of every speedup is narrower than this share of it, such as 0.02.",
        ),
    ] = defaults.UNTIL,
    max_rounds: Annotated[
        int | None,
        typer.Option(help=f"Upper limit of rounds for these two options. [default: {defaults.MORE_ROUNDS} x --rounds]"),
    ] = None,
    cooldown_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="Pause between processes.")
    ] = defaults.COOLDOWN_SECONDS,
    max_temperature: Annotated[
        float | None,
        typer.Option(metavar="CELSIUS", help="Before each process, wait until the machine has cooled to this."),
    ] = defaults.MAX_TEMPERATURE,
    seed: Annotated[int, typer.Option(help="Seed for the order of runs and the inputs.")] = defaults.SEED,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time limit for one process.")
    ] = defaults.TIMEOUT_SECONDS,
    traced_only: Annotated[
        bool, typer.Option("--traced-only", help="Skip the untraced runs; latency then includes tracing overhead.")
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:N],...", help="Methods to call in every run, for example prefill,decode:16. [default: all]"
        ),
    ] = None,
    input_specs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="SPEC",
            help="An input, such as float32[1,3,224,224], int64[1,16]=random(0,1000), 5, true or none; once for each. "
            "[default: random, as the program declares]",
        ),
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            metavar="FILE.npz",
            help="File with the input arrays instead; with an array labels, labelled inputs for top-1 agreement.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.ptd",
            help="Weights outside of the program. [default: the matching file beside it]",
        ),
    ] = None,
    models: ModelsOption = None,
    ceilings: Annotated[
        bool | None,
        typer.Option(
            "--ceilings/--no-ceilings",
            help="Measure the machine's ceilings again, or skip them. [default: reuse stored ones that still hold]",
        ),
    ] = None,
    lock: LockOption = "wait",
    keep_going: KeepGoingOption = False,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Profile a model with acceleration on and off.

    Example: opscope profile mobilenet_v3_small --ablate avx512 --rounds 10

    Exports the model if needed, runs every variant in fresh processes in interleaved rounds, and writes a bundle with
    report.html, report.md, analysis.json and comparison.json.
    """
    from opscope.api import Settings, default_directory
    from opscope.core.errors import UsageError
    from opscope.machine.clock import SystemClock
    from opscope.workflows.measure.phones import phone_name

    if resume and out is None:
        raise UsageError("which bundle to finish?", where="--resume", hint="name its directory with --out DIR")
    settings = Settings(
        target=phone_name(None if target == AUTO.name else target, remote_device, power) or target,
        ablate=split_words(ablate),
        ladder=ladder,
        delegate=delegate,  # type: ignore[arg-type]  # checked with the other settings
        session_options=_pairs(session_options or []),
        switch=switch,  # type: ignore[arg-type]  # checked with the other settings
        untouched=untouched,
        threads=_numbers(threads),
        oversubscribe=oversubscribe,
        rounds=rounds,
        runs=runs,
        warmup=warmup,
        dtype=dtype,
        seed=seed,
        timeout_seconds=timeout,
        min_seconds=min_seconds,
        until=until,
        max_rounds=max_rounds,
        cooldown_seconds=cooldown_seconds,
        max_temperature=max_temperature,
        untraced=not traced_only,
        ceilings=ceilings,
        methods=split_words(methods),
        models=str(models) if models else None,
        input_specs=tuple(input_specs or ()),
        input_file=str(input_file) if input_file else None,
        data=str(data) if data else None,
        lock=lock,
        keep_going=keep_going,
    )
    place = out or default_directory(model, SystemClock().now())
    done = _profile(model, settings, place, resume=resume, quiet=quiet, named=_named(context))
    write_json(done.content, json)
    if not quiet and json != "-":
        _tell(done)
    _check_complete(done)


def _named(context: typer.Context) -> set[str]:
    """Options that were given, each by its long name; what names a device names the target."""
    sources = {one: context.get_parameter_source(one.name or "") for one in context.command.params}
    names = {max(one.opts, key=len) for one, source in sources.items() if source and source.name == "COMMANDLINE"}
    return names | {"--target"} if names & {"--remote-device", "--power"} else names


def _profile(model: str, settings: Settings, out: Path, *, resume: bool, quiet: bool, named: set[str]) -> Profiled:
    from opscope.api import profile
    from opscope.cli.progress import run_progress
    from opscope.core.errors import InterruptedRunError

    try:
        with run_progress(shown=not quiet) as progress:
            return profile(
                model, settings=settings, out=out, resume=resume, progress=progress, named=named, notify=notice
            )
    except (KeyboardInterrupt, InterruptedRunError):
        raise InterruptedRunError(
            "interrupted; what was finished is kept", where=out, hint=_resume_hint(model, out)
        ) from None


def _resume_hint(model: str, out: Path) -> str:

    if not (out / "manifest.json").exists():
        return "nothing was measured yet"
    return f"finish it with: {shell_command(['opscope', 'profile', model, '--out', str(out), '--resume'])}"


def _tell(done: Profiled) -> None:
    from opscope.reports.terminal import summary
    from opscope.workflows.measure.environment_checks import temporary_cache

    show(summary(done.content))
    for note in filter(None, [*done.notes, temporary_cache()]):
        say(f"note:  {note}", err=True)
    say()
    say(f"report: {done.path / 'report.html'}")


def _check_complete(done: Profiled) -> None:
    """Say by the exit code when repetitions are missing from the results.

    Raises:
        IncompleteError: some failed.
    """
    from opscope.core.errors import IncompleteError
    from opscope.reports.content.content import missing

    lines = missing(done.content)
    if lines:
        hint = f"the results leave them out; try them again with --out {done.path} --resume"
        raise IncompleteError(f"{len(lines)} missing: {lines[0]}", where=done.path, hint=hint)


def _pairs(words: list[str]) -> dict[str, str]:
    """Options as KEY=VALUE."""
    from opscope.core.errors import UsageError

    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            hint = "for example graph_optimization_level=basic"
            raise UsageError(f"{word!r} is not KEY=VALUE", where="--session-option", hint=hint)
        found[key.strip()] = value.strip()
    return found


def _numbers(text: str) -> tuple[int, ...]:
    from opscope.core.errors import UsageError

    words = split_words(text)
    if not words or not all(word.isdecimal() for word in words):
        raise UsageError(f"{text!r} is not a list of numbers", where="--threads", hint="for example --threads 1,2")
    return tuple(int(word) for word in words)
