"""Programs that others exported: what they take, what they need, and what is said before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opscope.api import Settings, profile, validate
from opscope.bundle.bundle import Bundle
from opscope.core.errors import MismatchError, MissingDependencyError, NotFoundError, TraceFormatError, UsageError
from opscope.measurements.results import Profiled
from opscope.runtimes.executorch.installed import binding_libraries

pytestmark = [pytest.mark.runtime, pytest.mark.filterwarnings("ignore")]  # of torch and its exporter
PLAIN = {"rounds": 1, "runs": 2, "warmup": 1, "ceilings": False, "ablate": ("none",), "untraced": False}
TARGETS = ["local", "native"]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the programs of ``elsewhere``."""
    from elsewhere import written

    directory = tmp_path_factory.mktemp("elsewhere")
    for name in ("scaled", "masked", "multiplied", "looked", "rows", "quantised", "twice"):
        written(name, directory)
    return directory


def profiled(program: Path, out: Path, target: str = "local", **settings: object) -> Profiled:
    """A program measured in a single process."""
    return profile(program, settings=Settings(target=target, **PLAIN, **settings), out=out)


def outputs(out: Path) -> list[np.ndarray]:
    """What the process of a bundle computed."""
    bundle = Bundle.open(out)
    with np.load(out / bundle.manifest.repetitions[0].directory / "outputs.npz") as file:
        return [file[name] for name in file.files]


def test_both_runners_compute_the_same(programs: Path, tmp_path: Path) -> None:
    """Draw the inputs of a wish alike in both; costs are those of the sizes that were given.

    7 rows of at most 64 are 7 times 8 times 4 multiplications.
    """
    wish = ("float32[7,8]=random(-1,1)",)
    done = [profiled(programs / "rows.pte", tmp_path / target, target, input=wish) for target in TARGETS]
    found = [outputs(one.path)[0] for one in done]
    assert found[0].shape == (7, 4)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    (variant,) = done[0].content.variants
    linear = next(one for one in variant.analysis.operators if "Fully Connected" in one.name)
    assert linear.macs == 7 * 8 * 4
    assert Bundle.open(done[0].path).manifest.repetitions[0].measurement.inputs[0].shape == [7, 8]


@pytest.mark.parametrize("target", TARGETS)
def test_arrays_of_a_file(programs: Path, tmp_path: Path, target: str) -> None:
    """Arrays by position; their values are in the bundle, and a changed one is noticed."""
    np.savez(tmp_path / "rows.npz", np.eye(5, 8, dtype=np.float32))
    out = profiled(programs / "rows.pte", tmp_path / "out", target, inputs=str(tmp_path / "rows.npz")).path
    plan = Bundle.open(out).manifest.plan
    assert plan.inputs[0].source == "arr_0 of rows.npz"
    assert plan.values == "model/inputs.npz"
    assert outputs(out)[0].shape == (5, 4)
    assert validate(out).valid
    np.savez(out / "model" / "inputs.npz", arr_0=np.zeros((5, 8), np.float32))
    assert not validate(out).valid


@pytest.mark.parametrize(
    ("name", "wish", "said"),
    [
        ("scaled", ("default", "4"), "input 1 is 4, the program was exported for the int 3"),
        ("scaled", ("default", "true"), "input 1 is true, the program was exported for the int 3"),
        ("scaled", ("none",), r"input 0 is none, the program takes the tensor float32\[2,8\]"),
        ("scaled", ("default",) * 5, r"5 inputs are given, the program takes 4: float32\[2,8\], the int 3"),
        ("masked", ("default", "float32[2,8]"), r"input 1 is float32\[2,8\], the program was exported for none"),
        ("rows", ("float32[65,8]",), r"input 0 has the sizes \[65,8\], the program takes up to float32\[64,8\]"),
        ("rows", ("float16[4,8]",), "input 0 has the number type float16"),
        ("multiplied", (), "input 1 of forward is a variable number without an exported type"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_runs(
    programs: Path, tmp_path: Path, name: str, wish: tuple[str, ...], said: str
) -> None:
    """Which input, what it is, what the program takes; and no bundle is begun."""
    with pytest.raises(UsageError, match=said) as caught:
        profiled(programs / f"{name}.pte", tmp_path / "out", input=wish)
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_configuration_names_inputs(programs: Path, tmp_path: Path, run: Callable[..., tuple[int, str]]) -> None:
    """Name them as words; a bundle of other inputs is not gone on with."""
    file = tmp_path / "rows.toml"
    text = f"model = '{programs / 'rows.pte'}'\ntarget = 'local'\nablate = ['none']\n"
    text += "ceilings = false\nrounds = 1\nruns = 2\ninput = ['float32[{}]']\n"
    words = ("run", file, "--out", tmp_path / "out", "--quiet")
    file.write_text(text.format("6,8"))
    assert run(*words) == (0, "")
    assert outputs(tmp_path / "out" / "rows-local")[0].shape == (6, 4)
    file.write_text(text.format("5,8"))
    code, said = run(*words, "--resume")
    assert (code, "was measured with float32[6,8], not with float32[5,8]" in said) == (8, True)
    file.write_text(text.format("5;8"))
    assert "input[0]: 'float32[5;8]' is not an input" in run(*words)[1]


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["local", "native"])
def test_numbers_are_those_of_the_export(programs: Path, tmp_path: Path, target: str) -> None:
    """Take a number, a fraction and a truth value from the program, and leave out an optional tensor, as it did.

    Both runners load the library of quantised kernels for a program that calls them.
    """
    out = profiled(programs / "scaled.pte", tmp_path / "out", target).path
    plan = Bundle.open(out).manifest.plan
    assert [(one.dtype, one.value) for one in plan.inputs] == [
        ("float32", None),
        ("int", 3),
        ("float", 0.5),
        ("bool", True),
    ]
    assert plan.values is None
    assert outputs(out)[0].shape == (2, 4)
    wish = ("float32[2,8]=ones", "none")
    masked = profiled(programs / "masked.pte", tmp_path / "masked", target, input=wish).path
    assert (outputs(masked)[0] == 2).all()
    wish = ("float32[2,8]=range",)
    quantised = profiled(programs / "quantised.pte", tmp_path / "quantised", target, input=wish).path
    expected = np.clip(np.arange(16, dtype=np.float32).reshape(2, 8), None, 12.7)
    np.testing.assert_allclose(outputs(quantised)[0], expected, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_missing_operators_are_named_before_anything_runs(
    programs: Path, tmp_path: Path, target: str, run: Callable[..., tuple[int, str]]
) -> None:
    """Name the operator, where it is missing, and how to get it; or the backend of a delegate."""
    with pytest.raises(MissingDependencyError, match=rf"of the target {target} does not register elsewhere::twice.out"):
        profiled(programs / "twice.pte", tmp_path / "out", target)
    code, said = run("profile", programs / "twice.pte", "--target", target, "--out", tmp_path / "out")
    assert (code, "--target runner:PATH" in said) == (5, True)
    foreign = tmp_path / "foreign.pte"
    foreign.write_bytes((programs / "rows.pte").read_bytes().replace(b"XnnpackBackend", b"ForeignBackend"))
    with pytest.raises(MissingDependencyError, match="has no backend ForeignBackend") as caught:
        profiled(foreign, tmp_path / "out", target)
    assert "opscope export" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()


def test_every_registered_name_stands_in_a_library() -> None:
    """What the bindings say that they have is found in the files, so nothing that is there is called missing."""
    from executorch.extension.pybindings import portable_lib

    names = [*portable_lib._get_operator_names(), *portable_lib._get_registered_backend_names()]
    content = b"".join(path.read_bytes() for path in binding_libraries())
    assert [name for name in names if f"{name}\0".encode() not in content] == []


@pytest.fixture(scope="session", params=[False, True], ids=["portable", "delegates"])
def apart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program and the file of its weights: those of portable operators, then all."""
    from elsewhere import written_apart

    return written_apart("looked", tmp_path_factory.mktemp("apart"), delegates=request.param)


def test_weights_are_found_beside_the_program(apart: tuple[Path, Path], programs: Path, tmp_path: Path) -> None:
    """By their keys; the bundle has them with their hash, and the result is that of the whole program."""
    program, weights = apart
    tokens = ("int64[1,16]=random(0,1000)",)
    whole = outputs(profiled(programs / "looked.pte", tmp_path / "whole", input=tokens).path)[0]
    for target in TARGETS:
        out = profiled(program, tmp_path / target, target, input=tokens).path
        np.testing.assert_allclose(outputs(out)[0], whole, rtol=1e-5)
        model = Bundle.open(out).manifest.model
        assert (model.data, model.data_size) == (f"model/{weights.name}", weights.stat().st_size)
        assert validate(out).valid
    (out / "model" / weights.name).write_bytes(b"other")
    assert not validate(out).valid


def test_weights_that_are_missing_or_others(apart: tuple[Path, Path], programs: Path, tmp_path: Path) -> None:
    """Refuse none, another's, damaged ones and ones that nobody needs before anything runs, by their keys."""
    program, weights = apart
    alone = tmp_path / "alone" / program.name
    alone.parent.mkdir()
    alone.write_bytes(program.read_bytes())
    other, damaged = tmp_path / "other.ptd", alone.parent / "damaged.ptd"
    damaged.write_bytes(weights.read_bytes()[:100])
    other.write_bytes(weights.read_bytes().replace(b"embedding.weight", b"embedding.height"))
    for model, data, error, said in (
        (alone, None, NotFoundError, r"no \.ptd next to it has embedding\.weight"),
        (alone, other, MismatchError, r"it has no embedding\.weight, which looked\.pte looks for"),
        (alone, damaged, TraceFormatError, "truncated"),
        (programs / "rows.pte", weights, UsageError, "contains all its weights"),
    ):
        with pytest.raises(error, match=said) as caught:
            profiled(model, tmp_path / "out", **({"data": str(data)} if data else {}))
        assert data or "--data" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", TARGETS)
def test_a_bundled_program_brings_its_inputs(programs: Path, tmp_path: Path, target: str) -> None:
    """It runs as the program inside it does on the same inputs; words of the user go before them."""
    from elsewhere import written_bundled

    bundled = written_bundled(tmp_path)
    found = outputs(profiled(bundled, tmp_path / "bundled", target).path)[0]
    given = ("float32[2,8]=range",)
    plain = profiled(programs / "scaled.pte", tmp_path / "plain", target, input=given).path
    np.testing.assert_array_equal(found, outputs(plain)[0])
    sources = {one.source for one in Bundle.open(tmp_path / "bundled").manifest.plan.inputs}
    assert sources == {"bundled program's input"}
    asked = profiled(bundled, tmp_path / "asked", target, input=("float32[2,8]=zeros",)).path
    assert (outputs(asked)[0] != found).any()


def test_a_bundled_program_that_is_cut_off(tmp_path: Path) -> None:
    """Begin no bundle then."""
    from elsewhere import written_bundled

    bundled = written_bundled(tmp_path)
    bundled.write_bytes(bundled.read_bytes()[:300])
    with pytest.raises(TraceFormatError):
        profiled(bundled, tmp_path / "out")
    assert not (tmp_path / "out").exists()
