"""What MODEL names, and the user's own directory of models; nothing here needs torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opscope.analysis.preflight.exported import ExportedFile, ExportRecord
from opscope.api import export, write_model
from opscope.core.errors import BundleError, NotFoundError, OverwriteError, UsageError
from opscope.core.files import sha256_of
from opscope.core.json import to_json
from opscope.runtimes.executorch.export.foreign import file_module
from opscope.runtimes.executorch.export.registry import user_models
from opscope.runtimes.executorch.export.sources import SourceKind, source_of
from opscope.runtimes.exports import Choice, check_choice


@pytest.mark.parametrize(
    ("text", "kind", "place", "target", "name"),
    [
        ("toy_cnn", SourceKind.REGISTERED, "toy_cnn", "", "toy_cnn"),
        ("package.nets:make_net", SourceKind.MODULE, "package.nets", "make_net", "make_net"),
        ("transformers:LlamaConfig", SourceKind.TRANSFORMERS, "transformers", "LlamaConfig", "llama"),
        ("executorch:resnet8", SourceKind.EXECUTORCH, "executorch", "resnet8", "resnet8"),
    ],
)
def test_what_a_text_names(text: str, kind: SourceKind, place: str, target: str, name: str) -> None:
    """Told without importing anything."""
    assert source_of(text) == (kind, place, target, name)


def test_a_file_is_named_with_or_without_its_callable(tmp_path: Path) -> None:
    """Without one the file tells when it is imported, and the model is called like it, as with ``build``."""
    file = tmp_path / "my net.py"
    file.write_text("")
    assert source_of(str(file)) == (SourceKind.FILE, str(file), "", "my_net")
    assert source_of(f"{file}:build") == (SourceKind.FILE, str(file), "build", "my_net")
    assert source_of(f"{file}:small") == (SourceKind.FILE, str(file), "small", "small")


def test_a_model_of_the_directory_is_found_by_its_name(tmp_path: Path) -> None:
    """Files that define or import ``build``; what they share is none, and what cannot be read is listed with that."""
    files = {
        "mine.py": '"""Two layers.\n\nMore."""\nraise SystemExit("never run")\ndef build(): ...\n',
        "imported.py": "from mine import build",
        "given.py": "build = None",
        "shared.py": "class Base: ...",
        "_shared.py": "def build(): ...",
        "broken.py": "def build(:",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert [name for name, _ in user_models(tmp_path)] == ["broken", "given", "imported", "mine"]
    assert source_of("mine", tmp_path).origin == str(tmp_path / "mine.py")
    assert dict(user_models(tmp_path))["mine"] == "Two layers."
    with pytest.raises(NotFoundError, match="no model '_shared'"):
        source_of("_shared", tmp_path)


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("toy_cn", NotFoundError, "did you mean toy_cnn"),
        ("model.pte", NotFoundError, "opscope profile"),
        ("nowhere.py:build", NotFoundError, "init --model"),
        ("not a module:f", UsageError, "MODULE:CALLABLE"),
        ("module:", UsageError, "MODULE:CALLABLE"),
    ],
)
def test_what_names_nothing_is_refused_with_what_to_try(text: str, error: type[Exception], told: str) -> None:
    """Before any process starts."""
    with pytest.raises(error) as raised:
        source_of(text)
    assert told in (raised.value.hint or "")


def test_the_template_is_written_once(tmp_path: Path) -> None:
    """It is never overwritten, and names of registered models are kept free."""
    file = write_model("my_net", tmp_path / "new")
    compile(file.read_text(), str(file), "exec")
    assert user_models(file.parent)[0][1].startswith("my net: ")
    with pytest.raises(BundleError, match="left unchanged"):
        write_model("my_net", tmp_path / "new")
    for name in ("toy_cnn", "1st", "a-b", "_x", "../up"):
        with pytest.raises(UsageError):
            write_model(name, tmp_path / "new")


@pytest.fixture
def kit_layout(tmp_path: Path) -> Iterator[Path]:
    """A model of the Arm kit: packages with relative imports, below a directory that is none."""
    names = set(sys.modules)
    models = tmp_path / "model_profiling" / "kit_models"
    (models / "my_model").mkdir(parents=True)
    (models / "model_base.py").write_text("class Base: ...\n")
    (models / "__init__.py").write_text("from .model_base import Base\nREGISTRY = {}\n")
    (models / "my_model" / "__init__.py").write_text("from .model import MyModel\nfrom .. import REGISTRY\n")
    (models / "my_model" / "model.py").write_text("from ..model_base import Base\nclass MyModel(Base): ...\n")
    path = list(sys.path)
    yield models / "my_model"
    sys.path[:] = path
    for name in set(sys.modules) - names:
        if name.startswith("kit_models"):
            del sys.modules[name]


@pytest.mark.runtime
def test_a_file_in_a_package_is_imported_with_its_packages(kit_layout: Path) -> None:
    """Relative imports find what they mean, and packages run once."""
    module = file_module(kit_layout / "model.py")
    assert module.__name__ == "kit_models.my_model.model"
    assert sys.modules["kit_models.my_model"].MyModel is module.MyModel
    assert sys.modules["kit_models"].REGISTRY == {}


@pytest.mark.runtime
def test_a_package_is_named_by_its_directory(kit_layout: Path) -> None:
    """It is called like the class; a directory without a package is no model."""
    source = source_of(f"{kit_layout}:MyModel")
    assert (source.kind, source.name) == (SourceKind.FILE, "MyModel")
    assert file_module(Path(source.origin)).MyModel.__mro__[1].__name__ == "Base"
    with pytest.raises(UsageError, match="not a model name"):
        source_of(f"{kit_layout.parent.parent}:MyModel")


@pytest.mark.runtime
def test_directories_without_init_are_packages_as_far_as_the_dots_lead(kit_layout: Path) -> None:
    """The kit's own documents leave the files out; too many dots are refused."""
    for file in kit_layout.parent.rglob("__init__.py"):
        file.unlink()
    assert file_module(kit_layout / "model.py").MyModel.__mro__[1].__name__ == "Base"
    (kit_layout / "lost.py").write_text(f"from {'.' * 99}x import y\n")
    with pytest.raises(UsageError, match="go up 99 directories"):
        file_module(kit_layout / "lost.py")


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (Choice("int4"), "int8"),
        (Choice("fp32", "xnpack"), "xnnpack"),
        (Choice("int8", "portable"), "--backend xnnpack"),
        (Choice("dynamic-int8", "portable"), "--backend xnnpack"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(choice: Choice, told: str) -> None:
    """Unknown names get near ones; a backend without a quantiser says which one has it."""
    with pytest.raises(UsageError) as raised:
        check_choice(choice)
    assert told in (raised.value.hint or "")


def test_a_place_that_is_taken_is_refused_before_anything_is_exported(tmp_path: Path) -> None:
    """A file, a directory with other things, an export without leave to replace it; each stays as it is."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "export.json").write_text("{}")
    for name, told in (("file", "is a file"), ("other", "not empty"), ("export", "already holds an export")):
        with pytest.raises(BundleError, match=told):
            export("toy_cnn", out=tmp_path / name)
    with pytest.raises(UsageError, match="several files"):
        export("toy_cnn", out=tmp_path / "toy_cnn.pte")
    with pytest.raises(UsageError, match="not a tolerance"):
        export("toy_cnn", out=tmp_path / "new", tolerance=-1.0)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["file", "other", "notes.txt", "export", "export.json"]
    )


def _link(program: Path) -> None:
    program.rename(program.parents[1] / "m.pte")
    program.symlink_to(program.parents[1] / "m.pte")


@pytest.mark.parametrize(
    "change",
    [
        lambda program: program.with_name("notes.txt").write_text("mine"),
        lambda program: program.write_bytes(b"mine"),
        _link,
    ],
    ids=["another file", "an edited program", "a link"],
)
def test_what_an_export_did_not_write_is_not_replaced(change: Callable[[Path], object], tmp_path: Path) -> None:
    """With --overwrite neither: the record says which files are the export's, and their hashes."""
    place, program = tmp_path / "out", tmp_path / "out" / "m.pte"
    place.mkdir()
    program.write_bytes(b"x")
    own = ExportedFile("m.pte", sha256_of(program), 1)
    record = ExportRecord("0", "", "m", "m", "fp32", "xnnpack", own, None, own, [], {}, "1.5.1")
    (place / "export.json").write_bytes(to_json(record))
    change(program)
    before = {path: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(OverwriteError, match="was changed after the export"):
        export("toy_cnn", out=place, overwrite=True)
    assert {path: path.read_bytes() for path in place.iterdir()} == before


def test_the_list_names_all_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[int, str]]
) -> None:
    """Registered models, those of the directory, ExecuTorch's with what they need; names are plain text."""
    (tmp_path / "mine.py").write_text('"""A net\x1b[31m in red."""\ndef build(): ...\n')
    monkeypatch.setenv("OPSCOPE_MODELS", str(tmp_path))
    code, told = run("models")
    assert code == 0
    assert "decoder_tiny" in told
    assert "mine " in told
    assert "\x1b" not in told
    assert "with torchvision: dl3" in told
