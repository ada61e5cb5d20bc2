"""Configurations: what a file says becomes typed experiments, and what it may not say is named by its path."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from opscope.bundle.manifest import Role
from opscope.core.errors import NotFoundError, UsageError
from opscope.experiment.config import Config, template
from opscope.experiment.planned import Experiments, Settings
from opscope.workflows.measure.running import read_experiments

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

THREE = """
model = "toy_cnn"
threads = [1, 2]

[[variants]]
name = "full"

[[variants]]
name = "no-amx"
ablate = ["amx"]

[[variants]]
name = "no-avx512"
ablate = ["avx512"]
threads = 2
"""


def own(text: str, directory: Path) -> Experiments:
    """The experiments of a TOML file of our own."""
    file = directory / "some.toml"
    file.write_text(text)
    return read_experiments(file)


def kit(value: Any, directory: Path, name: str = "kit.json") -> Experiments:
    """The experiments of a configuration of the kit."""
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))
    return read_experiments(file)


def test_a_model_is_all_that_a_file_needs(tmp_path: Path) -> None:
    """Everything else has the defaults of `opscope profile`."""
    (experiment,) = own('model = "toy_cnn"', tmp_path).experiments
    assert (experiment.name, experiment.model, experiment.target) == ("toy_cnn-local", "toy_cnn", "local")
    assert experiment.own() == Settings().own()
    assert (experiment.rounds, experiment.runs, experiment.warmup) == (10, 50, 5)
    assert experiment.variants == ()


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    """The format is told by the file's name."""
    file = tmp_path / "some.json"
    file.write_text(json.dumps(tomllib.loads(THREE)))
    assert read_experiments(file).experiments == own(THREE, tmp_path).experiments


def test_every_model_runs_on_every_target(tmp_path: Path) -> None:
    """Two and two make four experiments, each with a directory of its own."""
    found = own('models = ["toy_cnn", "vit_tiny"]\ntargets = ["local", "native"]', tmp_path).experiments
    assert [e.name for e in found] == ["toy_cnn-local", "toy_cnn-native", "vit_tiny-local", "vit_tiny-native"]


DEVICES = """
models = ["toy_cnn", "vit_tiny"]

[devices.pixel8]
target = "adb:123"

[devices.rpi5]
target = "ssh:pi@rpi5?dir=/data"
"""


def test_every_model_runs_on_every_device(tmp_path: Path) -> None:
    """Experiments have the names of their devices, and no address in theirs."""
    found = own(DEVICES, tmp_path).experiments
    assert [(e.name, e.device, e.target) for e in found] == [
        ("toy_cnn-pixel8", "pixel8", "adb:123"),
        ("toy_cnn-rpi5", "rpi5", "ssh:pi@rpi5?dir=/data"),
        ("vit_tiny-pixel8", "pixel8", "adb:123"),
        ("vit_tiny-rpi5", "rpi5", "ssh:pi@rpi5?dir=/data"),
    ]
    assert not any(e.needs_worker for e in found)


def test_a_device_may_have_two_names(tmp_path: Path) -> None:
    """Each is a directory of its own; that they are one machine is found where they run."""
    text = 'model = "toy_cnn"\ndevices = {one = {target = "local"}, two = {target = "local"}}'
    assert [e.name for e in own(text, tmp_path).experiments] == ["toy_cnn-one", "toy_cnn-two"]


def test_names_of_devices_alone_are_for_workers(tmp_path: Path) -> None:
    """They keep the names that they had, with the kind of target."""
    (one, two) = own('model = "toy_cnn"\ndevices = ["one", "two", "one"]', tmp_path).experiments
    assert [(one.name, one.device), (two.name, two.device)] == [
        ("toy_cnn-local-one", "one"),
        ("toy_cnn-local-two", "two"),
    ]
    assert one.needs_worker


def test_builds_run_on_devices_with_names(tmp_path: Path) -> None:
    """The rules are those of their targets."""
    text = """
    model = "m.pte"
    devices = {a = {target = "ssh:a"}, b = {target = "ssh:b"}}
    variants = [{name = "new", runner = "new"}, {name = "old", runner = "old"}]
    """
    (first, _) = own(text, tmp_path).experiments
    assert [variant.runner for variant in first.variants] == [tmp_path / "new", tmp_path / "old"]
    with pytest.raises(UsageError, match=r"only the target runner, ssh or adb has one"):
        own(text.replace("ssh:b", "local"), tmp_path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """Of programs, runners and the output; a registered name stays a name."""
    text = """
    models = ["toy_cnn", "deep/model.pte"]
    target = "runner"
    out = "results"
    variants = [{name = "a", runner = "builds/a"}]
    """
    found = own(text, tmp_path)
    assert [e.model for e in found.experiments] == ["toy_cnn", str(tmp_path / "deep/model.pte")]
    assert found.experiments[0].variants[0].runner == tmp_path / "builds/a"
    assert found.out == tmp_path / "results"


def test_a_variant_with_several_thread_counts_is_several(tmp_path: Path) -> None:
    """Named with their counts; one with a single count keeps its name."""
    (experiment,) = own(THREE, tmp_path).experiments
    names = ["full-t1", "full-t2", "no-amx-t1", "no-amx-t2", "no-avx512"]
    assert [variant.name for variant in experiment.variants] == names
    assert [variant.threads for variant in experiment.variants] == [1, 2, 1, 2, 2]


def test_without_roles_the_last_step_down_is_the_baseline(tmp_path: Path) -> None:
    """At each thread count: nothing off is accelerated, the last with something off the baseline."""
    (experiment,) = own(THREE, tmp_path).experiments
    assert {v.name: v.role for v in experiment.variants} == {
        "full-t1": Role.ACCELERATED,
        "full-t2": Role.ACCELERATED,
        "no-amx-t1": Role.BASELINE,
        "no-amx-t2": Role.INTERMEDIATE,
        "no-avx512": Role.BASELINE,
    }


def test_comparisons_make_baselines(tmp_path: Path) -> None:
    """What is named as a baseline only is one; a name stands for all its thread counts."""
    text = THREE + '\n[[comparisons]]\nbaseline = "no-amx"\ncandidate = "full"\n'
    found = own(text, tmp_path)
    roles = {v.name: v.role for v in found.experiments[0].variants}
    assert roles["no-amx-t1"] is roles["no-amx-t2"] is Role.BASELINE
    assert roles["no-avx512"] is Role.INTERMEDIATE
    pairs = [(pair.baseline[1], pair.candidate[1]) for pair in found.comparisons]
    assert pairs == [("no-amx-t1", "full-t1"), ("no-amx-t2", "full-t2")]


def test_a_role_that_is_said_counts(tmp_path: Path) -> None:
    """Whatever would be derived."""
    text = 'model = "toy_cnn"\nvariants = [{name = "a", role = "baseline"}, {name = "b", ablate = ["amx"]}]'
    (experiment,) = own(text, tmp_path).experiments
    assert [v.role for v in experiment.variants] == [Role.BASELINE, Role.INTERMEDIATE]


def test_builds_of_a_runner_are_candidates(tmp_path: Path) -> None:
    """Nothing tells what a build can do, least of all its name."""
    text = """
    model = "m.pte"
    target = "runner"
    variants = [{name = "sme2-on", runner = "a"}, {name = "sme2-off", runner = "b"}]
    """
    (experiment,) = own(text, tmp_path).experiments
    assert [v.role for v in experiment.variants] == [Role.CANDIDATE, Role.CANDIDATE]


def test_rounds_may_grow_four_times_unless_said(tmp_path: Path) -> None:
    """And not at all when nothing asks for more."""
    asked = [
        own(f'model = "toy_cnn"\nrounds = 6\n{more}', tmp_path).experiments[0]
        for more in ("", "until = 0.05", "min_seconds = 2\nmax_rounds = 7")
    ]
    assert [one.most_rounds for one in asked] == [6, 24, 7]


V = 'model = "m"\nvariants = [{name = "a"}, {name = "b", ablate = ["avx2"]}]\n'


@pytest.mark.parametrize(
    ("text", "where", "problem", "hint"),
    [
        ("", "model", "missing", "opscope models"),
        ("modle = 'm'", "modle", "no such key", "did you mean model"),
        ("model = ''", "model", '"" is not allowed; expected a text with at least 1', None),
        ("model = 3", "model", "3 is not allowed; expected a text", None),
        ("model = 'm'\nmodels = ['n']", "models", "there is also a key model", None),
        ("model = 'm'\nrounds = 0", "rounds", "0 is not allowed; expected a whole number of at least 1", None),
        ("model = 'm'\nrounds = '6'", "rounds", '"6" is not allowed; expected a whole number', None),
        ("model = 'm'\nrounds = true", "rounds", "true is not allowed; expected a whole number", None),
        ("model = 'm'\nrounds = 6.5", "rounds", "6.5 is not allowed; expected a whole number", None),
        ("model = 'm'\nthreads = []", "threads", "expected a list with at least 1", None),
        (
            "model = 'm'\nthreads = [1, 0]",
            "threads[1]",
            "0 is not allowed; expected a whole number of at least 1",
            None,
        ),
        ("model = 'm'\nthreads = 'all'", "threads", '"all" is not allowed; expected a whole number or a list', None),
        ("model = 'm'\ntimeout = nan", "timeout", "NaN is not allowed; expected a number above 0", None),
        ("model = 'm'\ntimeout = inf", "timeout", "Infinity is not allowed; expected a number of at most", None),
        ("model = 'm'\nwarmup = -1", "warmup", "-1 is not allowed; expected a whole number of at least 0", None),
        ("model = 'm'\nseed = 99999999999999999999", "seed", "is not allowed", None),
        ("model = 'm'\ndtype = 'fp8'", "dtype", "expected one of fp32, fp16, int8", "did you mean"),
        ("model = 'm'\nschema = 'opscope.config/9'", "schema", "expected opscope.config/1", None),
        ("model = 'm'\nladder = 1", "ladder", "1 is not allowed; expected true or false", None),
        ("model = 'm'\nuntil = 1.5", "until", "expected a number of at most 1", None),
        ("model = 'm'\nmax_rounds = 20", "max_rounds", "nothing adds rounds", "until or min_seconds"),
        ("model = 'm'\nuntil = 0.1\nmax_rounds = 9", "max_rounds", "9 is below rounds, which is 10", None),
        ("model = 'm'\nablate = ['avx521']", "ablate[0]", 'unknown feature group "avx521"', "did you mean avx512"),
        ("model = 'm'\nablate = 'avx512'", "ablate", '"avx512" is not allowed; expected a list', None),
        ("model = 'm'\nladder = true\nablate = ['avx2']", "ladder", "chooses what", "leave out ablate"),
        ("model = 'm'\ntarget = 'lokal'", "target", 'no target "lokal"', "did you mean local"),
        ("model = 'm'\ntargets = ['local', 'moon']", "targets[1]", 'no target "moon"', "known"),
        ("model = 'm'\ntarget = 'runner:'", "target", "needs a runner", None),
        ("model = 'm'\ntarget = 'runner:x'", "variants", "missing", None),
        ("model = 'm'\ncomparisons = [{baseline = 'a', candidate = 'b'}]", "comparisons", "no variants", None),
        ("models = ['m', 'm']", "models", "two experiments would be called m-local", None),
        ("model = 'm'\nvariants = [{}]", "variants[0].name", "missing", None),
        ("model = 'm'\n[devices.rpi5]", "devices.rpi5.target", "missing", None),
        ("model = 'm'\n[devices.rpi5]\ntarget = 3", "devices.rpi5.target", "3 is not allowed; expected a text", None),
        ("model = 'm'\n[devices.rpi5]\ntarget = 'moon'", "devices.rpi5.target", 'no target "moon"', "known"),
        ("model = 'm'\n[devices.rpi5]\ntarget = 'ssh:-x'", "devices.rpi5.target", "not a valid ssh host", "ssh:board"),
        ("model = 'm'\n[devices.rpi5]\ntaget = 'local'", "devices.rpi5.taget", "no such key", "did you mean target"),
        ("model = 'm'\n[devices.'a b']\ntarget = 'local'", "devices", '"a b" is not allowed; expected a name', None),
        ("model = 'm'\ndevices = {a = 'ssh:a'}", "devices.a", "expected a table", 'target = "ssh:a"'),
        ("model = 'm'\ndevices = 3", "devices", "3 is not allowed; expected a table or a list", None),
        ("model = 'm'\ntarget = 'ssh:a'\n[devices.a]\ntarget = 'local'", "target", "names its own", "leave out target"),
        ("model = 'm'\n[devices.a]\ntarget = 'runner'", "variants", "missing", None),
        (
            "model = 'm'\nvariants = [{name = '../x'}]",
            "variants[0].name",
            '"../x" is not allowed; expected a name',
            None,
        ),
        ("model = 'm'\nvariants = ['a']", "variants[0]", '"a" is not allowed; expected a table', None),
        (V.replace("ablate", "ablated"), "variants[1].ablated", "no such key", "did you mean ablate"),
        (V.replace("avx2", "avx3"), "variants[1].ablate[0]", 'unknown feature group "avx3"', "did you mean"),
        (V.replace('"b"', '"a"'), "variants[1].name", 'two variants are called "a"', None),
        (
            V.replace('"b",', '"b", role = "base",'),
            "variants[1].role",
            "expected one of accelerated",
            "did you mean baseline",
        ),
        (V.replace('"b",', '"b", affinity = [-1],'), "variants[1].affinity[0]", "-1 is not allowed", None),
        (V.replace('"b",', '"b", runner = "x",'), "variants[1].runner", "only the target runner", None),
        (V + "ladder = true", "ladder", "there are variants", "leave out ladder"),
        (V + "target = 'runner'", "variants[0].runner", "missing", None),
        (V + "target = 'runner:x'", "variants[1].ablate", "fixed when it is built", None),
        (V + "[[comparisons]]\nbaseline = 'bb'\ncandidate = 'a'", "comparisons[0].baseline", 'no variant "bb"', "b?"),
        (V + "[[comparisons]]\nbaseline = 'b'", "comparisons[0].candidate", "missing", None),
        (V.replace(', ablate = ["avx2"]', "") + "until = 0.1", "until", "no variant has a baseline", "comparisons"),
        ("model = 'm", "", "not valid TOML", None),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(
    text: str, where: str, problem: str, hint: str | None, tmp_path: Path
) -> None:
    """The path of the field, what was found, what would do; and the near name where there is one."""
    with pytest.raises(UsageError) as caught:
        own(text, tmp_path)
    file = str(tmp_path / "some.toml")
    assert caught.value.where == (f"{file}: {where}" if where else file)
    assert problem in caught.value.problem
    assert (hint or "") in (caught.value.hint or "")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[", b"[1]", b'{"rounds": ' + b"9" * 30 + b"}", b"[" * 100_000, b"null"]
)
def test_what_is_no_configuration_is_refused(content: bytes, tmp_path: Path) -> None:
    """No text, no JSON, no table, numbers and nesting without end: one sentence each, no traceback."""
    file = tmp_path / "some.json"
    file.write_bytes(content)
    with pytest.raises(UsageError):
        read_experiments(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Names the command that writes one."""
    with pytest.raises(NotFoundError) as caught:
        read_experiments(tmp_path / "none.toml")
    assert "opscope init" in (caught.value.hint or "")


SAID: dict[str, dict[str, Any]] = {
    "local": {"model": "mobilenet_v3_small", "target": "local"},
    "native": {"model": "mobilenet_v3_small", "target": "native"},
    "runner": {"model": "my_model.pte", "target": "runner"},
}


@pytest.mark.parametrize("target", ["local", "native", "runner"])
def test_a_template_parses_back_to_what_it_says(target: str, tmp_path: Path) -> None:
    """The keys that are not behind a #."""
    text = template(target)
    (experiment,) = own(text, tmp_path).experiments
    raw = tomllib.loads(text)
    assert {key: raw[key] for key in SAID[target]} == SAID[target]
    assert Path(experiment.model).name == raw["model"]
    assert experiment.target == raw["target"]
    effort = {name: getattr(experiment, name) for name in ("rounds", "runs", "warmup", "seed")}
    assert effort == {"seed": 0} | {name: raw[name] for name in effort if name in raw}
    assert experiment.timeout == raw["timeout"]
    assert [v.name for v in experiment.variants] == [v["name"] for v in raw.get("variants", [])]
    assert [v.role for v in experiment.variants] == ([Role.ACCELERATED, Role.BASELINE] if target == "runner" else [])


@pytest.mark.parametrize("target", ["local", "native", "runner"])
def test_what_a_template_has_behind_a_hash_is_allowed(target: str, tmp_path: Path) -> None:
    """Each key is one that there is, with a value that it may have."""
    needs = {"max_rounds": "until = 0.1\nrounds = 2", "models": "", "out": ""}
    lines = [line.removeprefix("# ") for line in template(target).splitlines() if re.match(r"# [a-z_]+ = ", line)]
    keys = [line.partition(" = ")[0] for line in lines]
    for key, line in zip(keys, lines, strict=True):
        if key in Config.__struct_fields__:
            model = "" if key == "models" else 'model = "m"'
            own("\n".join([model, needs.get(key, ""), line]), tmp_path)
    assert {"affinity", "until", "max_rounds", "cooldown_seconds", "out"} <= set(keys)


def test_the_published_schema_accepts_the_templates() -> None:
    """And refuses an unknown key."""
    schema = msgspec.json.schema(Config)
    for target in SAID:
        jsonschema.validate(tomllib.loads(template(target)), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": "m", "modle": "m"}, schema)


KIT: dict[str, Any] = {
    "model": "out_toy/artifacts/toy_fp16.pte",
    "output_root": "out_toy/runs/mac",
    "experiments": [
        {
            "name": "mac_sme2_on",
            "runner_path": "executorch/cmake-out/mac-arm64/executor_runner",
            "mode": "timing",
            "runs": 10,
            "warmup": 1,
            "threads": [1, 4],
        },
        {
            "name": "mac_sme2_off",
            "runner_path": "executorch/cmake-out/mac-arm64-sme2-off/executor_runner",
            "mode": "timing",
            "runs": 10,
            "warmup": 1,
            "threads": [1],
        },
    ],
    "analysis": {"compare_pairs": []},
}
PAIR = {
    "baseline": {"experiment": "mac_sme2_off", "threads": 1},
    "candidate": {"experiment": "mac_sme2_on", "threads": 1},
    "label": "SME2",
}


def changed(number: int = 0, **keys: Any) -> dict[str, Any]:
    """The kit's configuration with other keys in one experiment."""
    experiments = [dict(one) for one in KIT["experiments"]]
    experiments[number] |= keys
    return KIT | {"experiments": experiments}


def test_the_kits_configuration_is_read_as_it_is(tmp_path: Path) -> None:
    """Experiments of the same effort become variants of one bundle, one for each thread count."""
    found = kit(KIT, tmp_path)
    (experiment,) = found.experiments
    assert (experiment.name, experiment.target) == ("toy_fp16-runner", "runner")
    assert [v.name for v in experiment.variants] == ["mac_sme2_on_t1", "mac_sme2_on_t4", "mac_sme2_off"]
    roles = [variant.role for variant in experiment.variants]
    assert roles == [Role.CANDIDATE, Role.CANDIDATE, Role.BASELINE]
    assert (experiment.runs, experiment.warmup) == (10, 1)
    assert [note.partition(";")[0] for note in found.notes] == ["no comparison was requested"]


def test_the_kits_comparisons_make_roles(tmp_path: Path) -> None:
    """The baseline of a pair is a baseline."""
    found = kit(KIT | {"analysis": {"compare_pairs": [PAIR]}}, tmp_path)
    roles = {v.name: v.role for v in found.experiments[0].variants}
    assert roles == {
        "mac_sme2_on_t1": Role.CANDIDATE,
        "mac_sme2_on_t4": Role.CANDIDATE,
        "mac_sme2_off": Role.BASELINE,
    }
    assert [(pair.baseline[1], pair.candidate[1], pair.label) for pair in found.comparisons] == [
        ("mac_sme2_off", "mac_sme2_on_t1", "SME2")
    ]


def test_the_kits_paths_are_relative_to_where_it_is_started(tmp_path: Path) -> None:
    """Its own directory, found from the configuration upwards; runners also in its checkout of ExecuTorch."""
    (tmp_path / "out_toy/artifacts").mkdir(parents=True)
    (tmp_path / "out_toy/artifacts/toy_fp16.pte").write_bytes(b"")
    inner = tmp_path / "executorch/cmake-out/mac-arm64/executor_runner"
    inner.parent.mkdir(parents=True)
    inner.write_bytes(b"")
    config = changed(runner_path="cmake-out/mac-arm64/executor_runner")
    found = kit(config, tmp_path, "model_profiling/configs/kit.json")
    base = tmp_path.resolve()
    assert found.experiments[0].model == str(base / "out_toy/artifacts/toy_fp16.pte")
    assert found.out == base / "out_toy/runs/mac"
    assert found.experiments[0].variants[0].runner == base / "executorch/cmake-out/mac-arm64/executor_runner"
    assert found.experiments[0].variants[2].runner == base / KIT["experiments"][1]["runner_path"]


def test_the_kits_defaults(tmp_path: Path) -> None:
    """100 runs after 10 at one thread, timed, into results beside the artifacts; quiet_runner is another word."""
    found = kit({"model": "a/artifacts/m.pte", "experiments": [{"name": "x", "quiet_runner": "r"}]}, tmp_path)
    (experiment,) = found.experiments
    assert (experiment.runs, experiment.warmup, experiment.evidence) == (100, 10, False)
    assert experiment.variants[0].threads == 1
    assert found.out == Path("a/results")


def test_the_kits_masks_of_cpus(tmp_path: Path) -> None:
    """Hexadecimal with or without 0x, as taskset reads them."""
    for mask, cpus in (("0x80", (7,)), ("f0", (4, 5, 6, 7)), (80, (7,)), (None, ()), ("", ())):
        found = kit(changed(cpu_affinity=mask), tmp_path)
        assert tuple(found.experiments[0].variants[0].affinity) == cpus


def test_the_kits_trace_runs_are_apart(tmp_path: Path) -> None:
    """An xnntrace experiment is evidence, never timed, and runs the verbose runner that its arguments name."""
    arguments = ["--verbose-runner", "verbose/executor_runner", "--no-output", "--method_name=forward"]
    found = kit(changed(1, mode="xnntrace", extra_args=arguments), tmp_path)
    timed, trace = found.experiments
    assert (timed.evidence, trace.evidence) == (False, True)
    assert trace.name == "toy_fp16-xnntrace"
    assert trace.variants[0].runner == Path("verbose/executor_runner")
    assert trace.variants[0].arguments == ("--method_name=forward",)
    assert found.notes == ("experiments[1].extra_args: options of the kit's perf_runner.py are ignored",)


def test_the_kits_experiments_of_other_effort_are_bundles_of_their_own(tmp_path: Path) -> None:
    """Rounds have one number of runs; a comparison across bundles is still asked for."""
    found = kit(changed(1, runs=20) | {"analysis": {"compare_pairs": [PAIR]}}, tmp_path)
    assert [e.name for e in found.experiments] == ["toy_fp16-runner-10-after-1", "toy_fp16-runner-20-after-1"]
    (pair,) = found.comparisons
    assert pair.baseline == ("toy_fp16-runner-20-after-1", "mac_sme2_off")
    assert pair.candidate == ("toy_fp16-runner-10-after-1", "mac_sme2_on_t1")


def test_keys_that_the_kit_does_not_know_are_noted(tmp_path: Path) -> None:
    """The kit passes over them, so we do, and say so."""
    found = kit(changed(thread=[8]) | {"_comment": "mine", "output_rot": 1}, tmp_path)
    assert found.notes[:2] == (
        "output_rot has no effect; did you mean output_root?",
        "experiments[0].thread has no effect; did you mean threads?",
    )


@pytest.mark.parametrize(
    ("config", "where", "problem"),
    [
        ({"experiments": [{"name": "a"}]}, "model", "missing"),
        ({"model": "m.pte", "experiments": []}, "experiments", "expected a list with at least 1"),
        ({"model": "m.pte", "experiments": {}}, "experiments", "expected a list"),
        ({"model": "m.pte", "experiments": [{"runner_path": "r"}]}, "experiments[0].name", "missing"),
        (changed(runner_path=None), "experiments[0].runner_path", "missing"),
        (changed(mode="xtrace"), "experiments[0].mode", "expected one of timing, xnntrace"),
        (changed(threads=[0]), "experiments[0].threads[0]", "0 is not allowed"),
        (changed(runs=0), "experiments[0].runs", "0 is not allowed"),
        (changed(1, name="mac_sme2_on_t4"), "experiments[1].name", "two experiments"),
        (changed(cpu_affinity="cpu7"), "experiments[0].cpu_affinity", '"cpu7" is not a mask'),
        (changed(cpu_affinity="0"), "experiments[0].cpu_affinity", '"0" is not a mask'),
        (
            KIT | {"analysis": {"compare_pairs": [PAIR | {"baseline": {"experiment": "off", "threads": 1}}]}},
            "analysis.compare_pairs[0].baseline.experiment",
            'no timing experiment "off"',
        ),
        (
            KIT | {"analysis": {"compare_pairs": [PAIR | {"candidate": {"experiment": "mac_sme2_on", "threads": 2}}]}},
            "analysis.compare_pairs[0].candidate.threads",
            "2 is not allowed; mac_sme2_on runs with 1, 4",
        ),
    ],
)
def test_what_is_wrong_in_the_kits_file_is_named(config: Any, where: str, problem: str, tmp_path: Path) -> None:
    """By the path of the field, as in ours."""
    with pytest.raises(UsageError) as caught:
        kit(config, tmp_path)
    assert caught.value.where == f"{tmp_path / 'kit.json'}: {where}"
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".".join("a" * 200_000) + " = 1", "nested too deeply"),
        ("[" + ".".join("a" * 200_000) + "]", "nested too deeply"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("models = [" + '"a",' * 1_001 + "]", "a list with at most 1000"),
        (
            'variants = [{name = "v"}]\ntargets = ["local", "native"]\nthreads = ['
            + ",".join(map(str, range(1, 65)))
            + "]\nmodels = ["
            + ",".join(f'"m{number}"' for number in range(1_000))
            + "]",
            r"2,000 experiments \(models x targets x devices\) of 64 variants each exceed 10,000",
        ),
    ],
    ids=["dotted key", "dotted table", "brackets", "many models", "matrix"],
)
def test_keys_that_are_too_deep_or_ask_for_too_much_are_refused_at_once(
    text: str, message: str, tmp_path: Path
) -> None:
    """Before time and memory grow with the square of what stands there."""
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_experiments(file)


def test_a_deep_file_of_json_is_refused(tmp_path: Path) -> None:
    """As one of TOML is."""
    file = tmp_path / "c.json"
    file.write_text('{"a":' * 100_000)
    with pytest.raises(UsageError, match="nested too deeply"):
        read_experiments(file)
