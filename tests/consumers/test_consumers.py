"""Files for other tools, each opened by the tool itself, which says what it read.

Where one is missing, its tests are skipped and say so. docs/reference/versions.md lists what was tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema
import pytest

from chromium import Chromium, needs_chromium
from fakes import FakeClock, FakeTarget
from opscope.analysis.analysis import Analysis
from opscope.api import Settings, content, convert, profile
from opscope.reports.content.content import ReportContent
from opscope.workflows.reports.conversion import ConvertOptions
from opscope.workflows.reports.serving import OneFile
from programs import write_tiny_program
from waiting import HANG

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(os.environ.get("OPSCOPE_CONSUMERS", ROOT / ".venv" / "consumers"))
BENCHMARK = PLACE / "github-action-benchmark" / "dist" / "src" / "extract.js"


def needs(command: str) -> pytest.MarkDecorator:
    """Skip without a command."""
    return pytest.mark.skipif(shutil.which(command) is None, reason=f"{command} is not installed")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of six rounds whose baseline takes twice as long."""
    directory = tmp_path_factory.mktemp("consumers")
    program = write_tiny_program(directory)
    settings = Settings(rounds=6, runs=3, warmup=1)
    profile(str(program), settings=settings, out=directory / "out", target=FakeTarget(noise=0.01), clock=FakeClock())
    return directory / "out"


@pytest.fixture(scope="module")
def shown(bundle: Path) -> ReportContent:
    """What its report shows, which every file has to agree with."""
    return content(bundle)


def analysis_of(shown: ReportContent, variant: str) -> Analysis:
    """Of one variant."""
    (found,) = (result.analysis for result in shown.variants if result.variant.name == variant)
    assert found
    return found


def written(path: Path, form: str, place: Path, options: ConvertOptions | None = None) -> Path:
    """A file of a format."""
    (file,) = convert(path, form, out=place / f"file.{form}", options=options)
    return file


def said_by(*words: str | Path, script: str = "") -> str:
    """What a tool prints."""
    done = subprocess.run(words, input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# github-action-benchmark: BenchmarkResults in its src/extract.ts, where zod coerces nothing that is right already.
BENCHMARK_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "unit": {"type": "string"},
            "value": {"type": "number"},
            "range": {"type": "string", "pattern": r"^± \d[\d.e+-]*$"},
            "extra": {"type": "string"},
        },
    },
}


def test_github_action_benchmark_gets_latencies_in_ms(bundle: Path, shown: ReportContent, tmp_path: Path) -> None:
    """By its schema: names are unique, since it compares by name; the range is the wider side of the interval."""
    entries = json.loads(written(bundle, "github-benchmark", tmp_path).read_bytes())
    jsonschema.validate(entries, BENCHMARK_SCHEMA)
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    (latency,) = (entry for entry in entries if entry["name"] == "tiny/baseline: latency")
    own = analysis_of(shown, "baseline")
    assert (latency["unit"], latency["value"]) == ("ms", pytest.approx(own.headline_ns / 1e6))
    assert own.latency.ci95_median_ns
    widest = max(abs(end - own.headline_ns) for end in own.latency.ci95_median_ns)
    assert latency["range"] == f"± {widest / 1e6:.6g}"
    assert "quality: " in latency["extra"]


@pytest.mark.nightly
@needs("node")
@pytest.mark.skipif(not BENCHMARK.exists(), reason="no registry has github-action-benchmark: put its build there")
def test_github_action_benchmark_itself_reads_them(bundle: Path, tmp_path: Path) -> None:
    """Its own extractResult, as its action calls it."""
    file = written(bundle, "github-benchmark", tmp_path)
    who = {"name": "a", "email": "a", "username": "a"}
    commit = {"id": "a", "message": "m", "timestamp": "t", "url": "u", "author": who, "committer": who}
    (tmp_path / "event.json").write_text(json.dumps({"head_commit": commit}))
    script = (
        f"require({json.dumps(str(BENCHMARK))}).extractResult({{tool: 'customSmallerIsBetter', outputFilePath: "
        f"{json.dumps(str(file))}}}).then((r) => console.log(JSON.stringify(r.benches)))"
    )
    environment = dict(os.environ) | {"GITHUB_EVENT_PATH": str(tmp_path / "event.json")}
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout) == json.loads(file.read_bytes())


def test_one_side_alone_is_collected_too(bundle: Path, tmp_path: Path) -> None:
    """One variant of a bundle; what is measured by process is of whole bundles."""
    figures = json.loads(written(Path(f"{bundle}#baseline"), "github-benchmark", tmp_path).read_bytes())
    assert [figure["name"].partition(":")[0] for figure in figures] == ["tiny/baseline"] * 2


class _Answers(BaseHTTPRequestHandler):
    content, kind = b"<!doctype html><title>page</title>", "text/html"

    def do_GET(self) -> None:
        """The content, whatever is asked."""
        self.send_response(200)
        self.send_header("Content-Type", self.kind)
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of a server on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetched(browser: Chromium, link: str) -> str:
    """What a script of the page that is shown reads at an address; else the kind of error."""
    return str(browser.value(f"fetch({json.dumps(link)}).then((r) => r.text()).catch((e) => e.name)"))


@pytest.mark.nightly
@needs_chromium
def test_a_page_reads_the_trace_once_and_other_pages_never(tmp_path: Path) -> None:
    """A real browser, a page of another origin: it gets the file; a page of a third origin gets nothing."""
    trace = tmp_path / "a trace.json"
    trace.write_text('{"traceEvents": []}')
    with answering(_Answers) as port, contextlib.closing(Chromium()) as browser:
        online = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        with OneFile(trace, f"http://localhost:{port}", 0) as server:
            assert server.link == f"http://localhost:{port}/#!/?url=http://{server.host}/a%20trace.json"
            ended: list[bool] = []
            waiting = threading.Thread(target=lambda: ended.append(server.wait(HANG)))
            waiting.start()
            link = server.link.partition("url=")[2]
            for origin, expected in ((f"127.0.0.1:{port}", "TypeError"), (f"localhost:{port}", trace.read_text())):
                browser.call("Network.emulateNetworkConditions", **online)
                browser.call("Page.navigate", url=f"http://{origin}/")
                browser.value("new Promise((done) => setTimeout(done, 100))")
                assert browser.value("location.host") == origin
                browser.call("Network.emulateNetworkConditions", **online)
                assert fetched(browser, link) == expected
            waiting.join()
            assert ended == [True]
        assert fetched(browser, link) == "TypeError"  # served once: nobody listens any more


def test_a_file_is_served_to_its_page_by_its_name_alone(tmp_path: Path) -> None:
    """Another site, another name of this machine, another path: refused, and the file is still to be read."""
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    with OneFile(trace, "https://ui.perfetto.dev/path", 0) as server:
        assert server.site == "https://ui.perfetto.dev"
        cases = (
            ({"Origin": "https://other.example"}, "/trace.json", 403),
            ({}, "/trace.json", 403),
            ({"Origin": server.site, "Host": f"evil.example:{server.server_address[1]}"}, "/trace.json", 403),
            ({"Origin": server.site}, "/../etc/passwd", 404),
            ({"Origin": server.site}, "/trace.json", 200),
        )
        for headers, path, status in cases:
            assert not server.served
            assert answered(server, path, headers) == status
        assert server.served
    with OneFile(trace, "https://ui.perfetto.dev", 0) as server:
        ticks = iter([0.0, 0.0, 2.0])
        assert not server.wait(1.0, lambda: next(ticks))


def answered(server: OneFile, path: str, headers: dict[str, str]) -> int:
    """The status of one request."""
    from http.client import HTTPConnection

    found: list[int] = []

    def ask() -> None:
        connection = HTTPConnection(*server.server_address[:2])
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        found.append(connection.getresponse().status)
        connection.close()

    thread = threading.Thread(target=ask)
    thread.start()
    while not found:
        server.handle_request()
    thread.join()
    return found[0]
