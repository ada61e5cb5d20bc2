"""The outputs of two sides in words."""

import math

import numpy as np

from block_texts import cells, sentences, tables
from opscope.analysis.compare.outputs import Accuracy, compare_samples, compare_single_input, not_compared
from opscope.reports.sections.accuracy import accuracy_section, accuracy_sentences

ACCURACY = (
    "Top-1 accuracy of the baseline 2 of 3 inputs (66.7 %, 95 % interval 9.4 % to 99.2 %), of the candidate 2 of 3 "
    "inputs (66.7 %, 95 % interval 9.4 % to 99.2 %)"
)
NONFINITE = (
    "Output 0 has NaN or infinite values: 1 of 2 in the baseline and 0 in the candidate; 1 value differing between "
    "the sides"
)


def test_a_difference_has_its_number_of_inputs() -> None:
    """And a row for each output."""
    found = compare_single_input([np.array([3.0, 4.0])], [np.array([3.0, 3.0])])
    section = accuracy_section(found)
    assert section is not None
    assert sentences(section)[0] == (
        "Outputs on one input differ: largest difference 1, 25.0 % of the baseline's largest value; "
        "cosine similarity 0.9899."
    )
    (table,) = tables(section)
    assert cells(table) == [["0", "2", "1", "25.0 %", "20.0 %", "0.9899", "0 and 0"]]


def test_equal_outputs_need_no_rows() -> None:
    """Of several inputs."""
    section = accuracy_section(compare_samples([np.eye(3)], [np.eye(3)], np.array([0, 1, 0])))
    assert section is not None
    assert tables(section) == []
    assert sentences(section) == [
        "Outputs on 3 inputs are equal.",
        "Same top-1 class on 3 of 3 inputs (100.0 %, 95 % interval 29.2 % to 100.0 %).",
        f"{ACCURACY}.",
    ]


def test_values_that_are_not_finite_are_told() -> None:
    """With how many of them differ; without any finite one there is no figure."""
    one = compare_single_input([np.array([1.0, math.nan])], [np.array([1.0, 2.0])])
    assert accuracy_sentences(one) == [
        (
            "Outputs on one input differ: largest difference 0, 0.0 % of the baseline's largest value; "
            "cosine similarity 1.000000"
        ),
        NONFINITE,
    ]
    none = compare_single_input([np.array([math.nan])], [np.array([1.0])])
    assert accuracy_sentences(none)[0] == "Outputs on one input: no value is finite on both sides"
    section = accuracy_section(none)
    assert section is not None
    assert cells(tables(section)[0])[0][2] == "not defined"


def test_what_was_not_compared_has_its_reason_and_the_way() -> None:
    """All outputs, or one of them, or the classes."""
    assert accuracy_sentences(not_compared("no seed", "profile it")) == ["Outputs not compared: no seed; profile it"]
    two = compare_single_input([np.ones(2), np.ones(3)], [np.ones(2), np.ones(4)])
    told = "Output 1 not compared: its shape is [3] in the baseline and [4] in the candidate"
    assert told in accuracy_sentences(two)
    image = compare_samples([np.ones((1, 4, 4))], [np.ones((1, 4, 4))], np.array([0]))
    assert accuracy_sentences(image)[-1].startswith("Predicted classes were not compared: the first output has the ")
    assert accuracy_section(None) is None


def test_inputs_that_are_rounded_on_one_side_are_told() -> None:
    """A half precision program takes the same numbers, rounded."""
    found = Accuracy(1, compare_single_input([np.ones(1)], [np.ones(1)]).outputs, note="the same inputs, as float16")
    assert accuracy_sentences(found)[-1] == "The same inputs, as float16"
