"""The GitHub Action: its steps run here by bash, against a server that speaks GitHub's API.

Steps of other actions (checkout, Python, artifacts) are folders and programs of this machine.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock, FakeTarget
from github_server import BOT, GithubServer
from opscope.api import Settings, check_programs, query_store
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.core.version import __version__
from opscope.workflows.github import BASELINES, write_github
from programs import tiny_program
from runners import INFERENCE, write_runner
from traces import etdump
from workflow_steps import BASH, ROOT, Ended, Job, document, run_action, run_job, run_steps, value

WORKFLOWS = sorted((ROOT / "examples" / "github-actions").glob("*.yml"))
ACTION = document(ROOT / "action.yml")
SCRIPTS = Path(sysconfig.get_path("scripts"))
HEAD = "f1e2d3c4b5a69788"
PULL_REQUEST = {"number": 7, "head": {"sha": HEAD}, "base": {"ref": "main"}}
DEMO = ROOT / "demo" / "mobilenet_v3_small_xnnpack_fp32.pte"
MARKER = "<!-- opscope check: opscope -->"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of two programs: one whose new one is half as fast, and one of equals."""
    place = tmp_path_factory.mktemp("measured")
    for name, slower in (("slow", 2.0), ("same", 1.0)):
        sides = []
        for side in ("new", "old"):
            (place / name / side).mkdir(parents=True)
            sides.append(place / name / side / "net.pte")
            sides[-1].write_bytes(tiny_program() + side.encode())
        target = FakeTarget(noise=0.005, seed=3)
        target.slower = lambda job, factor=slower: factor if Path(job.program).read_bytes().endswith(b"new") else 1.0
        settings = Settings(rounds=6, runs=3, warmup=1, ceilings=False)
        check_programs(*sides, settings=settings, out=place / name / "bundle", target=target, clock=FakeClock())
    return place


@pytest.fixture(scope="module")
def api() -> Iterator[GithubServer]:
    """GitHub, for all tests of this file."""
    server = GithubServer()
    yield server
    server.close()


@pytest.fixture
def github(api: GithubServer) -> GithubServer:
    """GitHub as it is at first."""
    api.comments.clear()
    api.artifacts.clear()
    api.requests.clear()
    api.user, api.broken, api.may_write, api.may_list = None, False, True, True
    return api


class Artifacts:
    """Artifacts as folders, whose hidden files are left out as the real action does."""

    def __init__(self, place: Path, workspace: Path) -> None:
        self.place, self.workspace = place, workspace

    def upload(self, given: dict[str, str], _: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Keep a directory under a name."""
        target = self.place / given["name"]
        assert given["overwrite"] == "true" or not target.exists()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.workspace / given["path"], target, ignore=shutil.ignore_patterns(".*"))
        bad = [path for path in target.rglob("*") if re.search(r'[":<>|*?\r\n]', path.relative_to(target).as_posix())]
        assert bad == [], "names that an artifact may not have"
        return 0, {}

    def download(self, given: dict[str, str], _: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Bring one back."""
        assert given["run-id"]
        assert given["github-token"] == "token"
        shutil.copytree(self.place / given["name"], self.workspace / given["path"])
        return 0, {}

    def save(self, given: dict[str, str], _: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Keep a directory in the cache, under a key that is new."""
        shutil.copytree(given["path"], self.place / "cache" / given["key"])
        return 0, {}

    def restore(self, given: dict[str, str], _: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Bring back what was saved last under a key that begins so; it may be nothing."""
        found = [path for path in (self.place / "cache").glob("*") if path.name.startswith(given["restore-keys"])]
        if found:
            shutil.copytree(max(found, key=lambda path: path.stat().st_mtime), given["path"])
        return 0, {"cache-matched-key": found[0].name if found else ""}


def job(place: Path, github: GithubServer, event: dict[str, Any] | None = None, **changes: Any) -> Job:
    """A job of a pull request, or of another event."""
    workspace, runner = place / "workspace", place / "runner"
    workspace.mkdir(parents=True, exist_ok=True)
    runner.mkdir(exist_ok=True)
    payload = {"pull_request": PULL_REQUEST} if event is None else event
    (runner / "event.json").write_text(json.dumps(payload))
    context = {
        "api_url": github.address,
        "server_url": "https://github.example",
        "repository": "team/net",
        "run_id": "81",
        "sha": HEAD,
        "ref": "refs/pull/7/merge",
        "ref_name": "7/merge",
        "event_name": "pull_request" if "pull_request" in payload else "push",
        "event_path": str(runner / "event.json"),
        "event": payload,
        "token": "token",
    }
    artifacts = Artifacts(place / "artifacts", workspace)
    uses = {
        "actions/setup-python": lambda _, __: (0, {"python-path": sys.executable}),
        "actions/upload-artifact": artifacts.upload,
        "actions/download-artifact": artifacts.download,
        "actions/cache/restore": artifacts.restore,
        "actions/cache/save": artifacts.save,
    }
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    lock = os.environ["OPSCOPE_LOCK"]
    environment = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "OPSCOPE_LOCK": lock}
    return Job(workspace, runner, context | changes, environment, uses)


def checked(found: Job, bundle: Path, **inputs: str) -> Ended:
    """Check a bundle by the action, with the opscope of this checkout."""
    given = {"candidate": f"{bundle}#new", "baseline": f"{bundle}#old", "install": "none", "artifact": ""}
    return run_action(found, given | {name.replace("_", "-"): text for name, text in inputs.items()})


def commented(place: Path, github: GithubServer, body: str, name: str = "opscope") -> Job:
    """Write a comment by the action's script alone, as its step does."""
    found = job(place, github)
    (place / "result.md").write_text(body)
    step = next(one for one in ACTION["runs"]["steps"] if one.get("id") == "comment")
    variables = {"PYTHON": sys.executable, "BODY": str(place / "result.md"), "NAME": name, "GITHUB_TOKEN": "token"}
    assert set(step["env"]) == set(variables)
    steps = [step | {"env": variables}]
    ended = run_steps(found, steps, {"inputs": {"comment": "true"}})
    assert ended.code == 0
    return found


def test_a_comment_is_made_once_and_updated(measured: Path, github: GithubServer, tmp_path: Path) -> None:
    """Regression, then a pass: exit code 1, then 0; one comment, which says what holds now, at one address."""
    first = checked(job(tmp_path / "1", github), measured / "slow" / "bundle")
    assert (first.code, first.outputs["outcome"], first.outputs["exit-code"]) == (1, "regression", "1")
    assert float(first.outputs["slowdown"]) > 0.1
    (comment,) = github.comments
    assert comment["issue"] == 7
    assert comment["body"].startswith(f"{MARKER}\n## opscope check: regression, net is slower (+")
    assert "https://github.example/team/net/actions/runs/81" in comment["body"]
    assert f"Commit {HEAD[:7]}" in comment["body"]
    second = checked(job(tmp_path / "2", github, run_id="82"), measured / "same" / "bundle")
    assert (second.code, second.outputs["outcome"]) == (0, "passed")
    assert len(github.comments) == 1
    assert "## opscope check: passed, net is not slower (" in comment["body"]
    assert "runs/82" in comment["body"]
    assert first.outputs["comment-url"] == second.outputs["comment-url"] == comment["html_url"]


def test_the_summary_has_the_result_and_the_directory_the_files(
    measured: Path, github: GithubServer, tmp_path: Path
) -> None:
    """Also without a comment."""
    found = job(tmp_path, github)
    ended = checked(found, measured / "slow" / "bundle", comment="false", artifact="speed")
    assert found.summary.startswith("## opscope check: regression, net is slower")
    assert github.requests == []
    kept = {path.name for path in (tmp_path / "artifacts" / "speed").iterdir()}
    assert kept == {"annotations.txt", "check.md", "check.json", "check.xml", "log.txt", "result.md"}
    assert ended.outputs["comment-url"] == ""


def test_our_comment_is_found_on_any_page_and_nobody_elses_is_touched(github: GithubServer, tmp_path: Path) -> None:
    """Others write the marker, too: at the beginning, in a quotation, or with an account that is gone."""
    person = {"login": "somebody", "type": "User"}
    for user, body in ((person, f"{MARKER}\nmine"), (BOT, f"> {MARKER}"), (None, MARKER)):
        github.add_comment(7, body, user)
    github.add_comment(8, f"{MARKER}\nof another pull request", BOT)
    for _ in range(240):
        github.add_comment(7, "words", person)
    ours = github.add_comment(7, f"{MARKER}\nbefore", BOT)
    before = [one["body"] for one in github.comments[:-1]]
    commented(tmp_path, github, "passed\n")
    assert [one["body"] for one in github.comments[:-1]] == before
    assert github.comments[-1] is ours
    assert ours["body"].startswith(f"{MARKER}\npassed\n")
    assert sum("page=" in request for request in github.requests) == 3


def test_a_persons_token_updates_that_persons_comment(github: GithubServer, tmp_path: Path) -> None:
    """And no bot's."""
    github.user = {"login": "owner", "type": "User"}
    bots = github.add_comment(7, f"{MARKER}\na bot's", BOT)
    owners = github.add_comment(7, f"{MARKER}\nthe owner's", github.user)
    commented(tmp_path, github, "passed\n")
    assert bots["body"].endswith("a bot's")
    assert "passed" in owners["body"]


def test_jobs_with_names_of_their_own_have_comments_of_their_own(github: GithubServer, tmp_path: Path) -> None:
    """Whatever the name is made of, the marker stays one comment of HTML."""
    for name in ("opscope", "Pixel 8 --> <b>", "opscope"):
        commented(tmp_path, github, "passed\n", name)
    markers = [one["body"].partition("\n")[0] for one in github.comments]
    assert markers == [MARKER, "<!-- opscope check: Pixel-8-b- -->"]


def test_a_long_result_is_cut_at_a_line(github: GithubServer, tmp_path: Path) -> None:
    """GitHub takes 65,536 characters; what follows is in the summary, which the comment says."""
    commented(tmp_path, github, "## first\n" + "a row of the table\n" * 6_000)
    (comment,) = github.comments
    assert 64_000 < len(comment["body"]) <= 65_536
    assert "a row of the table\n\nThe rest is in the summary of the run.\n\n<sub>" in comment["body"].replace(
        "\n\n\n", "\n\n"
    )


def test_a_server_that_fails_costs_the_comment_and_not_the_verdict(github: GithubServer, tmp_path: Path) -> None:
    """A warning; the step succeeds."""
    github.broken = True
    found = commented(tmp_path, github, "passed\n")
    assert found.logs == ["::warning title=opscope::GitHub rejected the comment: Server Error (HTTP 500)\n"]
    assert "No comment on the pull request" in found.summary


def test_a_fork_gets_the_summary_instead(measured: Path, github: GithubServer, tmp_path: Path) -> None:
    """Its token may read only: a notice, and the verdict as it is."""
    github.may_write = False
    found = job(tmp_path, github)
    ended = checked(found, measured / "slow" / "bundle")
    assert ended.code == 1
    assert github.comments == []
    assert any(log.startswith("::notice title=opscope::the token cannot write comments") for log in found.logs)
    assert "No comment on the pull request" in found.summary
    assert "## opscope check: regression" in found.summary


def test_a_push_has_no_comment(measured: Path, github: GithubServer, tmp_path: Path) -> None:
    """Nothing is asked of the API."""
    assert checked(job(tmp_path, github, {"after": HEAD}), measured / "same" / "bundle").code == 0
    assert github.requests == []


def test_a_check_without_a_result_replaces_an_earlier_pass(
    measured: Path, github: GithubServer, tmp_path: Path
) -> None:
    """Else the comment of the last commit would stand for this one."""
    ours = github.add_comment(7, f"{MARKER}\n## opscope check: passed", BOT)
    ended = checked(job(tmp_path, github), measured / "none", fail_on="never")
    assert (ended.code, ended.outputs["outcome"], ended.outputs["slowdown"]) == (3, "error", "")
    assert "## opscope check: no result" in ours["body"]
    assert "exit code 3" in ours["body"]
    assert "passed" not in ours["body"]
    assert "error: " in ours["body"]


@pytest.mark.parametrize(
    ("outcome", "fail_on", "code"),
    [
        ("regression", "inconclusive", 1),
        ("regression", "regression", 1),
        ("regression", "never", 0),
        ("inconclusive", "inconclusive", 14),
        ("inconclusive", "regression", 0),
    ],
)
def test_what_fails_the_job(
    outcome: str, fail_on: str, code: int, measured: Path, github: GithubServer, tmp_path: Path
) -> None:
    """As fail-on says; what is let through is a warning."""
    name, threshold = {"regression": ("slow", "5%"), "inconclusive": ("same", "0.01%")}[outcome]
    found = job(tmp_path, github)
    ended = checked(found, measured / name / "bundle", fail_on=fail_on, comment="false", threshold=threshold)
    assert (ended.code, ended.outputs["outcome"]) == (code, outcome)
    assert ("::warning" in found.logs[-1]) is (code == 0)


@pytest.mark.parametrize(("code", "ends"), [(1, 1), (14, 14), (0, 1)])
def test_a_command_that_breaks_is_no_verdict(code: int, ends: int, github: GithubServer, tmp_path: Path) -> None:
    """A broken installation ends with 1 as well: without a result it is an error, which never is let through."""
    found = job(tmp_path, github)
    broken = tmp_path / "bin" / "opscope"
    broken.parent.mkdir()
    broken.write_text(f"#!/bin/bash\necho 'ImportError: `no` ```such``` module'\nexit {code}\n")
    broken.chmod(0o755)
    found.environment["PATH"] = f"{broken.parent}{os.pathsep}{found.environment['PATH']}"
    ended = checked(found, tmp_path / "b", fail_on="never")
    assert (ended.code, ended.outputs["outcome"]) == (ends, "error")
    assert "\n````text\nImportError: `no` ```such``` module\n````\n" in github.comments[0]["body"]


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"fail_on": "regresion"}, "fail-on must be"),
        ({"comment": "yes"}, "comment must be"),
        ({"judge": "works"}, "judge must be"),
        ({"record": "1"}, "record must be"),
        ({"record": "true"}, "record needs a store"),
        ({"baseline": "store:"}, "the baseline store: needs a store"),
        ({"baseline": "store:", "store": "s", "config": "c"}, "config needs two programs"),
        ({"history_artifact": "h"}, "history-artifact needs a store that is a directory"),
        ({"history_artifact": "h", "store": "s3://b/runs"}, "history-artifact needs a store that is a directory"),
    ],
)
def test_inputs_that_mean_nothing_end_the_job_at_once(
    inputs: dict[str, str], told: str, github: GithubServer, tmp_path: Path
) -> None:
    """A misspelt fail-on must not pass a regression."""
    found = job(tmp_path, github)
    assert checked(found, tmp_path / "b", **inputs).code == 2
    assert f"::error title=opscope::{told}" in found.logs[0]
    assert len(found.logs) == 1


def test_inputs_are_never_executed(github: GithubServer, tmp_path: Path) -> None:
    """Names of branches and files are other people's."""
    hostile = "$(touch owned)`touch owned`\"; touch owned; '"
    found = job(tmp_path, github)
    wordy = dict.fromkeys(("threshold", "budget", "rounds", "arguments", "comment_name", "device"), hostile)
    ended = checked(found, Path(hostile), **wordy)
    assert ended.code == 2
    assert list(tmp_path.rglob("owned")) == []


def test_a_history_grows_as_an_artifact(measured: Path, github: GithubServer, tmp_path: Path) -> None:
    """Two pushes: the second finds the artifact of the first among those of forks and other branches."""
    pytest.importorskip("duckdb")
    history = {"record": "true", "store": "history", "history_artifact": "runs"}
    push = {"event": {"after": HEAD}, "ref_name": "main"}
    found = job(tmp_path, github, sha="a" * 40, **push)
    assert checked(found, measured / "same" / "bundle", **history).code == 0
    assert "there is no artifact runs yet" in "".join(found.logs)
    for number, (branch, fork, expired) in enumerate(
        [("main", False, False), ("topic", False, False), ("main", True, False), ("main", False, True)]
    ):
        run = {"id": 80 + number, "head_branch": branch, "repository_id": 1, "head_repository_id": 1 + fork}
        created = f"2026-01-0{1 + number}T00:00:00Z"
        github.artifacts.append({"name": "runs", "expired": expired, "created_at": created, "workflow_run": run})
    shutil.rmtree(tmp_path / "workspace")
    shutil.rmtree(tmp_path / "runner")
    later = job(tmp_path, github, sha="b" * 40, **push)
    ended = checked(later, measured / "slow" / "bundle", **history)
    assert ended.code == 1  # a regression that was merged is what happened
    assert ended.steps["last"] == {"run-id": "80"}
    sql = "SELECT count(DISTINCT bundle), count(DISTINCT commit) FROM runs"
    assert query_store(sql, tmp_path / "artifacts" / "runs").rows == [(2, 2)]
    assert "2 runs" in later.summary
    assert ", old (" not in later.summary.partition("### History")[2]


def test_a_history_that_cannot_be_asked_for_is_not_begun_anew(
    measured: Path, github: GithubServer, tmp_path: Path
) -> None:
    """Without the permission the job fails, and says which one it is."""
    github.may_list = False
    found = job(tmp_path, github, {"after": HEAD}, ref_name="main")
    history = {"record": "true", "store": "history", "history_artifact": "runs"}
    assert checked(found, measured / "same" / "bundle", **history).code == 1
    assert "permission actions: read" in found.logs[-1]


def test_a_history_in_object_storage(measured: Path, github: GithubServer, tmp_path: Path) -> None:
    """Credentials are variables of the step."""
    pytest.importorskip("moto")
    from s3_server import S3Server

    server = S3Server()
    try:
        found = job(tmp_path, github, {"after": HEAD})
        bundle = measured / "same" / "bundle"
        given = {"candidate": f"{bundle}#new", "baseline": f"{bundle}#old", "install": "none", "artifact": ""}
        given |= {"record": "true", "store": f"{server.address}/runs", "device": "board 1"}
        ended = run_action(found, given, server.environment)
        assert ended.code == 0, found.logs
        assert "net on board 1, new" in found.summary
    finally:
        server.stop()


def test_opscope_is_installed_apart_and_from_the_action_itself(github: GithubServer, tmp_path: Path) -> None:
    """An environment of its own; the extra for stores only where the store is used. pip is not run here."""
    told = tmp_path / "told"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/bash\necho "$@" >> {told}\n'
        'if [[ "$2" == venv ]]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi\n'
    )
    python.chmod(0o755)
    wanted: dict[str, dict[str, str]] = {
        f"{ROOT}[runtime]": {"store": "s"},
        f"{ROOT}[runtime,store]": {"store": "s", "record": "true"},
        f"{ROOT}[runtime,count]": {"judge": "work"},
        f"{ROOT}[onnxruntime]": {"candidate": "net.onnx"},
        f"{ROOT}[litert]": {"candidate": "net.tflite"},
        "opscope[executorch]==1.2 --pre": {"install": "opscope[executorch]==1.2\n\n--pre\n"},
    }
    for number, (words, inputs) in enumerate(wanted.items()):
        found = job(tmp_path / str(number), github)
        found.uses["actions/setup-python"] = lambda _, __: (0, {"python-path": str(python)})
        checked(found, tmp_path / "none", **{"install": "", "comment": "false"} | inputs)
        calls = told.read_text().splitlines()
        told.unlink()
        assert calls[0].startswith(f"-m venv {tmp_path / str(number) / 'runner'}/opscope-python-")
        assert calls[1] == f"-m pip install --quiet --disable-pip-version-check {words}"


@pytest.mark.nightly  # counts two programs, and measures them
@pytest.mark.runtime
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs Valgrind: apt install valgrind")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions are counted on x86-64")
@pytest.mark.parametrize("judge", ["work", "work and time"])
def test_work_is_judged_without_a_quiet_runner(judge: str, github: GithubServer, tmp_path: Path) -> None:
    """The same program twice: not an instruction differs, whatever else this machine does."""
    found = job(tmp_path, github)
    for name in ("head.pte", "base.pte"):
        shutil.copyfile(ROOT / "tests" / "data" / "versions" / "executorch-1.5.1.pte", tmp_path / "workspace" / name)
    given = {"candidate": "head.pte", "baseline": "base.pte", "install": "none", "artifact": "", "judge": judge}
    ended = run_action(found, given | {"rounds": "2", "fail-on": "regression"})
    (comment,) = github.comments
    assert "work equal, exact" in comment["body"], found.logs
    assert ended.outputs["outcome"] == "passed" if judge == "work" else ended.outputs["outcome"] != "error"
    assert ("time: " in comment["body"].splitlines()[1]) is (judge == "work and time")


def test_two_builds_of_the_runtime_are_run_first(github: GithubServer, tmp_path: Path) -> None:
    """By a file with a variant for each; scripts stand in for the builds."""
    found = job(tmp_path, github)
    times = (("100000", "150000"), (" 80000", " 130000"), (" 50000", " 100000"))
    for name in ("new", "old"):
        build = found.place / f"build-{name}"
        write_runner(build, name="executor_runner")
        for runs in range(1, 6) if name == "new" else ():
            text = functools.reduce(lambda told, pair: told.replace(*pair), times, INFERENCE)
            (build / "prepared" / f"{runs}.etdump").write_bytes(etdump(text, repeat=runs))
    (found.place / "model.pte").write_bytes(tiny_program())
    page = (ROOT / "docs" / "how-to" / "keep-a-history-on-github.md").read_text()
    (builds,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (found.place / "builds.toml").write_text(builds.replace("rounds = 20", "rounds = 6\nruns = 3\nwarmup = 1"))
    given = dict(re.findall(r"^    (\S+): (\S+)$", page.partition("```toml")[2], re.MULTILINE))
    assert set(given) == {"experiment", "candidate", "baseline"}
    ended = run_action(found, given | {"install": "none"})
    assert (ended.code, ended.outputs["outcome"]) == (1, "regression"), found.logs
    assert float(ended.outputs["slowdown"]) == pytest.approx(0.5)
    assert "model is slower (+50.0 %)" in github.comments[0]["body"]
    log = (tmp_path / "artifacts" / "opscope-check" / "log.txt").read_text()
    assert log.index("report: experiment/model-runner/report.html") < log.index("regression: ")


def test_the_page_shows_the_files_and_every_input() -> None:
    """What a reader copies is what was run here."""
    names = ("how-to/check-pull-requests-on-github", "how-to/keep-a-history-on-github", "reference/github-action")
    page = "".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in names)
    *whole, end, _ = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    examples = {
        name: (WORKFLOWS[0].parent / f"speed-{name}.yml").read_text(encoding="utf-8") for name in (*BASELINES, "s3")
    }
    assert whole == [examples[name] for name in BASELINES]
    assert examples["s3"].endswith(end)
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", page.partition("## Inputs")[2], re.MULTILINE)
    defaults = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
    assert {name: text.strip("`") for name, text in rows} == defaults | {"github-token": "the job's"}
    for name in ACTION["outputs"]:
        assert f"`{name}`" in page


def expressions(text: str) -> list[str]:
    """What stands between the braces."""
    return re.findall(r"\$\{\{(.*?)\}\}", text)


def test_the_action_is_complete_and_its_scripts_hold_no_expressions() -> None:
    """Keys that GitHub knows, a description everywhere, every input used, no input inside a script."""
    assert set(ACTION) == {"name", "description", "author", "branding", "inputs", "outputs", "runs"}
    for name, one in ACTION["inputs"].items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert set(one) <= {"description", "required", "default"}
        assert one["description"]
        assert ("default" in one) != (one.get("required") == "true")
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])
    for step in ACTION["runs"]["steps"]:
        assert step["name"]
        assert expressions(step.get("run", "")) == []
        assert ("uses" in step) != (step.get("shell") == "bash")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_an_example_workflow_is_safe(workflow: Path) -> None:
    """Least permissions, no pull_request_target, no expression in a script, inputs that the action has."""
    found = document(workflow)
    assert set(found) - {"concurrency"} == {"name", "on", "permissions", "jobs"}
    assert ("concurrency" in found) == ("record" in workflow.read_text("utf-8"))
    assert set(found["on"]) == {"pull_request", "push"}
    assert found["permissions"] == {"contents": "read"}
    (steps,) = (one["steps"] for one in found["jobs"].values())
    for step in steps:
        assert expressions(step.get("run", "")) == []
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] == "false"
        if step.get("uses", "").startswith("./"):
            assert set(step["with"]) <= set(ACTION["inputs"])
    assert not re.search(r"OWNER|BUCKET|vX|TODO|<[a-z]", workflow.read_text("utf-8"))  # nothing is left to fill in


def test_actions_of_others_are_pinned_and_the_same_everywhere() -> None:
    """By the hash of a release, which is said beside it: a tag can be moved to other code."""
    found: dict[str, str] = {}
    for file in (ROOT / "action.yml", *WORKFLOWS, *(ROOT / "docs").rglob("*.md")):
        for name, version in re.findall(r"uses: (actions/[\w/-]+)@(.*)", file.read_text(encoding="utf-8")):
            assert re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", version), f"{file}: {name}@{version}"
            assert found.setdefault(name, version) == version, f"{file}: {name}@{version}"
    assert len(found) == 6


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck: apt install shellcheck")
def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    """Those of the action and of the workflows."""
    jobs = (one for workflow in WORKFLOWS for one in document(workflow)["jobs"].values())
    steps = [*ACTION["runs"]["steps"], *(step for one in jobs for step in one["steps"])]
    for number, step in enumerate(step for step in steps if "run" in step):
        script = tmp_path / f"{number}.sh"
        script.write_text(f"#!/bin/bash\nset -eo pipefail\n{step['run']}")
        done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_expressions_mean_what_they_mean_on_github() -> None:
    """Of this harness: precedence, case, and-or as a choice, names that are missing."""
    scope = {"github": {"event": {"number": "4"}, "ref": "Main"}, "inputs": {"a-b": ""}, "status": {"always()": True}}
    assert value("github.event.number || github.ref", scope) == "4"
    assert value("github.event.pull_request.number || github.ref", scope) == "Main"
    assert value("github.ref == 'main' && 'yes' || 'no'", scope) == "yes"
    assert value("!(github.ref != 'main') && inputs.a-b == ''", scope) is True
    assert value("always() && startsWith(github.ref, 'ma')", scope) is True
    for wrong in ("inputs.missing", "secrets.x", "github.ref ==", "fromJSON(github.ref)"):
        with pytest.raises((AssertionError, IndexError)):
            value(wrong, scope)


def git(place: Path, *words: str) -> None:
    """Run git in a repository."""
    names = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, *words], cwd=place, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository at the merge of a pull request, whose program has other bytes at its end; `before` is its base."""
    place = tmp_path / "origin"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    (place / "net.pte").write_bytes(DEMO.read_bytes())
    git(place, "add", ".")
    git(place, "commit", "-qm", "base")
    git(place, "tag", "before")
    git(place, "switch", "-qc", "change")
    (place / "net.pte").write_bytes(DEMO.read_bytes() + b"changed")
    git(place, "commit", "-qam", "change")
    git(place, "switch", "-q", "main")
    git(place, "merge", "-q", "--no-ff", "-m", "merge", "change")
    return place


def run_workflow(found: Job, repository: Path, baseline: str, at: str) -> Ended:
    """Run an example as it stands, with the opscope of this checkout and few rounds; return how its job ended."""

    def checkout(given: dict[str, str], _: dict[str, str]) -> tuple[int, dict[str, str]]:
        words = ["clone", "-q", "--depth", given.get("fetch-depth", "1"), "--branch", at, f"file://{repository}", "."]
        git(found.place, *words)
        return 0, {}

    def action(given: dict[str, str], variables: dict[str, str]) -> tuple[int, dict[str, str]]:
        few = {"install": "none", "rounds": "6", "threshold": "90%"}
        if baseline != "store":
            (found.runner / "few.toml").write_text("runs = 3\nuntraced = false\n")
            few["config"] = str(found.runner / "few.toml")
        ended = run_action(found, given | few, variables)
        return ended.code, ended.outputs

    found.uses |= {"actions/checkout": checkout, "./.github/opscope": action}
    return run_job(found, WORKFLOWS[0].parent / f"speed-{baseline}.yml", "speed")


def test_what_a_log_says_of_a_baseline_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of a file stays text in the comment, whatever is in it."""
    monkeypatch.syspath_prepend(str(ROOT / "action"))
    result = importlib.import_module("result")
    line = "error: @team <img src=x> ````: the store has no comparable run"
    assert result.fenced([line]) == f"`````text\n{line}\n`````\n"


def trusted(store: Path) -> bool:
    """Whether the machine was quiet enough while the stored run was measured: only then it judges others."""
    ((grade,),) = query_store("SELECT latency_grade FROM runs WHERE variant = 'accelerated'", store).rows
    return bool(grade != "do_not_trust")


def manifest_of(place: Path) -> dict[str, Any]:
    """Of the bundle that the last run kept."""
    found: dict[str, Any] = json.loads((place / "opscope-check" / "bundle" / "manifest.json").read_bytes())
    return found


@pytest.mark.runtime
def test_the_workflow_measures_both_commits(repository: Path, github: GithubServer, tmp_path: Path) -> None:
    """From the checkout to the comment with the real runtime: the old program is that of the first parent."""
    found = job(tmp_path, github, base_ref="main")
    run_workflow(found, repository, "branch", "main")
    log = "".join(found.logs)
    assert "report: " in log, log
    (comment,) = github.comments
    assert re.match(rf"{MARKER}\n## opscope check: (?:passed|regression|inconclusive|untrusted)", comment["body"])
    assert re.search(r"^::(?:error|notice) file=net\.pte,title=opscope check", log, re.MULTILINE), log
    manifest = manifest_of(tmp_path / "artifacts")
    assert manifest["model"]["source"] == "net.pte"
    assert manifest["programs"]["old"]["source"].endswith("/opscope-base/net.pte")
    assert manifest["model"]["sha256"] != manifest["programs"]["old"]["sha256"]


@pytest.mark.nightly  # measures twice
@pytest.mark.runtime
@pytest.mark.parametrize("baseline", ["artifact", "cache", "store"])
def test_a_run_on_main_leaves_the_baseline(
    baseline: str, repository: Path, github: GithubServer, tmp_path: Path
) -> None:
    """The first one has nothing to judge by, which fails nothing; a pull request after it is judged by what it left."""
    if baseline == "store":
        pytest.importorskip("duckdb")
    first = job(tmp_path, github, {"after": HEAD}, ref_name="main")
    assert run_workflow(first, repository, baseline, "before").code == 0, "".join(first.logs)
    assert "no baseline yet" in first.summary, "".join(first.logs)
    assert [log for log in first.logs if log.startswith("::error")] == []
    judges = baseline != "store" or trusted(tmp_path / "artifacts" / "opscope-history")
    run = {"id": 81, "head_branch": "main", "repository_id": 1, "head_repository_id": 1}
    for name in ("opscope-baseline", "opscope-history"):
        made = {"name": name, "expired": False, "created_at": "2026-01-01T00:00:00Z", "workflow_run": run}
        github.artifacts += [made] if (tmp_path / "artifacts" / name).exists() else []
    shutil.rmtree(tmp_path / "workspace")
    shutil.rmtree(tmp_path / "runner")
    later = job(tmp_path, github, base_ref="main")
    run_workflow(later, repository, baseline, "main")
    (comment,) = github.comments
    if not judges:
        assert "error: the store has no comparable run" in comment["body"]
        return
    assert re.match(rf"{MARKER}\n## opscope check: (?:passed|regression|inconclusive|untrusted)", comment["body"])
    manifest = manifest_of(tmp_path / "artifacts")
    if baseline == "store":
        assert "the baseline is the stored history" in comment["body"]
    else:
        assert manifest["programs"]["old"]["source"].endswith("/opscope-baseline/net.pte")
        assert manifest["programs"]["old"]["sha256"] != manifest["model"]["sha256"]


@pytest.mark.parametrize(
    ("files", "inputs", "told"),
    [
        ((), {}, "no .pte, .tflite or .onnx in the checkout"),
        (("a/x.pte", "b.onnx"), {}, "2 programs in the checkout, name one as the input candidate: a/x.pte, b.onnx"),
        ((".cache/x.pte",), {}, "no .pte, .tflite or .onnx in the checkout"),
        (("x.pte",), {}, "cannot check out the base, let actions/checkout have fetch-depth: 2"),
        (("x.pte",), {"export": "echo made; false"}, "the command of the input export ended with exit code 1"),
    ],
)
def test_what_a_workflow_lacks_is_said(
    files: tuple[str, ...], inputs: dict[str, str], told: str, github: GithubServer, tmp_path: Path
) -> None:
    """As an error in one sentence, with what to write."""
    found = job(tmp_path, github)
    for name in files:
        (found.place / name).parent.mkdir(exist_ok=True)
        (found.place / name).touch()
    assert run_action(found, {"install": "none", "artifact": ""} | inputs).code == 2
    assert f"::error title=opscope::{told}" in found.logs[-1]


def test_a_command_exports_both_programs(repository: Path, github: GithubServer, tmp_path: Path) -> None:
    """In the checkout and in its base; a program that the base does not have has no baseline."""
    git(repository, "mv", "net.pte", "kept")
    (repository / "export.sh").write_text("mkdir -p out && cp kept out/net.pte\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "export it")
    git(repository, "commit", "-qm", "again", "--allow-empty")
    found = job(tmp_path, github)
    git(found.place, "clone", "-q", "--depth", "3", f"file://{repository}", ".")
    given = {"install": "none", "artifact": "", "export": "bash export.sh", "threshold": "never a share"}
    assert run_action(found, given).steps["programs"] == {
        "candidate": "out/net.pte",
        "baseline": str(found.runner / "opscope-base" / "out" / "net.pte"),
    }
    git(found.place, "worktree", "remove", "--force", str(found.runner / "opscope-base"))
    git(found.place, "reset", "-q", "--hard", "HEAD^1")
    ended = run_action(found, given | {"export": "[ ! -e export.sh ] || bash export.sh"})
    assert (ended.code, ended.outputs["outcome"]) == (0, "no-baseline"), found.logs
    assert any("no baseline of out/net.pte yet" in log for log in found.logs)


def test_the_verdict_and_operators_that_lost_are_annotations(
    measured: Path, github: GithubServer, tmp_path: Path
) -> None:
    """An error with the headline, warnings by operator; what fail-on lets through is no error."""
    found = job(tmp_path, github)
    checked(found, measured / "slow" / "bundle")
    lines = [line for log in found.logs for line in log.splitlines() if line.startswith("::")]
    assert re.match(r"::error title=opscope check%3A net is slower \(\+\d+\.\d %25\)::regression: ", lines[2])
    assert [line.partition(" ")[0] for line in lines[3:] if line.startswith("::error")] == []
    assert re.match(r"::(?:warning title=slower|notice title=new)%3A ", lines[3])
    passed = job(tmp_path / "let", github)
    checked(passed, measured / "slow" / "bundle", fail_on="never")
    assert not any(line.startswith("::error") for log in passed.logs for line in log.splitlines())


def test_what_opscope_prints_is_no_command(github: GithubServer, tmp_path: Path) -> None:
    """Names of files and operators are other people's: commands are stopped while they are printed."""
    found = job(tmp_path, github)
    ended = checked(found, tmp_path / "b\n::set-env name=PATH::x")
    assert ended.outputs["outcome"] == "error"
    log = next(log for log in found.logs if "::stop-commands::" in log)
    token = re.search(r"^::stop-commands::([0-9a-f]{32})$", log, re.MULTILINE)
    assert token
    before, _, after = log.partition(f"::{token[1]}::\n")
    assert "error: " in before
    assert re.match(r"::error title=opscope::no result, opscope ended with exit code 3: error: ", after)


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip as this machine has it: a wheel is built, and installed with what it needs."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)


@pytest.mark.nightly  # builds a wheel
@pytest.mark.usefixtures("indexes")
def test_a_repository_gets_a_workflow_and_its_action(tmp_path: Path) -> None:
    """As they are here, with what the action installs beside it; nothing that is there is touched."""
    with pytest.raises(UsageError, match="not the top of a git repository"):
        write_github("branch", tmp_path)
    (tmp_path / ".git").mkdir()
    with pytest.raises(UsageError, match="unknown baseline"):
        write_github("brunch", tmp_path)
    try:
        workflow, action = write_github("cache", tmp_path)
    except MissingDependencyError as error:  # the wheel of this checkout: without an index nothing builds it
        pytest.skip(str(error))
    assert workflow.read_bytes() == (WORKFLOWS[0].parent / "speed-cache.yml").read_bytes()
    assert (action / "action.yml").read_bytes() == (ROOT / "action.yml").read_bytes()
    scripts = {path.name for path in (ROOT / "action").glob("*.py")}
    assert {path.name for path in (action / "action").iterdir()} == scripts
    source = (action / "source.txt").read_text().strip()
    assert source == f"opscope-{__version__}-py3-none-any.whl{{extras}}"
    assert (action / source.removesuffix("{extras}")).is_file()
    with pytest.raises(UsageError, match="it exists"):
        write_github("cache", tmp_path)


@pytest.mark.nightly  # installs what it wrote
@pytest.mark.usefixtures("indexes")
def test_the_written_action_installs_itself(github: GithubServer, tmp_path: Path) -> None:
    """By pip, into an environment of its own, from the wheel beside it; the check then runs with that."""
    found = job(tmp_path, github)
    (found.place / ".git").mkdir()
    try:
        _, action = write_github("branch", found.place)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    del found.environment["PYTHONPATH"]
    (found.place / "net.onnx").touch()  # the runtime that it installs is a small one
    inputs = {"candidate": "net.onnx", "baseline": "none.onnx", "artifact": ""}
    ended = run_action(found, inputs, path=action / "action.yml")
    assert ended.outputs["outcome"] == "error"
    assert "error: net.onnx: not an ONNX model: it is an empty file" in "".join(found.logs)
    version = subprocess.run(
        [ended.steps["install"]["opscope"], "--version"], capture_output=True, text=True, check=True
    )
    assert __version__ in version.stdout
    assert str(found.runner) in ended.steps["install"]["opscope"]


def test_bash_runs_as_a_runner_runs_it() -> None:
    """Flags of ``shell: bash``."""
    assert "bash --noprofile --norc -eo pipefail".split() == BASH
