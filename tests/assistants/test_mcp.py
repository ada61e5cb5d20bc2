"""What an AI assistant gets of ``opscope mcp``: the SDK's own client beside the real process, on real bundles."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest

pytest.importorskip("mcp")

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult

import kit_files
from opscope.assistants.server import TOOLS
from texts import NO_SUCH_PROGRAM
from waiting import HANG

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SCHEMAS = ROOT / "docs" / "reference" / "schemas"
PROGRAM = "programs/toy_cnn-fp32-5234ad148c4c/toy_cnn_xnnpack_fp32.pte"
BUNDLE = "bundles/with-ceilings"
READING = [name for name, tool in TOOLS.items() if not tool.runs]
RUNNING = [name for name, tool in TOOLS.items() if tool.runs]
MOST_CHARACTERS = 18_000
"""Of an answer as it is by default: some 5,000 tokens."""


def with_client(
    talk: Callable[[Client], Awaitable[Any]], *options: str | Path, directory: Path = DATA, log: Path | None = None
) -> Any:
    """What a client finds out, beside a server of its own."""
    arguments = ["-m", "opscope", "mcp", *map(str, options)]
    server = StdioServerParameters(command=sys.executable, args=arguments, cwd=directory, env=dict(os.environ))

    async def talked() -> Any:
        with (log or Path(os.devnull)).open("w") as errors:
            async with Client(stdio_client(server, errlog=errors)) as client:
                return await talk(client)

    return anyio.run(talked)


def call(name: str, *options: str | Path, directory: Path = DATA, **arguments: Any) -> CallToolResult:
    """The answer of one tool."""

    async def talk(client: Client) -> CallToolResult:
        return await client.call_tool(name, arguments)

    return with_client(talk, *options, directory=directory)


def calls(listed: list[tuple[str, dict[str, Any]]], *options: str | Path) -> list[CallToolResult]:
    """The answers of several calls to one server."""

    async def talk(client: Client) -> list[CallToolResult]:
        return [await client.call_tool(name, arguments) for name, arguments in listed]

    return with_client(talk, *options)


def test_what_runs_programs_is_listed_only_where_it_is_allowed() -> None:
    """Each tool with what it takes and answers, and whether it only reads."""

    async def talk(client: Client) -> Any:
        return await client.list_tools()

    reading, all_tools = with_client(talk).tools, with_client(talk, "--allow-run").tools
    assert [tool.name for tool in reading] == READING
    assert [tool.name for tool in all_tools] == [*READING, *RUNNING]
    assert sum(len(tool.model_dump_json(exclude_none=True)) for tool in all_tools) < 1_300 * len(all_tools)
    for tool in all_tools:
        assert tool.annotations.read_only_hint is (tool.name in READING)
        assert tool.description
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        assert tool.input_schema["additionalProperties"] is False


ANSWERS: list[tuple[str, dict[str, Any], str, str]] = [
    ("read_bundle", {"path": BUNDLE}, "", "ms with acceleration"),
    ("read_bundle", {"path": f"{BUNDLE}#baseline", "part": "analysis"}, "analysis", "ms per inference"),
    ("read_bundle", {"path": BUNDLE, "part": "findings"}, "", "findings"),
    ("read_bundle", {"path": BUNDLE, "part": "roofline"}, "", "under the measured ceilings"),
    ("analyze_trace", {"path": "toy_cnn.etdump", "warmup": 0}, "analysis", "per inference"),
    ("find_operators", {"path": BUNDLE, "category": "Convolution"}, "", "operators with"),
    ("compare", {"baseline": f"{BUNDLE}#baseline", "candidate": BUNDLE}, "comparison", "inconclusive"),
    ("check", {"candidate": BUNDLE, "against": f"{BUNDLE}#baseline"}, "check", "inconclusive"),
    ("preflight", {"program": PROGRAM}, "preflight", "forward: 22.4 MMAC on this CPU"),
]


def test_reading_tools_answer_with_the_documents_of_the_command_line() -> None:
    """Small, as structured content and as its text, and valid under the published schema."""
    answers = calls([(name, arguments) for name, arguments, _, _ in ANSWERS])
    for (name, _, schema, words), answer in zip(ANSWERS, answers, strict=True):
        assert not answer.is_error, answer
        (text,) = answer.content
        found = answer.structured_content
        assert json.loads(text.text) == found
        assert words in found["answer"], (name, found["answer"])
        assert len(text.text) < MOST_CHARACTERS, (name, len(text.text))
        if schema:
            published = json.loads((SCHEMAS / f"{schema}.schema.json").read_bytes())
            jsonschema.Draft202012Validator(published).validate(found["result"])


def test_bundles_are_listed_page_by_page() -> None:
    """By path; a page says how to get the next one, and damage is told of the bundle it is in."""
    first, second, below = calls(
        [
            ("list_bundles", {"limit": 1}),
            ("list_bundles", {"limit": 1, "offset": 1}),
            ("list_bundles", {"directory": "bundles/flat-rooms"}),
        ]
    )
    pages = [answer.structured_content for answer in (first, second, below)]
    assert [page["result"]["total"] for page in pages] == [2, 2, 1]
    names = [Path(one["path"]).name for page in pages for one in page["result"]["bundles"]]
    assert names == ["flat-rooms", "with-ceilings", "flat-rooms"]
    assert pages[0]["more"] == ["list_bundles with offset=1 goes on"]
    assert pages[1]["more"] == []


def test_a_damaged_bundle_is_told_of_and_hides_no_other(tmp_path: Path) -> None:
    """Its problem stands in its place."""
    shutil.copytree(DATA / BUNDLE, tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text("{")
    listed = call("list_bundles", directory=tmp_path).structured_content["result"]["bundles"]
    assert [(Path(one["path"]).name, one["problem"] is None) for one in listed] == [("bad", False), ("good", True)]


def test_operators_are_found_by_what_they_are() -> None:
    """The longest first; filters are joined, and where none fits the hint names what there is."""
    every, few, none = calls(
        [
            ("find_operators", {"path": BUNDLE, "limit": 200}),
            ("find_operators", {"path": BUNDLE, "backend": "xnnpack", "min_share": 0.05}),
            ("find_operators", {"path": BUNDLE, "kind": "rope"}),
        ]
    )
    found = every.structured_content["result"]
    shares = [one["share"] for one in found["operators"]]
    assert found["total"] == len(shares)
    assert shares == sorted(shares, reverse=True)
    assert found["share"] == pytest.approx(1 - found_outside(), abs=1e-6)
    wanted = [one for one in found["operators"] if one["backend"] == "XNNPACK" and one["share"] >= 0.05]
    assert few.structured_content["result"]["operators"] == wanted
    assert none.is_error
    assert "convolution" in none.structured_content["hint"]


def found_outside() -> float:
    """Share of what no operator of the bundle is: copies of inputs and outputs."""
    import opscope

    return sum(one.share for one in opscope.analyze(DATA / BUNDLE).outside)


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("analyze_trace", {"path": "/etc/passwd"}, "outside of the directories"),
    ("analyze_trace", {"path": "../../README.md"}, "outside of the directories"),
    ("analyze_trace", {"path": "~/.bashrc"}, "outside of the directories"),
    ("analyze_trace", {"path": "no\0path"}, "not a path"),
    ("analyze_trace", {"path": "x" * 4_000}, "not a path"),
    ("analyze_trace", {"path": "x" * 5_000}, "4096"),
    ("analyze_trace", {"path": ""}, ">= 1"),
    ("analyze_trace", {"path": 7}, "Expected `str`"),
    ("analyze_trace", {}, "missing required field `path`"),
    ("analyze_trace", {"path": "toy_cnn.etdump", "limit": 10**30}, "<= 200"),
    ("analyze_trace", {"path": "toy_cnn.etdump", "limit": -1}, ">= 1"),
    ("analyze_trace", {"path": "toy_cnn.etdump", "warmup": 10**9}, "no complete inference remains"),
    ("analyze_trace", {"path": "toy_cnn.etdump", "program": "/etc/passwd"}, "outside of the directories"),
    ("analyze_trace", {"path": "toy_cnn.etdump", "shell": "rm"}, "unknown field `shell`"),
    ("analyze_trace", {"path": "machines"}, "no traces"),
    ("read_bundle", {"path": "bundles/none"}, "not a bundle"),
    ("read_bundle", {"path": f"{BUNDLE}#fast"}, "is of all variants"),
    ("read_bundle", {"path": f"{BUNDLE}#fast", "part": "analysis"}, "fast"),
    ("read_bundle", {"path": BUNDLE, "part": "everything"}, "Invalid enum value"),
    ("list_bundles", {"directory": "/"}, "outside of the directories"),
    ("list_bundles", {"directory": "toy_cnn.etdump"}, "no such directory"),
    ("list_bundles", {"offset": 10**7 + 1}, "<= 10000000"),
    ("find_operators", {"path": BUNDLE, "min_share": float("1e300")}, "<= 1"),
    ("compare", {"baseline": BUNDLE, "candidate": "../.."}, "outside of the directories"),
    ("check", {"candidate": PROGRAM, "against": PROGRAM}, "a program, not a measurement"),
    ("check", {"candidate": BUNDLE, "against": BUNDLE, "budget": "/etc/passwd"}, "outside of the directories"),
    ("preflight", {"program": "toy_cnn.etdump"}, "is a trace"),
    ("preflight", {"program": "onnx/cnn.onnx"}, "runs the program"),
    ("count", {"program": PROGRAM}, "it runs programs"),
    ("profile", {"program": PROGRAM, "out": "new", "seconds": 1}, "it runs programs"),
    ("tune", {"program": PROGRAM, "out": "new"}, "it runs programs"),
    ("shell", {}, "no such tool"),
]


def test_hostile_arguments_are_refused_and_the_server_goes_on() -> None:
    """With the error of the command line, its hint and its exit code."""
    good = ("find_operators", {"path": BUNDLE})
    answers = calls([*((name, arguments) for name, arguments, _ in HOSTILE), good])
    for (name, arguments, words), answer in zip(HOSTILE, answers, strict=False):
        told = answer.structured_content
        assert answer.is_error, (name, arguments)
        assert words in told["error"], (name, arguments, told)
        assert 1 < told["exit_code"] < 70, (name, arguments, told)
    assert not answers[-1].is_error


def test_no_link_leads_out(tmp_path: Path) -> None:
    """Neither as the path nor inside of a bundle; where it leads inside, it is followed."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    shutil.copytree(DATA / BUNDLE, outside / "bundle")
    shutil.copytree(DATA / BUNDLE, inside / "bundle")
    (inside / "away").symlink_to(outside / "bundle")
    (inside / "near").symlink_to(inside / "bundle")
    (trace,) = sorted((inside / "bundle").glob("variants/baseline/round-00/trace.*"))
    moved = outside / trace.name
    trace.rename(moved)
    near = call("read_bundle", directory=inside, path="near", part="findings")
    trace.symlink_to(moved)
    away = call("read_bundle", directory=inside, path="away")
    linked = call("read_bundle", directory=inside, path="bundle")
    assert "outside of the directories" not in json.dumps(near.structured_content)
    assert "outside of the directories" in away.structured_content["error"]
    assert "a link leads out" in linked.structured_content["error"]


def test_a_manifest_leads_nowhere_else(tmp_path: Path) -> None:
    """A bundle whose manifest names files above it is refused."""
    bundle = tmp_path / "inside" / "bundle"
    shutil.copytree(DATA / BUNDLE, bundle)
    shutil.copytree(DATA / BUNDLE, tmp_path / "secret")
    manifest = bundle / "manifest.json"
    content = json.loads(manifest.read_bytes())
    for own in content["repetitions"]:
        own["directory"] = f"../../secret/{own['directory']}"
    content["model"]["program"] = "../../secret/model/none.pte"
    manifest.write_text(json.dumps(content))
    answer = call("read_bundle", directory=bundle.parent, path="bundle", part="analysis")
    assert "points outside the bundle" in answer.structured_content["error"]


def test_a_profile_ends_with_its_budget_and_is_finished_later(tmp_path: Path) -> None:
    """What was finished is reported; progress is told with rising seconds; resume goes on with the bundle."""
    shutil.copyfile(DATA / PROGRAM, tmp_path / "toy.pte")
    heard: list[tuple[float, str]] = []

    async def hear(progress: float, _total: float | None, message: str | None) -> None:
        heard.append((progress, message or ""))

    async def talk(client: Client) -> list[CallToolResult]:
        asked = {"program": "toy.pte", "runs": 5}
        warm = {**asked, "out": "warm", "seconds": 600, "rounds": 1}
        long = {**asked, "out": "long", "rounds": 10_000}
        first = await client.call_tool("profile", warm, progress_callback=hear)
        for seconds in (4, 16, 64, 256):  # enough for two processes, however busy this machine is
            there = (tmp_path / "long").exists()
            second = await client.call_tool("profile", {**long, "seconds": seconds, "resume": there})
            if not second.is_error:
                break
            assert "nothing was finished" in second.structured_content["error"]
        return [first, second]

    whole, cut = with_client(talk, "--allow-run", directory=tmp_path)
    assert not whole.is_error, whole.structured_content
    assert [progress for progress, _ in heard] == sorted(progress for progress, _ in heard)
    assert "4 of 4 processes" in [message for _, message in heard]
    assert not cut.is_error, cut.structured_content
    assert any("resume=true" in line for line in cut.structured_content["more"])
    for name, status in (("warm", "complete"), ("long", "incomplete")):
        assert json.loads((tmp_path / name / "manifest.json").read_bytes())["status"] == status
        assert (tmp_path / name / "report.html").exists()
    assert processes(tmp_path) == []
    again = call("profile", "--allow-run", directory=tmp_path, program="toy.pte", out="warm", seconds=60, resume=True)
    taken = call("profile", "--allow-run", directory=tmp_path, program="toy.pte", out="warm", seconds=60)
    outside = call("profile", "--allow-run", directory=tmp_path, program="toy.pte", out="../new", seconds=60)
    code = call("profile", "--allow-run", directory=tmp_path, program="os:getcwd", out="new", seconds=60)
    assert not again.is_error, again.structured_content
    assert taken.structured_content["exit_code"] == 8
    assert "outside of the directories" in outside.structured_content["error"]
    assert NO_SUCH_PROGRAM in code.structured_content["error"]


@pytest.mark.nightly
def test_settings_are_searched_and_no_directory_is_replaced(tmp_path: Path) -> None:
    """The answer is one sentence, beside all candidates; a second search does not touch the first."""
    shutil.copyfile(DATA / PROGRAM, tmp_path / "toy.pte")
    asked = {"program": "toy.pte", "out": "tuned", "minutes": 0.1}
    answer = call("tune", "--allow-run", directory=tmp_path, **asked)
    again = call("tune", "--allow-run", directory=tmp_path, **asked)
    refused = call("tune", "--allow-run", directory=tmp_path, **{**asked, "out": "../tuned"})
    assert not answer.is_error, answer.structured_content
    written = json.loads((tmp_path / "tuned" / "tune.json").read_bytes())
    assert answer.structured_content["result"]["winner"] == written["winner"]
    assert answer.structured_content["answer"].startswith(("keep the default", "no setting is named", "1.", "2.", "3."))
    assert again.structured_content["exit_code"] == 8
    assert "outside of the directories" in refused.structured_content["error"]
    assert processes(tmp_path) == []


def test_a_bundle_that_began_elsewhere_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its manifest names a runner, which would be executed."""
    shutil.copytree(DATA / BUNDLE, tmp_path / "bundle")
    shutil.copyfile(DATA / PROGRAM, tmp_path / "toy.pte")
    manifest = tmp_path / "bundle" / "manifest.json"
    content = json.loads(manifest.read_bytes())
    content["target"] = {"kind": "runner", "address": "/bin/true"}
    manifest.write_text(json.dumps(content))
    asked = {"program": "toy.pte", "out": "bundle", "seconds": 60, "resume": True}
    answer = call("profile", "--allow-run", directory=tmp_path, **asked)
    assert "it was begun on the target runner" in answer.structured_content["error"]


def test_a_run_of_the_kit_names_files_elsewhere(tmp_path: Path) -> None:
    """So it is refused, and the hint says what to name."""
    directory = tmp_path / "out_model" / "runs" / "mac"
    kit_files.write_experiment(directory, "mac_sme2_on", kit_files.CANDIDATE, nested=True)
    results = [kit_files.result("mac_sme2_on", 2.0)]
    kit_files.write_json(directory / "manifest.json", {"model": kit_files.MODEL, "results": results})
    kit_files.write_json(directory / "metrics.json", {"results": results})
    answer = call("read_bundle", directory=tmp_path, path="out_model/runs/mac", part="analysis")
    assert "an Arm kit run" in answer.structured_content["error"]


def processes(place: Path) -> list[str]:
    """Commands of running processes that name a file below a place."""
    listed = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(place) in line]


@pytest.mark.parametrize("how", ["cancel", "leave"])
def test_a_cancelled_profile_leaves_no_process(tmp_path: Path, how: str) -> None:
    """Whether the client takes its request back or is gone; what was finished is kept, and the server goes on."""
    shutil.copyfile(DATA / PROGRAM, tmp_path / "toy.pte")
    asked = {"program": "toy.pte", "out": "long", "seconds": 600, "rounds": 10_000, "runs": 5}
    seen: list[str] = []

    async def talk(client: Client) -> list[str]:
        with anyio.CancelScope() as scope:

            async def hear(_progress: float, _total: float | None, message: str | None) -> None:
                if (message or "").startswith("3 of"):
                    seen.extend(processes(tmp_path))
                    scope.cancel()

            await client.call_tool("profile", asked, progress_callback=hear)
        if how == "leave":
            return []
        listed = await client.call_tool("list_bundles", {})
        return [one["status"] for one in listed.structured_content["result"]["bundles"]]

    # A second call waits for its turn, which the first gives back once its processes are gone.
    async def both(client: Client) -> list[str]:
        found = await talk(client)
        if how == "cancel":
            await client.call_tool("count", {"program": "none.pte"})
        return found

    with_client(both, "--allow-run", directory=tmp_path)
    assert processes(tmp_path) == []
    manifest = json.loads((tmp_path / "long" / "manifest.json").read_bytes())
    assert manifest["status"] == "incomplete"
    assert len(manifest["repetitions"]) >= 3


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="counting needs Valgrind: apt install valgrind")
def test_work_is_counted(tmp_path: Path) -> None:
    """Those that execute most first."""
    shutil.copyfile(DATA / PROGRAM, tmp_path / "toy.pte")
    answer = call("count", "--allow-run", directory=tmp_path, program="toy.pte")
    assert not answer.is_error, answer.structured_content
    counts = [one["instructions"] for one in answer.structured_content["result"]["operators"]]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 0


def frames(*methods: tuple[str, dict[str, Any]]) -> bytes:
    """Requests as they stand on the wire, after a handshake."""
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    messages: list[dict[str, Any]] = [
        {"id": 0, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        *({"id": number, "method": method, "params": params} for number, (method, params) in enumerate(methods, 1)),
    ]
    return b"".join(json.dumps({"jsonrpc": "2.0", **one}).encode() + b"\n" for one in messages)


def started(*options: str) -> subprocess.Popen[bytes]:
    """A server without a client."""
    command = [sys.executable, "-m", "opscope", "mcp", *options]
    return subprocess.Popen(command, cwd=DATA, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_nothing_but_the_protocol_is_on_standard_output() -> None:
    """Every line is a message, also after garbage and a call that fails."""
    asked = frames(
        ("tools/list", {}),
        ("tools/call", {"name": "compare", "arguments": {"baseline": BUNDLE, "candidate": BUNDLE}}),
        ("tools/call", {"name": "analyze_trace", "arguments": {"path": "\ud800"}}),
    )
    with started() as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(b"garbage\n" + asked)
        server.stdin.flush()
        found: dict[Any, Any] = {}
        while not {0, 1, 2} <= set(found):
            line = server.stdout.readline()
            message = json.loads(line)
            assert message["jsonrpc"] == "2.0"
            found[message.get("id")] = message
        server.stdin.close()
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in server.stdout)
        assert server.wait(HANG) == 0
    assert len(found[1]["result"]["tools"]) == len(READING)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_that_waits(number: signal.Signals) -> None:
    """Although its client holds the input open."""
    with started() as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(frames())
        server.stdin.flush()
        server.stdout.readline()
        server.send_signal(number)
        assert server.wait(HANG) == 130
        assert b"error: terminated by a signal" in server.stderr.read()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Without the extra, the command that installs it; without the directory, its name."""
    (tmp_path / "mcp.py").write_text("raise ImportError")
    command = [sys.executable, "-m", "opscope", "mcp"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    bare = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert bare.returncode == 5, bare.stderr
    assert "opscope[mcp]" in bare.stderr or "[mcp]" in bare.stderr
    gone = subprocess.run([*command, "--root", "none"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert gone.returncode == 3
    assert "none: no such directory" in gone.stderr
