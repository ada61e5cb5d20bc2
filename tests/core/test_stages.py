"""What long work is at reaches who listens in its thread, and nobody else."""

from __future__ import annotations

import contextlib
import threading

from opscope.core.system.stages import enter, heard_by


def test_a_stage_reaches_the_listener_of_its_block() -> None:
    """With its steps, in order; before and after the block nobody hears."""
    told: list[tuple[str, str]] = []
    enter("before")
    with heard_by(lambda stage, detail: told.append((stage, detail))):
        enter("exporting net")
        enter("exporting net", "lowering")
    enter("after")
    assert told == [("exporting net", ""), ("exporting net", "lowering")]


def test_an_inner_listener_takes_over_for_its_block() -> None:
    """None leaves the outer one; an error ends the block as well."""
    outer: list[str] = []
    inner: list[str] = []
    with heard_by(lambda stage, _: outer.append(stage)):
        with heard_by(None):
            enter("first")
        with contextlib.suppress(ZeroDivisionError), heard_by(lambda stage, _: inner.append(stage)):
            enter("second")
            divmod(1, len(inner) - 1)
        enter("third")
    assert (outer, inner) == (["first", "third"], ["second"])


def test_threads_are_told_apart() -> None:
    """Experiments side by side each have a listener, or none."""
    told: dict[str, list[str]] = {"one": [], "two": []}

    def work(name: str) -> None:
        with heard_by(lambda stage, _: told[name].append(stage)):
            enter(f"running {name}")

    threads = [threading.Thread(target=work, args=(name,)) for name in told]
    with heard_by(lambda stage, _: told["one"].append(f"main {stage}")):
        threads += [threading.Thread(target=enter, args=("unheard",))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert told == {"one": ["running one"], "two": ["running two"]}
