"""Files for other tools, each opened by the tool itself, which says what it read.

`make consumers` installs those that package registries have; Debian has Prometheus and Go. Where one is missing, its
tests are skipped and say so. docs/reference/versions.md lists what was tried.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from chromium import COMMAND, Chromium
from fakes import FakeClock, FakeTarget
from opscope.analysis.analysis import Analysis
from opscope.api import Settings, add_to_store, content, convert, profile, store_metrics, track
from opscope.core.errors import MissingDependencyError, NotFoundError, UsageError
from opscope.fleet.store.rows import BundleLabels
from opscope.reports.content.content import ReportContent
from opscope.workflows.reports.conversion import ConvertOptions
from opscope.workflows.reports.serving import OneFile
from programs import write_tiny_program

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(os.environ.get("OPSCOPE_CONSUMERS", ROOT / ".consumers"))
PYTHON = PLACE / "bin" / "python"
SARIF = PLACE / "node_modules" / "@microsoft" / "sarif-multitool-linux" / "Sarif.Multitool"
BENCHMARK = PLACE / "github-action-benchmark" / "dist" / "src" / "extract.js"
DEMO = ROOT / "demo" / "mobilenet_v3_small_xnnpack_fp32.pte"
needs_python = pytest.mark.skipif(not PYTHON.exists(), reason="make consumers installs MLflow and others")


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
# Bencher: AdapterResults in its lib/bencher_adapter, JsonNewMetric in its lib/bencher_json.
BENCHER_SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {
        "type": "object",
        "required": ["latency"],
        "propertyNames": {"pattern": "^[a-z0-9-]{1,64}$"},
        "additionalProperties": {
            "type": "object",
            "required": ["value"],
            "additionalProperties": False,
            "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
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
    own = analysis_of(shown, "baseline").latency
    assert (latency["unit"], latency["value"]) == ("ms", pytest.approx(own.median_ns / 1e6))
    assert own.ci95_median_ns
    widest = max(abs(end - own.median_ns) for end in own.ci95_median_ns)
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


def test_bencher_gets_latencies_in_ns(bundle: Path, shown: ReportContent, tmp_path: Path) -> None:
    """By its schema: the built-in measure `latency` is in nanoseconds, bounds are those of the median."""
    found = json.loads(written(bundle, "bencher", tmp_path).read_bytes())
    jsonschema.validate(found, BENCHER_SCHEMA)
    own = analysis_of(shown, "accelerated").latency
    assert own.ci95_median_ns
    low, high = own.ci95_median_ns
    expected = {"value": own.median_ns, "lower_value": low, "upper_value": high}
    assert found["tiny/accelerated"]["latency"] == pytest.approx(expected)


def test_one_side_alone_is_collected_too(bundle: Path, tmp_path: Path) -> None:
    """One variant of a bundle; what is measured by process is of whole bundles."""
    assert list(json.loads(written(Path(f"{bundle}#baseline"), "bencher", tmp_path).read_bytes())) == ["tiny/baseline"]


@pytest.mark.nightly
@needs_python
def test_mlflow_reads_runs_back(bundle: Path, shown: ReportContent, tmp_path: Path) -> None:
    """Logged by the command into a database with MLflow's own client, and read by it."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    (libraries,) = PLACE.glob("lib/python*/site-packages")
    environment = dict(os.environ) | {"PYTHONPATH": str(libraries), "MLFLOW_EXPERIMENT_NAME": "nightly"}
    words = [sys.executable, "-m", "opscope", "convert", str(bundle), "--to", "mlflow", "--out", uri]
    words += ["--commit", "c0ffee"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    script = f"""
import json
from mlflow import MlflowClient
client = MlflowClient({uri!r})
runs = [client.get_run(name) for name in {done.stdout.split()!r}]
experiment = client.get_experiment_by_name("nightly").experiment_id
assert all(run.info.experiment_id == experiment and run.info.status == "FINISHED" for run in runs)
print(json.dumps([
    [run.info.run_name, run.data.params, run.data.metrics, run.data.tags,
     [one.path for one in client.list_artifacts(run.info.run_id)]] for run in runs
]))
"""
    (fast, slow) = json.loads(said_by(PYTHON, "-", script=script))
    assert [fast[0], slow[0]] == ["tiny/accelerated", "tiny/baseline"]
    assert fast[1]["variant"] == "accelerated"
    assert fast[2]["latency_ms"] == pytest.approx(analysis_of(shown, "accelerated").latency.median_ns / 1e6)
    assert shown.primary
    assert fast[2]["speedup"] == pytest.approx(shown.primary.end_to_end.speedup)
    assert "speedup" not in slow[2]
    assert fast[3]["mlflow.source.git.commit"] == "c0ffee"
    assert sorted(fast[4]) == ["analysis.json", "report.html"]


def test_mlflow_is_no_dependency(bundle: Path) -> None:
    """Without it, the error says what to install."""
    with pytest.raises(MissingDependencyError) as caught:
        track(bundle)
    assert caught.value.hint == "pip install mlflow"


@pytest.mark.nightly
@needs_python
def test_a_model_card_has_its_results(bundle: Path, shown: ReportContent, tmp_path: Path) -> None:
    """Read by the Hub's own library, which makes an object of each figure."""
    file = written(bundle, "model-card", tmp_path)
    script = f"""
import json
from huggingface_hub import ModelCard
card = ModelCard.load({str(file)!r})
found = card.data.eval_results
print(json.dumps([card.data.model_name, card.text, [[one.metric_name, one.metric_value] for one in found]]))
"""
    name, text, figures = json.loads(said_by(PYTHON, "-", script=script))
    assert name == "tiny"
    own = analysis_of(shown, "accelerated").latency
    assert ["latency (ms), accelerated", pytest.approx(own.median_ns / 1e6)] in figures
    assert "| variant | latency | 90th percentile of latency |" in text


@pytest.mark.parametrize("name", ["plain", "no: 1", "yes", "#", "- a", "ü\u2028'\"\\"])
def test_a_model_card_is_yaml_whatever_names_are(name: str) -> None:
    """Names are quoted."""
    import yaml

    from opscope.reports.formats.collected import LATENCY, Collected, CollectedVariant, Figure, model_card

    variant = CollectedVariant(name, name, [Figure(LATENCY, 1e6)], "")
    _, front, _ = model_card(Collected(name, name, name, [variant])).decode().split("---\n", 2)
    (index,) = yaml.safe_load(front)["model-index"]
    assert index["name"] == name
    assert index["results"][0]["metrics"][0] == {"type": "latency", "name": f"latency (ms), {name}", "value": 1.0}


def sarif_of_the_demo(place: Path) -> Path:
    """Findings on the demo before it runs; the record of its export lies beside it."""
    return written(DEMO, "sarif", place)


def test_findings_before_a_run_name_lines_of_the_model(tmp_path: Path) -> None:
    """The depthwise convolutions, by the line of the code that made them."""
    (result,) = json.loads(sarif_of_the_demo(tmp_path).read_bytes())["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("not_eligible", "warning")
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"].endswith("/export/models/mobilenet_v3.py")
    assert place["physicalLocation"]["region"]["startLine"] > 1


@pytest.mark.nightly
@needs_python
def test_sarif_tools_counts_the_findings(tmp_path: Path) -> None:
    """And finds file and line."""
    out = tmp_path / "findings.csv"
    said_by(PYTHON.with_name("sarif"), "csv", "--output", out, sarif_of_the_demo(tmp_path))
    (line,) = out.read_text("utf-8-sig").splitlines()[1:]
    assert "not_eligible" in line
    assert "mobilenet_v3.py" in line


@pytest.mark.nightly
@pytest.mark.skipif(not SARIF.exists(), reason="make consumers installs Microsoft's SARIF Multitool")
def test_the_validator_of_sarif_finds_no_error(bundle: Path, tmp_path: Path) -> None:
    """By the schema and by its own rules: all that it misses is an address of the tool."""
    for number, file in enumerate((sarif_of_the_demo(tmp_path), written(bundle, "sarif", tmp_path / "of-bundle"))):
        log = tmp_path / f"{number}.sarif"
        said_by(SARIF, "validate", file, "--output", log, "--log", "ForceOverwrite")
        found = json.loads(log.read_text("utf-8-sig"))["runs"][0]["results"]
        assert {one["ruleId"] for one in found} <= {"SARIF2005"}, found
        assert not any(one.get("level") == "error" for one in found)


@pytest.mark.nightly
@needs("go")
def test_pprof_reads_time_and_calls(bundle: Path, shown: ReportContent, tmp_path: Path) -> None:
    """Go's pprof: the same total, the same operator on top, and calls where these are asked for."""
    file = written(bundle, "pprof", tmp_path)
    analysis = analysis_of(shown, "accelerated")
    raw = said_by("go", "tool", "pprof", "-raw", file)
    assert "calls/count time/nanoseconds[dflt]" in raw
    samples = [
        line.split(":")[0].split() for line in raw.split("Samples:\n")[1].split("Locations\n")[0].splitlines()[1:]
    ]
    times = [int(time_ns) for _, time_ns in (pair for pair in samples if len(pair) == 2)]
    assert sum(times) == round(math.fsum(operator.shown_ns for operator in analysis.operators))
    longest = max(analysis.operators, key=lambda operator: operator.shown_ns)
    top = said_by("go", "tool", "pprof", "-top", "-nodecount=1", file)
    assert longest.name in top
    calls = said_by("go", "tool", "pprof", "-sample_index=calls", "-top", file)
    assert f"Total samples = {sum(1 for one in analysis.operators if one.position is not None)}" in calls


def test_a_profile_is_a_compressed_message(bundle: Path, tmp_path: Path) -> None:
    """Read by the reader of protocol buffers: the first text is empty, the unit of time is said."""
    from opscope.readers.protobuf import fields, whole

    data = gzip.decompress(written(bundle, "pprof", tmp_path).read_bytes())
    found = list(fields(whole(memoryview(data), "pprof")))
    texts = [field.text() for field in found if field.number == 6]
    assert texts[0] == ""
    assert len(set(texts)) == len(texts)
    kinds = [[texts[part.value] for part in fields(field.message())] for field in found if field.number == 1]
    assert kinds == [["calls", "count"], ["time", "nanoseconds"]]


@pytest.fixture(scope="module")
def store(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two runs of one series: that of the bundle is the newer one."""
    pytest.importorskip("duckdb")
    directory = tmp_path_factory.mktemp("store")
    program = write_tiny_program(directory)
    settings = Settings(rounds=2, runs=3, warmup=1)
    profile(str(program), settings=settings, out=directory / "older", target=FakeTarget(), clock=FakeClock())
    for number, path in enumerate((directory / "older", bundle)):
        add_to_store([path], directory / "store", given=BundleLabels(device="board", commit=f"c{number}"))
    return directory / "store"


def test_a_store_shows_the_newest_run_of_each_series(store: Path, shown: ReportContent) -> None:
    """By Prometheus's parser in Python, which refuses what the format forbids."""
    families = list(text_string_to_metric_families(store_metrics("", store).decode()))
    samples = {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}
    found = {dict(labels)["variant"]: number for (name, labels), number in samples.items() if "median_latency" in name}
    assert found == {
        name: pytest.approx(analysis_of(shown, name).latency.median_ns / 1e9) for name in ("accelerated", "baseline")
    }
    commits = {dict(labels)["commit"] for name, labels in samples if name == "opscope_measurement_info"}
    assert commits == {"c1"}
    assert all(family.documentation and (not family.unit or family.name.endswith(family.unit)) for family in families)


def test_metrics_of_a_store_are_of_what_is_chosen(store: Path) -> None:
    """By the filter of histories; what means nothing here is refused."""
    assert b'variant="baseline"' not in store_metrics("variant=accelerated", store)
    with pytest.raises(NotFoundError, match="no run fits"):
        store_metrics("variant=other", store)
    with pytest.raises(UsageError, match="newest run"):
        store_metrics("last=3", store)


@pytest.mark.nightly
@needs("promtool")
def test_promtool_reads_the_older_text_format(store: Path) -> None:
    """After the line of docs/how-to/show-runs-on-a-dashboard.md; it says only that the info metric has no help text."""
    plain = [
        line for line in store_metrics("", store).decode().splitlines() if not line.endswith((" info", "stateset"))
    ]
    text = "".join(f"{line}\n" for line in plain)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == ["opscope_measurement_info no help text"]


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


def free_port() -> int:
    """A port of the loopback interface that nobody listens at now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


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


@pytest.mark.nightly
@needs("prometheus")
def test_prometheus_scrapes_the_store(store: Path, shown: ReportContent, tmp_path: Path) -> None:
    """The real server reads them as OpenMetrics and answers a query."""
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    handler = type("Exporter", (_Answers,), {"content": store_metrics("", store), "kind": kind})
    address = f"127.0.0.1:{free_port()}"
    words = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    with answering(handler) as port, (tmp_path / "log").open("wb") as log:
        job = {"job_name": "opscope", "scrape_interval": "1s", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
        server = subprocess.Popen([*words, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            found = asked_until(address, 'opscope_median_latency_seconds{variant="accelerated"}')
        finally:
            server.terminate()
            server.wait()
    (sample,) = found
    latency = analysis_of(shown, "accelerated").latency.median_ns / 1e9
    assert float(sample["value"][1]) == pytest.approx(latency)


def asked_until(address: str, query: str, tries: int = 300) -> list[dict[str, Any]]:
    """The answer of a Prometheus server, once there is one."""
    url = f"http://{address}/api/v1/query?query={urllib.parse.quote(query)}"
    for _ in range(tries):
        try:
            with urllib.request.urlopen(url) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except (urllib.error.URLError, OSError):
            found = []
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"no answer to {query}")


def fetched(browser: Chromium, link: str) -> str:
    """What a script of the page that is shown reads at an address; else the kind of error."""
    return str(browser.value(f"fetch({json.dumps(link)}).then((r) => r.text()).catch((e) => e.name)"))


@pytest.mark.nightly
@pytest.mark.skipif(COMMAND is None, reason="chromium is not installed")
def test_a_page_reads_the_trace_once_and_other_pages_never(tmp_path: Path) -> None:
    """A real browser, a page of another origin: it gets the file; a page of a third origin gets nothing."""
    trace = tmp_path / "a trace.json"
    trace.write_text('{"traceEvents": []}')
    with answering(_Answers) as port, contextlib.closing(Chromium()) as browser:
        online = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        with OneFile(trace, f"http://localhost:{port}", 0) as server:
            assert server.link == f"http://localhost:{port}/#!/?url=http://{server.host}/a%20trace.json"
            ended: list[bool] = []
            waiting = threading.Thread(target=lambda: ended.append(server.wait(60)))
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
