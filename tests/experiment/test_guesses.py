"""Inputs that nobody gave: usual sizes by names, types and dimensions, and values that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from opscope.core.errors import UsageError
from opscope.experiment.guesses import USUAL_INPUTS, guess_inputs, input_words, with_dimensions
from opscope.experiment.inputs import make_inputs, parse_input
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.plan import Dynamism, PlannedTensor

if TYPE_CHECKING:
    from opscope.program.structure.plan import NamedValue


def declared(text: str) -> NamedValue:
    """An input as a model declares it: ``name=float32[batch,3,?,8]``."""
    name, _, rest = text.partition("=")
    dtype, _, inner = rest.removesuffix("]").partition("[")
    words = [word for word in inner.split(",") if word]
    symbols = tuple("" if word.isdecimal() else word for word in words)
    is_open = any(symbols) or inner == "..."
    return name, PlannedTensor(
        NumberType(dtype, 32),
        tuple(int(word) if word.isdecimal() else 1 for word in words) if inner != "..." else (),
        (),
        Dynamism.UNBOUNDED if is_open else Dynamism.STATIC,
        0,
        planned=False,
        name=name,
        external=False,
        symbols=symbols if any(symbols) and inner != "..." else (),
    )


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("images=float32[batch,3,height,width]", "images=float32[1,3,224,224]"),
        ("images=float32[?,?,?,3]", "images=float32[1,224,224,3]"),
        ("x=float32[?,3,48,?]", "x=float32[1,3,48,224]"),
        ("clip=float32[N,3,T,H,W]", "clip=float32[1,3,1,224,224]"),
        ("audio=float32[samples]", "audio=float32[16000]"),
        ("input=float32[?,?]", "input=float32[1,128]"),
        ("features=float32[1,time,80]", "features=float32[1,100,80]"),
        ("anything=float32[...]", "anything=float32[1,3,224,224]"),
        (
            "wave=float32[batch,samples] state=float32[2,batch,128] sr=int64[]",
            "wave=float32[1,16000] state=float32[2,1,128] sr=int64[]=16000",
        ),
        (
            "waves=float32[batch_size,N] waves_lens=int64[batch_size]",
            "waves=float32[1,16000] waves_lens=int64[1]=16000",
        ),
        (
            "input_ids=int64[b,s] attention_mask=int64[b,past+s] token_type_ids=int64[b,s] past.0=float32[b,4,past,8]",
            (
                "input_ids=int64[1,128]=random(0,100) attention_mask=int64[1,144]=ones "
                "token_type_ids=int64[1,128]=zeros past.0=float32[1,4,16,8]"
            ),
        ),
        ("scale=float32[3] use_cache=bool[1]", "scale=float32[3] use_cache=bool[1]=zeros"),
    ],
)
def test_what_names_and_dimensions_tell(inputs: str, words: str) -> None:
    """All of them as one line, which asks for the same when it is given back."""
    own = [declared(text) for text in inputs.split()]
    found = guess_inputs(own, [], {}, {})
    line = input_words(own, found)
    assert line == words.split()
    back = make_inputs([value for _, value in own], [parse_input(word) for word in line], 0)
    assert [one.shape for one in back.planned] == [
        one.shape for one in make_inputs([value for _, value in own], found, 0).planned
    ]


def test_what_is_known_goes_before_a_guess() -> None:
    """Sizes that were given, inputs that were asked for, tables that are known; every style of sizes has its own."""
    own = [declared(text) for text in ("ids=int64[batch,tokens]", "image=float32[batch,3,h,w]", "step=int32[1]")]
    asked = [None, parse_input("zeros"), parse_input("step=7")]
    found = guess_inputs(own, asked, {"tokens": 9, "h": 64}, {"ids": 30_522})
    assert input_words(own, found) == ["ids=int64[1,9]=random(0,30522)", "image=float32[1,3,64,224]=zeros", "step=7"]
    shapes = {input_words(own, guess_inputs(own, [], {}, {}, usual))[1] for usual in USUAL_INPUTS}
    assert len(shapes) == len(USUAL_INPUTS)


def test_sizes_by_their_symbols() -> None:
    """Inputs whose symbols all have numbers are known, with what fills them; others stay open."""
    own = [declared(text) for text in ("a=float32[batch,n]", "b=int64[batch]", "c=float32[batch,m]", "d=float32[2]")]
    found = with_dimensions(own, [None, parse_input("range")], {"batch": 2, "n": 5})
    assert [one.source if one else "" for one in found] == ["a=float32[2,5]", "b=int64[2]=range", "", ""]
    with pytest.raises(UsageError) as caught:
        with_dimensions(own, [], {"bach": 2})
    assert "batch" in caught.value.hint
    with pytest.raises(UsageError, match="'h'"):
        with_dimensions([declared("x=float32[1,?]")], [], {"h": 2})
