"""Which reader reads a file: by its first bytes, built-in readers first, other packages' after them."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from opscope.core.errors import EmptyTraceError, NotFoundError, StorageError, TraceFormatError
from opscope.core.system.memory import file_bytes
from opscope.readers.registry import Reader, read_trace, reader_for, readers
from opscope.runtimes.executorch.etdump import EtdumpReader
from traces import etdump

TRACE = "Method::execute 100"


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """An installed package with a reader for files that start with OTHER, once as a class and once as an object."""
    site = tmp_path / "site"
    information = site / "opscope_test_format-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: opscope-test-format\nVersion: 1.0\n")
    points = "[opscope.readers]\nanother = opscope_test_format:OtherReader\nready = opscope_test_format:READY\n"
    points += "absent = opscope_test_format_absent:Reader\n"
    (information / "entry_points.txt").write_text(points)
    (site / "opscope_test_format.py").write_text(
        dedent("""
        class OtherReader:
            name = "other"

            def sniff(self, head):
                return head.startswith(b"OTHER")

            def read(self, data, path):
                raise NotImplementedError

        READY = OtherReader()
        """)
    )
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("opscope_test_format", None)


def test_a_trace_is_read_by_the_reader_that_knows_it(tmp_path):
    """The events, and the name of the format; the file's own name does not matter."""
    path = tmp_path / "trace.bin"
    path.write_bytes(etdump(TRACE))
    events, format_name, *_ = read_trace(path)
    assert (events.frame["name"].to_list(), format_name) == (["Method::execute"], "etdump")


def test_the_etdump_reader_is_built_in():
    """It is listed by an entry point like any other."""
    assert [type(reader) for reader in readers() if reader.name == "etdump"] == [EtdumpReader]


def test_every_reader_keeps_the_protocol():
    """A name, a sniff, a read."""
    assert all(isinstance(reader, Reader) for reader in readers())


@pytest.mark.usefixtures("other_package")
def test_other_packages_add_readers_behind_the_built_in_ones():
    """As a class or as an object."""
    names = [reader.name for reader in readers()]
    assert names[0] == "etdump"
    assert names.count("other") == 2


@pytest.mark.usefixtures("other_package")
def test_a_file_goes_to_the_package_that_knows_it():
    """The built-in reader declines it."""
    assert reader_for(b"OTHER...", Path("trace.bin")).name == "other"


@pytest.mark.usefixtures("other_package")
def test_an_unknown_format_lists_the_known_ones():
    """Those of other packages too."""
    with pytest.raises(TraceFormatError, match="unrecognised format") as caught:
        reader_for(b"neither", Path("trace.bin"))
    assert caught.value.where == "trace.bin"
    assert "etdump" in caught.value.hint
    assert "other" in caught.value.hint


@pytest.mark.usefixtures("other_package")
def test_a_package_that_cannot_be_loaded_keeps_no_file_from_being_read():
    """It is left out, and named with its problem only when nothing else knows the file."""
    assert reader_for(b"OTHER...", Path("trace.bin")).name == "other"
    assert "other" in [reader.name for reader in readers()]
    with pytest.raises(TraceFormatError) as caught:
        reader_for(b"neither", Path("trace.bin"))
    assert (
        "reader absent (opscope_test_format_absent:Reader) cannot be loaded: ModuleNotFoundError" in caught.value.hint
    )


@pytest.mark.parametrize("head", [b"", b"E", b"PK\x03\x04", b"\0" * 64, b"ED00ED00"[:4]])
def test_other_files_are_not_recognised(head):
    """Whatever they are."""
    with pytest.raises(TraceFormatError, match="unrecognised format"):
        reader_for(head, Path("trace.bin"))


def test_a_file_without_bytes_is_an_empty_trace(tmp_path):
    """It says that the run failed or that its runtime cannot trace."""
    path = tmp_path / "trace.etdump"
    path.touch()
    with pytest.raises(EmptyTraceError, match="is empty") as caught:
        read_trace(path)
    assert caught.value.where == str(path)
    assert "event tracing" in caught.value.hint


def test_a_missing_file_is_not_found(tmp_path):
    """It is named."""
    with pytest.raises(NotFoundError, match="no such file") as caught:
        read_trace(tmp_path / "absent.etdump")
    assert caught.value.where == str(tmp_path / "absent.etdump")


def test_a_directory_cannot_be_read(tmp_path):
    """It is a mistake of the user, not an error inside."""
    with pytest.raises(StorageError, match="cannot be read") as caught:
        file_bytes(tmp_path)
    assert caught.value.where == str(tmp_path)


def test_a_name_below_a_file_is_refused(tmp_path):
    """A path through a file that is no directory."""
    (tmp_path / "file").touch()
    with pytest.raises((StorageError, NotFoundError)):
        file_bytes(tmp_path / "file" / "trace.etdump")
