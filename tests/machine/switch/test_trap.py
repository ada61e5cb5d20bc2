"""The trap in real processes: what their libraries see, what is counted, and what is refused."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asking_library import asking_library, asking_program
from opscope.bundle.manifest import MaskProof, Mechanism
from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.machine.switch import switch
from opscope.machine.switch.sites import CPUID
from opscope.machine.switch.switch import RECORD, PreparedSwitch, obstacle, prepared, proof, read_report
from texts import NOBODY_ASKS

AVX2, SSE4_1 = 1 << 5, 1 << 19
"""In ebx of leaf 7, and in ecx of leaf 1."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the program and the library."""
    made = tmp_path_factory.mktemp("trap")
    asking_library(made)
    asking_program(made)
    return made


@pytest.fixture
def fields() -> list[str]:
    """What is switched off: what every CPU has that runs the tests."""
    return ["avx2", "sse4_1"]


def prepare(place: Path, directory: Path, clear: list[str], *others: Path) -> PreparedSwitch:
    """The switch for the library of the tests."""
    try:
        return prepared(Mechanism.TRAP, [place / "libasks.so", *others], clear, directory, place / "program")
    except MissingDependencyError as error:
        pytest.skip(f"needs a compiler: {error}")


def run(place: Path, switch: PreparedSwitch | None, *words: str) -> subprocess.CompletedProcess[str]:
    """The program with its words, behind the switch or without it."""
    variables = switch.variables if switch else {}
    return subprocess.run(
        [str(place / "program"), *words], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


def counted(cleared: list[str], masked: int) -> MaskProof:
    """The proof of a library that has two sites, and asked three times."""
    return MaskProof(
        cleared,
        backend_loaded_before=False,
        same_symbol=True,
        struct_size=None,
        mechanism=Mechanism.TRAP,
        sites=2,
        sites_executed=2,
        sites_outside=0,
        executions=3,
        masked=masked,
    )


def answers(done: subprocess.CompletedProcess[str]) -> dict[str, list[int]]:
    """What the library of a program saw."""
    assert done.returncode == 0, done
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: [int(word, 16) for word in line[1:]] for line in lines if line[0] in {"first", "7.0", "1"}}


def test_the_library_sees_fewer_features_from_its_constructor_on(
    place: Path, tmp_path: Path, fields: list[str]
) -> None:
    """Leaf 1 has no subleaf, so whatever stands in ecx it is answered without the feature."""
    switch = prepare(place, tmp_path, fields)
    words = ("load", str(place / "libasks.so"), "ask")
    before, after = answers(run(place, None, *words)), answers(run(place, switch, *words))
    assert before["first"][0] & AVX2
    assert after["first"][0] == before["first"][0] & ~AVX2
    assert after["7.0"][0] == before["7.0"][0] & ~AVX2
    assert after["7.0"][1:] == before["7.0"][1:]
    assert after["1"][0] & ~(1 << 27) == before["1"][0] & ~SSE4_1 & ~(1 << 27)
    assert proof(switch.record) == counted(fields, masked=3)
    _, (library,) = read_report(tmp_path / "switch.report")
    assert {row for row in library.rows if row[1]} == {(AVX2, 2), (SSE4_1, 1)}


def test_without_a_mask_it_sees_what_the_cpu_has(place: Path, tmp_path: Path) -> None:
    """The variant that has the mechanism and all features."""
    switch = prepare(place, tmp_path, [])
    words = ("load", str(place / "libasks.so"), "ask")
    with_trap, without = answers(run(place, switch, *words)), answers(run(place, None, *words))
    assert (with_trap["first"], with_trap["7.0"]) == (without["first"], without["7.0"])
    assert proof(switch.record) == counted([], masked=0)


def test_a_library_that_is_linked_is_switched_before_main(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """The loader maps it with the program."""
    switch = prepare(place, tmp_path, fields)
    preload = switch._replace(variables={**switch.variables, "LD_PRELOAD": str(place / "libasks.so")})
    seen = answers(run(place, preload, "load", str(place / "libasks.so"), "ask"))
    assert not seen["first"][0] & AVX2
    assert proof(switch.record).sites == 2


def test_memory_is_protected_as_it_was(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """No page stays writable and executable."""
    words = ("load", str(place / "libasks.so"), "maps")
    found = [
        {line.split()[1] for line in run(place, switch, *words).stdout.splitlines()}
        for switch in (None, prepare(place, tmp_path, fields))
    ]
    assert found[0] == found[1]
    assert not any("w" in flags and "x" in flags for flags in found[1])


def test_another_handler_gets_what_is_not_ours(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """One that was there before the library came."""
    switch = prepare(place, tmp_path, fields)
    done = run(place, switch, "handle", "load", str(place / "libasks.so"), "ask", "ud2")
    assert "others 1" in done.stdout
    assert proof(switch.record).executions == 3


def test_an_illegal_instruction_ends_a_program_without_a_handler(place: Path, tmp_path: Path) -> None:
    """As it would without us."""
    switch = prepare(place, tmp_path, [])
    assert run(place, switch, "load", str(place / "libasks.so"), "ask", "ud2").returncode == -4


def test_a_handler_that_took_our_place_is_a_refusal(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """The second library is not touched, since what it traps would not come to us."""
    second = shutil.copy(asking_library(tmp_path), tmp_path / "libasks2.so")
    switch = prepare(place, tmp_path, fields, Path(second))
    words = ("load", str(place / "libasks.so"), "handle", "load", str(second), "ask")
    seen = answers(run(place, switch, *words))
    assert seen["first"][0] & AVX2
    with pytest.raises(FeatureError, match="another SIGILL handler") as caught:
        proof(switch.record)
    assert caught.value.where == str(second)


def test_a_library_that_was_changed_meanwhile_is_not_touched(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """Its sites were found in another file."""
    library = asking_library(tmp_path)
    switch = prepared(Mechanism.TRAP, [library], fields, tmp_path, place / "program")
    library.write_bytes(library.read_bytes().replace(CPUID, b"\x0f\x31"))
    run(place, switch, "load", str(library))
    with pytest.raises(FeatureError, match="differs from the file"):
        proof(switch.record)


def test_a_second_process_of_the_run_is_a_refusal(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """Its answers would be counted with those of the first, which they say nothing about."""
    switch, library = prepare(place, tmp_path, fields), place / "libasks.so"
    run(place, switch, "load", str(library), "ask", "spawn", f"{place / 'program'} load {library}")
    with pytest.raises(FeatureError, match="a second process"):
        proof(switch.record)


def test_other_processes_of_the_run_are_left_alone(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """Those that do not load the library."""
    switch, library = prepare(place, tmp_path, fields), place / "libasks.so"
    assert run(place, switch, "spawn", "true", "load", str(library), "ask", "spawn", "true").returncode == 0
    assert proof(switch.record).masked == 3


def test_where_code_may_not_be_changed_nothing_is(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """As hardened systems forbid it; here by Linux's own switch for it, which a process sets for its children."""
    set_mdwe, refuse_exec_gain = 65, 1

    def harden() -> None:
        if ctypes.CDLL(None).prctl(set_mdwe, refuse_exec_gain, 0, 0, 0):
            os._exit(77)

    switch = prepare(place, tmp_path, fields)
    words = [str(place / "program"), "load", str(place / "libasks.so"), "ask"]
    done = subprocess.run(
        words,
        env={**os.environ, **switch.variables},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=harden,
    )
    if done.returncode == 77:
        pytest.skip("needs Linux 6.3: PR_SET_MDWE")
    assert answers(done)["first"][0] & AVX2
    with pytest.raises(FeatureError, match="does not allow changing its code"):
        proof(switch.record)


def test_a_loader_that_ignores_us_is_a_refusal(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """Then there is no report."""
    switch = prepare(place, tmp_path, fields)
    run(place, None, "load", str(place / "libasks.so"), "ask")
    with pytest.raises(FeatureError, match="the loader ignored LD_AUDIT"):
        proof(switch.record)


def test_a_field_that_the_library_did_not_ask_for_is_a_refusal(place: Path, tmp_path: Path) -> None:
    """What was not asked was not answered with less."""
    quiet = asking_library(tmp_path)
    switch = prepared(Mechanism.TRAP, [quiet], ["fma4"], tmp_path, place / "program")
    run(place, switch, "load", str(quiet), "ask")
    with pytest.raises(FeatureError, match="no answer had the features"):
        proof(switch.record)


@pytest.mark.parametrize("size", [0, 100, None])
def test_a_damaged_report_is_a_refusal(place: Path, tmp_path: Path, fields: list[str], size: int | None) -> None:
    """Cut off, or with another beginning."""
    switch, report = prepare(place, tmp_path, fields), tmp_path / "switch.report"
    run(place, switch, "load", str(place / "libasks.so"), "ask")
    whole = report.read_bytes()
    report.write_bytes(b"x" + whole[1:] if size is None else whole[:size])
    with pytest.raises(FeatureError, match="the switch report"):
        proof(switch.record)


def test_a_static_program_and_one_of_musl_are_refused(place: Path, tmp_path: Path) -> None:
    """The loader of glibc does the work."""
    assert obstacle(Mechanism.TRAP, place / "program") is None
    static = asking_program(tmp_path, "-static")
    assert "statically linked" in str(obstacle(Mechanism.TRAP, static))
    musl = tmp_path / "musl"
    loader, other = b"/lib64/ld-linux-x86-64.so.2\0", b"/lib/ld-musl-x86_64.so.1\0\0\0\0"
    musl.write_bytes((place / "program").read_bytes().replace(loader, other))
    assert "musl" in str(obstacle(Mechanism.TRAP, musl))


def test_a_program_that_changes_its_user_is_refused(place: Path, tmp_path: Path) -> None:
    """The loader takes no library from such a program's environment."""
    program = Path(shutil.copy(place / "program", tmp_path / "other"))
    program.chmod(0o4755)
    assert "LD_AUDIT" in str(obstacle(Mechanism.TRAP, program))


def test_the_mechanism_of_another_processor_is_refused() -> None:
    """Each belongs to one architecture."""
    here = Mechanism.HWCAP if os.uname().machine == "x86_64" else Mechanism.TRAP
    assert "needs Linux on" in str(obstacle(here))


TABLE = """
const unsigned char constants[4] = {0x0f, 0xa2, 0x0f, 0xa2};
__asm__(".text; .globl table; .type table,@object; table: .byte 0x0f,0xa2,0x0f,0xa2; .size table, 4");
__asm__(".globl pool; .type pool,@function; pool: mov 1f(%rip),%eax; ret; .size pool, .-pool");
__asm__("1: .byte 0x0f,0xa2,0x48,0xb8");
"""
"""Data that look like the instruction: constants, a table behind a function, and the literal pool of one."""


def test_data_that_look_like_the_instruction_keep_their_bytes(tmp_path: Path, fields: list[str]) -> None:
    """What is told is beside what was switched, and how much of that was executed."""
    library = asking_library(tmp_path, extra=TABLE)
    switch = prepared(Mechanism.TRAP, [library], fields, tmp_path)
    code = (
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1]); out = (ctypes.c_uint32 * 4)()\n"
        "print(*(bytes((ctypes.c_ubyte * 4).in_dll(library, name)).hex() for name in ('table', 'constants')))\n"
        "print(hex(library.pool() & 0xffffffff))\n"
    )
    words = [sys.executable, "-c", code, str(library)]
    done = subprocess.run(words, env={**os.environ, **switch.variables}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0fa20fa2", "0fa20fa2", "0xb848a20f"]
    found = proof(switch.record)
    assert (found.sites, found.sites_executed, found.executions, found.sites_outside) == (2, 1, 1, 3)


def test_a_library_that_asks_only_where_no_function_is_is_refused(tmp_path: Path) -> None:
    """With the number of places; nothing is patched by a guess."""
    from asking_library import compiled

    bare = '__asm__(".text; bare: push %rbx; cpuid; pop %rbx; ret");'
    library = compiled(f"int nothing(void) {{ return 1; }} {bare}", tmp_path / "libbare.so", "-shared", "-fPIC")
    with pytest.raises(
        FeatureError, match=r"only outside the functions that libbare.so names, at 1 place: none was switched"
    ):
        prepared(Mechanism.TRAP, [library], ["avx2"], tmp_path)


def test_libraries_without_a_question_are_refused(tmp_path: Path) -> None:
    """There is nothing to switch in them."""
    from asking_library import compiled

    library = compiled("int nothing(void) { return 1; }", tmp_path / "libnothing.so", "-shared", "-fPIC")
    with pytest.raises(FeatureError, match=NOBODY_ASKS):
        prepared(Mechanism.TRAP, [library], ["avx2"], tmp_path)


def test_a_path_with_a_line_break_is_refused(place: Path, tmp_path: Path) -> None:
    """It could not be told to the library that switches."""
    odd = tmp_path / "a\nb.so"
    shutil.copy(place / "libasks.so", odd)
    with pytest.raises(FeatureError, match="line break"):
        prepared(Mechanism.TRAP, [odd], ["avx2"], tmp_path)


def test_more_libraries_than_there_is_room_for_are_refused(place: Path, tmp_path: Path) -> None:
    """Before a process starts."""
    copies = [Path(shutil.copy(place / "libasks.so", tmp_path / f"{number}.so")) for number in range(65)]
    with pytest.raises(FeatureError, match="65 libraries with 130 places; at most 64"):
        prepared(Mechanism.TRAP, copies, ["avx2"], tmp_path)


def test_a_library_in_a_directory_with_spaces_is_switched(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """As directories of users are named."""
    (tmp_path / "my own files").mkdir()
    library = Path(shutil.copy(place / "libasks.so", tmp_path / "my own files" / "libasks.so"))
    switch = prepared(Mechanism.TRAP, [library], fields, tmp_path / "my own files", place / "program")
    run(place, switch, "load", str(library), "ask")
    assert proof(switch.record).masked == 3


def test_a_cache_that_the_loader_cannot_be_told_is_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader takes several libraries, with spaces or colons between them."""
    (tmp_path / "my cache").mkdir()
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "my cache"))
    with pytest.raises(FeatureError, match="a space or a colon") as caught:
        prepare(place, tmp_path, ["avx2"])
    assert "OPSCOPE_CACHE" in str(caught.value.hint)


def test_a_field_that_nothing_states_is_refused(place: Path, tmp_path: Path) -> None:
    """It could not be cleared."""
    with pytest.raises(FeatureError, match="does not support the field turbo"):
        prepared(Mechanism.TRAP, [place / "libasks.so"], ["turbo"], tmp_path)


def test_a_missing_compiler_is_told_in_one_line(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do about it."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingDependencyError, match=r"no-such-compiler .* the library that switches features off"):
        prepared(Mechanism.TRAP, [place / "libasks.so"], ["avx2"], tmp_path)


@pytest.mark.parametrize("compiler", ["g++", "gcc", "clang++", "clang"])
def test_the_library_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    """Whichever compiler the native runner is built with."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}: apt install clang g++")
    sources = Path(switch.__file__).with_name("c")
    for source in sources.glob("*.c"):
        flags = ["-x", "c", "-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", str(source)]
        if source.name == "hwcap_mask.c" or os.uname().machine == "x86_64":
            subprocess.run([compiler, *flags, "-o", str(tmp_path / source.stem), "-ldl", "-lpthread"], check=True)


def test_a_process_proves_itself_while_it_runs(place: Path, tmp_path: Path, fields: list[str]) -> None:
    """The counts are shared memory: there is no end to wait for."""
    switch = prepare(place, tmp_path, fields)
    code = (
        "import ctypes, sys; from pathlib import Path\n"
        "from opscope.machine.switch.switch import proof\n"
        "library = ctypes.CDLL(sys.argv[1]); out = (ctypes.c_uint32 * 4)(); library.asks(7, 0, out)\n"
        "print(proof(Path(sys.argv[2])).executions, out[1] >> 5 & 1)\n"
    )
    words = [sys.executable, "-c", code, str(place / "libasks.so"), str(tmp_path / RECORD)]
    done = subprocess.run(words, env={**os.environ, **switch.variables}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "0"]
