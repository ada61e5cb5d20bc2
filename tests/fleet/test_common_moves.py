"""What series that moved at the same time have in common: device, model, or all of them."""

from __future__ import annotations

from opscope.fleet.analysis.common_moves import CommonMove, MoveKind, SeriesMove, common_moves, run_facts


def series(moved: str, models: int = 4, devices: int = 4) -> list[SeriesMove]:
    """One for each model on each device; ``moved`` lists those that rose, as model and device: "00 10"."""
    return [
        SeriesMove(
            f"model {model}", f"phone {device}", 1.2 if up else 1.0, int(up), {"commit": "a"}, {"commit": "ab"[up]}
        )
        for model in range(models)
        for device in range(devices)
        for up in [f"{model}{device}" in moved.split()]
    ]


def told(moves: list[CommonMove]) -> list[tuple[MoveKind, str, int, int]]:
    """Which moves, and of how many series."""
    return [(move.kind, move.name, move.moved, move.series) for move in moves]


def test_most_series_of_one_device_or_model() -> None:
    """Three of four are most, two are not; what changed with them is told."""
    (move,) = common_moves(series("00 10 20"))
    assert told([move]) == [(MoveKind.DEVICE, "phone 0", 3, 4)]
    assert (move.ratio, move.elsewhere_moved, move.elsewhere) == (1.2, 0, 12)
    assert [(fact.name, fact.before, fact.after, fact.moved, fact.stayed) for fact in move.facts] == [
        ("commit", "a", "b", 3, 0)
    ]
    assert told(common_moves(series("00 01 02"))) == [(MoveKind.MODEL, "model 0", 3, 4)]
    assert common_moves(series("00 10")) == []


def test_one_model_on_one_device_is_neither() -> None:
    """Several figures of it are one thing that moved, however many they are: it takes two models or two devices."""
    figures = [one for one in series("00") for _ in range(3)]
    own = [one for one in figures if one.device != "phone 0" or one.direction]
    assert common_moves(own) == []
    beside = [one._replace(model="model 9") if number == 0 else one for number, one in enumerate(own)]
    assert told(common_moves(beside)) == [(MoveKind.DEVICE, "phone 0", 3, 3)]


def test_what_moved_elsewhere_too_is_not_the_doing_of_a_device() -> None:
    """Three of twelve other series are a quarter, which is few; four are not."""
    assert told(common_moves(series("00 10 20 01 12 23"))) == [(MoveKind.DEVICE, "phone 0", 3, 4)]
    assert common_moves(series("00 10 20 01 12 23 31")) == []


def test_more_than_half_of_all_are_the_fleet() -> None:
    """When it is neither a device nor a model; half of them are not."""
    half = "00 11 22 33 01 12 23 30"
    assert common_moves(series(half)) == []
    assert told(common_moves(series(f"{half} 02"))) == [(MoveKind.FLEET, "", 9, 16)]


def test_rises_come_before_falls() -> None:
    """Each is judged by itself."""
    falls = [one._replace(direction=-one.direction, ratio=1 / one.ratio) for one in series("00 10 20")]
    rises = [one._replace(device=f"tablet {one.device[-1]}") for one in series("00 10 20 30")]
    found = common_moves([*falls, *rises], "today")
    assert told(found) == [(MoveKind.DEVICE, "tablet 0", 4, 4), (MoveKind.DEVICE, "phone 0", 3, 4)]
    assert {move.label for move in found} == {"today"}


def test_each_package_is_a_fact() -> None:
    """Text that is no table of versions stays text."""
    assert run_facts({"versions": '{"torch": "2"}'})["versions.torch"] == "2"
    assert run_facts({"versions": "?"})["versions"] == "?"
    assert run_facts({}).keys() == run_facts({"versions": None}).keys()
