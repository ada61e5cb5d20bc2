"""Language models as ExecuTorch exports them: the operators that they need, and where in the cache they decode."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from exports import record_of
from opscope.api import Settings, profile
from opscope.core.errors import ExportError, MissingDependencyError, UsageError
from opscope.runtimes.executorch.xnnpack import read_xnn_graphs

pytestmark = [
    pytest.mark.nightly,  # exports language models
    pytest.mark.runtime,
    pytest.mark.filterwarnings("ignore"),
]  # torch warns of itself
CACHED = Path(__file__).parents[2] / "support" / "cached_attention.py"
MODELS = CACHED.with_name("failing_models.py")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a cache and custom attention."""
    directory = tmp_path_factory.mktemp("cached")
    return directory / record_of(directory, f"{CACHED}:cached").program.name


def test_custom_attention_runs_with_features_on_and_off(program: Path, tmp_path: Path) -> None:
    """The library that has it links the backend, and is loaded when features are off: the proof holds for each run."""
    settings = Settings(target="local", rounds=1, runs=2, warmup=0, ceilings=False)
    done = profile(str(program), settings=settings, out=tmp_path / "out")
    manifest = done.content.manifest
    assert manifest.failures() == []
    proofs = [repetition.measurement.mask for repetition in manifest.repetitions]
    assert all(proof.same_symbol and not proof.backend_loaded_before for proof in proofs)
    assert {bool(proof.cleared) for proof in proofs} == {True, False}
    names = {operator.name for operator in done.content.shown.operators}
    assert {"llama::custom_sdpa.out", "llama::update_cache.out"} <= names


def test_a_model_is_run_by_what_has_its_kernels_once_it_is_exported(tmp_path: Path) -> None:
    """Which kernels it calls is known then; a target that was named is kept, and what it lacks is told."""
    settings = Settings(rounds=1, runs=1, warmup=0, ceilings=False, untraced=False)
    done = profile(f"{CACHED}:cached", settings=settings, out=tmp_path / "out")
    manifest = done.content.manifest
    assert (manifest.target.kind, manifest.status.value, manifest.failures()) == ("local", "complete", [])
    assert "kernels of llama come with executorch's Python package alone" in (manifest.left_out.runner or "")
    with pytest.raises(MissingDependencyError, match="does not register llama"):
        profile(f"{CACHED}:cached", settings=replace(settings, target="native"), out=tmp_path / "native")


def test_attention_keeps_to_the_threads_of_the_run(program: Path) -> None:
    """Its products are computed by torch's library, whose threads the runtime's pool does not limit."""
    code = (
        "import sys, torch\n"
        "from opscope.runtimes.executorch.kernel_libraries import extra_kernels\n"
        "from pathlib import Path\n"
        "kernels = [one.module for one in extra_kernels(Path(sys.argv[1]))]\n"
        "from opscope.experiment.protocol import AS_IT_IS, Job, RunRequest\n"
        "from opscope.runtimes.child import run_program\n"
        "from opscope.runtimes.executorch.runners.child import PteRun\n"
        "job = Job(program=sys.argv[1], variant=AS_IT_IS, inferences=1, seed=0, timeout_seconds=600)\n"
        "run_program(PteRun, RunRequest(job=job, trace=None, outputs=None, answer='', kernels=kernels), 0)\n"
        "print('threads', torch.get_num_threads())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(program)], capture_output=True, text=True, check=False)
    assert re.search(r"threads (\d+)", done.stdout + done.stderr)[1] == "1", done.stderr  # type: ignore[index]


def test_weights_of_four_bits_agree_with_pytorch(tmp_path: Path) -> None:
    """All of the linear layer goes to XNNPACK, with activations that are quantised at run time."""
    (tmp_path / "wide.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def build():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)), (torch.randn(4, 64),)\n"
    )
    record = record_of(tmp_path / "out", str(tmp_path / "wide.py"), "8da4w")
    (method,) = record.methods
    assert method.agrees
    assert method.graph is not None
    assert method.delegation.share == 1.0
    assert method.method.quantised > 0
    assert record.dtype == "8da4w"


def test_weights_of_four_bits_need_whole_groups(tmp_path: Path) -> None:
    """A layer of eight inputs has no group of 32, which is said with what to do instead."""
    with pytest.raises(ExportError, match="multiple of 32") as raised:
        record_of(tmp_path, f"{MODELS}:linear", "8da4w")
    assert "dynamic-int8" in str(raised.value.hint)


def test_no_token_lays_out_the_whole_cache(tmp_path: Path) -> None:
    """Transpositions that undo each other are taken out, as ``export_llm`` does."""
    (tmp_path / "tiny.py").write_text(
        "from opscope.runtimes.executorch.export.models.llama import SHAPE, random_llama\n\n"
        "def build():\n    return random_llama(SHAPE | {'n_layers': 1}, context=48, prompt=4, positions=(9,))\n"
    )
    record = record_of(tmp_path / "out", str(tmp_path / "tiny.py"))
    graphs = read_xnn_graphs(tmp_path / "out" / record.program.name)
    assert graphs
    dims = [value.dims for one in graphs for value in one.graph.values if not value.is_constant]
    assert not [own for own in dims if 48 in own]


def test_a_llama_decodes_behind_every_position() -> None:
    """Each position is a method of its own; they share weights and no cache."""
    import torch

    from opscope.runtimes.executorch.export.models.llama import SHAPE, random_llama

    model = random_llama(SHAPE | {"n_layers": 1}, context=32, prompt=4, positions=(4, 9))
    assert {name: method.tokens for name, method in model.methods.items()} == {
        "prefill": 4,
        "decode_at_4": 1,
        "decode_at_9": 1,
    }
    networks = {name: method.module for name, method in model.methods.items()}
    assert len({id(weight) for network in networks.values() for weight in network.parameters()}) == len(
        list(networks["prefill"].parameters())
    )
    with torch.no_grad():
        scores = {name: method.module(*method.inputs) for name, method in model.methods.items()}
    assert all(torch.isfinite(found).all() for found in scores.values())
    caches = {
        name: [
            value.abs().sum((0, 2, 3)).nonzero().flatten().tolist()
            for key, value in network.named_buffers()
            if key.endswith("k_cache")
        ]
        for name, network in networks.items()
    }
    assert caches == {"prefill": [[0, 1, 2, 3]], "decode_at_4": [[4]], "decode_at_9": [[9]]}
    with pytest.raises(UsageError, match="too many"):
        random_llama(SHAPE, context=32, prompt=4, positions=(32,))
