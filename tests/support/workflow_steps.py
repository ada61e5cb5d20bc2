"""GitHub Actions on this machine, as far as the action and the example workflows go.

Steps with ``run`` are executed by bash as a runner does it: the same flags, variables, and files for outputs and the
summary. Steps with ``uses`` are what the caller gives for them; nothing is downloaded. Anything that is not known here
(a key, a function, a context) is an error, not ignored.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from waiting import HANG

ROOT = Path(__file__).resolve().parents[2]
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]
Uses = Callable[[dict[str, str], dict[str, str]], "tuple[int, dict[str, str]]"]
"""What stands in for an action: from its inputs and the step's variables to its exit code and its outputs."""
_TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][\w.-]*)|(?P<sign>==|!=|&&|\|\||[!(),]))")
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_STATUS = re.compile(r"\b(?:always|success|failure|cancelled)\(\)")
_STEP_KEYS = {"name", "id", "if", "uses", "with", "run", "shell", "env", "working-directory"}


def document(path: Path) -> dict[str, Any]:
    """A YAML file whose scalars are all text, so that ``on`` stays a word; keys that occur twice are an error."""
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_Unique)  # noqa: S506 - text only
    return found


class _Unique(yaml.BaseLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice the same key in {keys}"
        return super().construct_mapping(node, deep)


@dataclass
class Job:
    """A job on this machine.

    Attributes:
        place: its workspace.
        runner: its temporary directory, and the files of its steps.
        github: the context of that name, without what is derived from it.
        environment: variables of every step, beside PATH and those of the runner.
        uses: what stands in for actions, by their names without a version.
        contexts: other contexts: secrets, vars.
        logs: what each step printed, in order.
    """

    place: Path
    runner: Path
    github: dict[str, Any]
    environment: dict[str, str]
    uses: dict[str, Uses] = field(default_factory=dict)
    contexts: dict[str, dict[str, str]] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """The summary that the steps wrote."""
        file = self.runner / "summary.md"
        return file.read_text(encoding="utf-8") if file.exists() else ""


@dataclass
class Ended:
    """How steps ended: whether all succeeded, the code of the first that failed, and the outputs by step."""

    code: int
    steps: dict[str, dict[str, str]]
    outputs: dict[str, str]


def run_action(
    job: Job, given: Mapping[str, str], variables: Mapping[str, str] | None = None, path: Path = ROOT / "action.yml"
) -> Ended:
    """Run a composite action with these inputs, in a step with these variables, which its own steps see as well."""
    action = document(path)
    assert action["runs"]["using"] == "composite"
    unknown = set(given) - set(action["inputs"])
    assert not unknown, f"no such inputs: {unknown}"
    missing = {name for name, one in action["inputs"].items() if one.get("required") == "true"} - set(given)
    assert not missing, f"missing inputs: {missing}"
    scope = _contexts(job)
    inputs = {name: given.get(name, filled(one.get("default", ""), scope)) for name, one in action["inputs"].items()}
    inner = replace(job, environment={**job.environment, **(variables or {})})
    ended = _steps(inner, action["runs"]["steps"], scope | {"inputs": inputs}, path.parent)
    scope |= {"steps": {name: {"outputs": outputs} for name, outputs in ended.steps.items()}}
    ended.outputs = {name: filled(one["value"], scope) for name, one in action["outputs"].items()}
    return ended


def run_job(job: Job, workflow: Path, name: str) -> Ended:
    """Run the steps of a job of a workflow."""
    found = document(workflow)["jobs"][name]
    scope = _contexts(job)
    return _steps(job, found["steps"], scope | {"env": {}}, None)


def run_steps(job: Job, steps: list[dict[str, Any]], contexts: dict[str, Any]) -> Ended:
    """Run steps of the action with these contexts beside those of the job."""
    return _steps(job, steps, _contexts(job) | contexts, ROOT)


def _contexts(job: Job) -> dict[str, Any]:
    return {"github": job.github, "runner": {"temp": str(job.runner)}} | job.contexts


def _steps(job: Job, steps: list[dict[str, Any]], scope: dict[str, Any], action: Path | None) -> Ended:
    """Run steps in order; after a failure only those whose condition asks for that."""
    ended = Ended(0, {}, {})
    for number, step in enumerate(steps):
        assert set(step) <= _STEP_KEYS, f"unknown keys: {set(step) - _STEP_KEYS}"
        done = {name: {"outputs": outputs} for name, outputs in ended.steps.items()}
        status = {"always()": True, "cancelled()": False, "success()": not ended.code, "failure()": bool(ended.code)}
        inner = scope | {"steps": done, "status": status}
        if not _wanted(step.get("if", ""), inner, failed=bool(ended.code)):
            continue
        code, outputs = _step(job, step, inner, action)
        ended.code = ended.code or code
        ended.steps[step.get("id", f"step {number}")] = outputs
    return ended


def _wanted(condition: str, scope: dict[str, Any], *, failed: bool) -> bool:
    """Whether a step runs: its condition holds, with ``success()`` before it where it names no status."""
    text = condition.strip()
    bare = text[3:-2] if text.startswith("${{") and text.endswith("}}") else text
    if failed and not _STATUS.search(bare):
        return False
    return not bare or bool(value(bare, scope))


def _step(job: Job, step: dict[str, Any], scope: dict[str, Any], action: Path | None) -> tuple[int, dict[str, str]]:
    """Run a step: its exit code and its outputs."""
    variables = {name: filled(text, scope) for name, text in step.get("env", {}).items()}
    if "uses" in step:
        given = {name: filled(text, scope) for name, text in step.get("with", {}).items()}
        job.logs.append(f"{step['uses']} {given}")
        return job.uses[step["uses"].partition("@")[0]](given, variables)
    assert "shell" in step or action is None, f"a step of an action names its shell: {step}"
    assert step.get("shell", "bash") == "bash"
    script, told = job.runner / "step.sh", job.runner / "output"
    script.write_text(filled(step["run"], scope), encoding="utf-8")
    told.write_text("")
    place = job.place / filled(step.get("working-directory", "."), scope)
    environment = _environment(job, action, told) | variables
    done = subprocess.run(
        [*BASH, str(script)], cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=HANG
    )
    job.logs.append(done.stdout + done.stderr)
    return done.returncode, _outputs(told.read_text(encoding="utf-8"))


def _environment(job: Job, action: Path | None, told: Path) -> dict[str, str]:
    """What a runner puts into the environment of a step."""
    upper = {f"GITHUB_{name.upper()}": text for name, text in job.github.items() if isinstance(text, str)}
    kept = {name: text for name in ("PATH", "PYTHONPATH", "HOME", "LANG") if (text := os.environ.get(name))}
    files = {"GITHUB_OUTPUT": str(told), "GITHUB_STEP_SUMMARY": str(job.runner / "summary.md")}
    own = {"GITHUB_ACTION_PATH": str(action)} if action else {}
    plain = {name: text for name, text in upper.items() if name != "GITHUB_TOKEN"}  # that one is not a variable
    runner = {"CI": "true", "RUNNER_TEMP": str(job.runner), "GITHUB_WORKSPACE": str(job.place)}
    return kept | plain | files | own | runner | job.environment


def _outputs(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, sign, content = line.partition("=")
        assert sign, f"no output: {line!r}"
        found[name] = content
    return found


def filled(text: str, scope: Mapping[str, Any]) -> str:
    """A text with its expressions in place."""
    return _EXPRESSION.sub(lambda match: _shown(value(match[1], scope)), text)


def _shown(found: str | bool) -> str:
    return found if isinstance(found, str) else str(found).lower()


def value(expression: str, scope: Mapping[str, Any]) -> str | bool:
    """The value of an expression: names, texts, ``== != && || !``, ``startsWith``, and functions of the status."""
    tokens = list(_tokens(_STATUS.sub(lambda match: f"status.{match[0].replace('()', '__')}", expression)))
    found = _either(tokens, scope)
    assert not tokens, f"not understood: {expression!r} at {tokens}"
    return found


_Tokens = list[tuple[str, str]]


def _tokens(text: str) -> _Tokens:
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        assert match, f"not understood: {text!r} at {at}"
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    return found


def _either(tokens: _Tokens, scope: Mapping[str, Any]) -> str | bool:
    found = _both(tokens, scope)
    while tokens[:1] == [("sign", "||")]:
        tokens.pop(0)
        other = _both(tokens, scope)
        found = found or other
    return found


def _both(tokens: _Tokens, scope: Mapping[str, Any]) -> str | bool:
    found = _equal(tokens, scope)
    while tokens[:1] == [("sign", "&&")]:
        tokens.pop(0)
        other = _equal(tokens, scope)
        found = found and other
    return found


def _equal(tokens: _Tokens, scope: Mapping[str, Any]) -> str | bool:
    found = _single(tokens, scope)
    while tokens[:1] in ([("sign", "==")], [("sign", "!=")]):
        _, sign = tokens.pop(0)
        other = _single(tokens, scope)
        assert type(found) is type(other), "GitHub would compare numbers here"
        same = _shown(found).lower() == _shown(other).lower()  # GitHub takes no notice of case
        found = same == (sign == "==")
    return found


def _single(tokens: _Tokens, scope: Mapping[str, Any]) -> str | bool:
    kind, text = tokens.pop(0)
    if (kind, text) == ("sign", "!"):
        return not _single(tokens, scope)
    if (kind, text) == ("sign", "("):
        found = _either(tokens, scope)
        _take(tokens, ")")
        return found
    if kind == "text":
        return text[1:-1].replace("''", "'")
    assert kind == "name", f"not understood: {text!r}"
    return _starts(tokens, scope) if text == "startsWith" else _named(text, scope)


def _starts(tokens: _Tokens, scope: Mapping[str, Any]) -> bool:
    _take(tokens, "(")
    whole = _shown(_either(tokens, scope))
    _take(tokens, ",")
    begin = _shown(_either(tokens, scope))
    _take(tokens, ")")
    return whole.lower().startswith(begin.lower())


def _take(tokens: _Tokens, sign: str) -> None:
    assert tokens.pop(0) == ("sign", sign)


def _named(name: str, scope: Mapping[str, Any]) -> str | bool:
    """What a name stands for; what a step or an event does not have is empty, as on GitHub."""
    context, *words = name.split(".")
    assert context in scope, f"there is no context {context} here"
    found: Any = scope[context]
    for word in words:
        key = word.replace("__", "()") if context == "status" else word
        assert isinstance(found, Mapping) or found == "", f"{name}: not an object"
        assert context not in {"inputs", "status"} or key in found, f"there is no {name}"
        found = found.get(key, "") if isinstance(found, Mapping) else ""
    return found if isinstance(found, bool) else str(found)
