"""Inputs as a user names them, against what a program declares."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from opscope.core.errors import NotFoundError, TraceFormatError, UsageError
from opscope.experiment.inputs import (
    AskedInput,
    MadeInputs,
    TensorRecipe,
    make_inputs,
    order_inputs,
    parse_input,
    read_input_file,
)
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.plan import Dynamism, ListKind, PlannedTensor, ValueList


def tensor(*sizes: int, dtype: str = "float32", dynamism: Dynamism = Dynamism.STATIC) -> PlannedTensor:
    """An input that a program declares."""
    return PlannedTensor(
        NumberType(dtype, 32), sizes, tuple(range(len(sizes))), dynamism, 0, planned=False, name="", external=False
    )


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("float32[1,3]", TensorRecipe("float32", (1, 3), "random")),
        ("float32[]=ones", TensorRecipe("float32", (), "ones")),
        ("int64[1, 16]=random(0, 100)", TensorRecipe("int64", (1, 16), "random", (0, 100))),
        ("int64[4]=range", TensorRecipe("int64", (4,), "range")),
        ("int64[]=16000", TensorRecipe("int64", (), 16000)),
        ("bool[2]=true", TensorRecipe("bool", (2,), 1)),
        ("random(0,9)", TensorRecipe(None, None, "random", (0, 9))),
        ("ones", TensorRecipe(None, None, "ones")),
        ("5", 5),
        ("-0.5", -0.5),
        ("true", True),
        ("none", None),
    ],
)
def test_words(text: str, wish: object) -> None:
    """Each form of the grammar."""
    assert parse_input(text) == AskedInput(text, wish)  # type: ignore[arg-type]
    assert parse_input("default") is None
    for name in ("tokens", "images:0", "past_key_values.0.key"):
        assert parse_input(f"{name}={text}") == AskedInput(f"{name}={text}", wish, name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "float32", "float32[a]", "float33[1]", "int64[1]=random(3,1)", "int64[1]=noise", "int8[99999,99999]"]
)
def test_other_words_are_refused(text: str) -> None:
    """Each with a hint."""
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert caught.value.hint


def made(declared: list[object], *words: str) -> MadeInputs:
    """Inputs for a program from words."""
    return make_inputs(declared, [parse_input(word) for word in words], 0)  # type: ignore[arg-type]


def test_values_are_as_asked() -> None:
    """Ranges count, bounds hold, a number fills a tensor without dimensions, and what is not asked for is random."""
    declared = [
        tensor(4, dtype="int64"),
        tensor(100, dtype="int64"),
        tensor(2, 2),
        tensor(dtype="float32"),
        3,
        tensor(3),
    ]
    found = made(declared, "int64[4]=range", "int64[100]=random(5,8)", "float32[2,2]=zeros", "0.5", "3")
    assert found.arrays[0].tolist() == [0, 1, 2, 3]
    assert set(found.arrays[1].tolist()) == {5, 6, 7}
    assert not found.arrays[2].any()
    assert found.arrays[3] == np.float32(0.5)
    assert sorted(found.arrays) == [0, 1, 2, 3, 5]
    assert [one.source for one in found.planned][-2:] == ["3", ""]


def test_a_number_or_a_filling_takes_the_declared_sizes() -> None:
    """Of a tensor, unless they are open; and it has to be a number of its type."""
    found = made([tensor(2, 3), tensor(2, dtype="int64"), tensor(4, dtype="int64")], "2.5", "random(7,8)", "range")
    assert [found.arrays[number].tolist() for number in range(3)] == [[[2.5] * 3] * 2, [7, 7], [0, 1, 2, 3]]
    assert [(one.shape, one.dtype) for one in found.planned] == [([2, 3], "float32"), ([2], "int64"), ([4], "int64")]
    for declared, word, problem in (
        (tensor(2, dtype="int8"), "300", "300 is not of type int8"),
        (tensor(2, dtype="int64"), "0.5", "0.5 is not of type int64"),
        (tensor(1, dynamism=Dynamism.UNBOUNDED), "5", "sizes"),
    ):
        with pytest.raises(UsageError, match=problem):
            made([declared], word)


def test_inputs_by_their_names() -> None:
    """Names in any order, beside inputs by their place; one that no input has, or that is given twice, is refused."""
    names = ["image", "mask", "step"]
    words = [parse_input(word) for word in ("step=3", "float32[2]", "mask=ones")]
    assert [one.source if one else "" for one in order_inputs(words, names)] == ["float32[2]", "mask=ones", "step=3"]
    assert order_inputs([parse_input("step=3")], names)[:2] == [None, None]
    for asked, problem in ((["masc=1"], "masc"), (["1", "2", "mask=1"], "twice"), (["mask=1", "mask=2"], "twice")):
        with pytest.raises(UsageError, match=problem):
            order_inputs([parse_input(word) for word in asked], names)
    with pytest.raises(UsageError, match="'mask'"):
        order_inputs([parse_input("mask=1")], ["", ""])


def test_arrays_go_by_name_where_all_names_are_those_of_inputs() -> None:
    """Else by the order of the file, as ever."""
    arrays = [AskedInput(f"{name} of f.npz", np.zeros(2), name) for name in ("mask", "image")]
    assert [one.source[:4] for one in order_inputs(arrays, ["image", "mask"]) if one] == ["imag", "mask"]
    assert [one.source[:4] for one in order_inputs(arrays, ["picture", "mask"]) if one] == ["mask", "imag"]


def test_fixed_sizes_beside_open_ones_are_held() -> None:
    """What the model fixes cannot be asked for otherwise."""
    declared = msgspec.structs.replace(tensor(1, 8, dynamism=Dynamism.UNBOUNDED), symbols=("batch", ""))
    assert made([declared], "float32[4,8]").planned[0].shape == [4, 8]
    with pytest.raises(UsageError, match=r"takes float32\[batch,8\]"):
        made([declared], "float32[4,9]")


def test_without_a_wish_nothing_is_planned() -> None:
    """Tensors only: as it always was, drawn from the seed by the runner."""
    assert made([tensor(2), tensor(3)]) == MadeInputs([], {})


def test_a_list_is_refused() -> None:
    """No runner can be given one."""
    with pytest.raises(UsageError, match="input 0 is a list"):
        made([ValueList(ListKind.TENSORS, ())])


def test_arrays_by_position_and_by_order(tmp_path: Path) -> None:
    """Numbered arrays stand for the inputs of their numbers, named ones for the inputs in the order of the file."""
    numbered, named = tmp_path / "numbered.npz", tmp_path / "named.npz"
    np.savez(numbered, arr_2=np.ones(2), arr_0=np.zeros(3))
    np.savez(named, mask=np.ones(2), data=np.zeros(3))
    assert [one.source if one else "" for one in read_input_file(numbered)] == [
        "arr_0 of numbered.npz",
        "",
        "arr_2 of numbered.npz",
    ]
    assert [one.source for one in read_input_file(named) if one] == ["mask of named.npz", "data of named.npz"]


def test_files_that_are_none(tmp_path: Path) -> None:
    """Absent, no archive, and one with Python objects, which are never loaded."""
    with pytest.raises(NotFoundError):
        read_input_file(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "object.npz", np.array([object()], dtype=object))
    for name in ("text.npz", "object.npz"):
        with pytest.raises(TraceFormatError):
            read_input_file(tmp_path / name)
