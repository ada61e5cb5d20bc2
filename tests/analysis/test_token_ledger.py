"""The ledger of a token: what belongs where, what adds up, what bounds a call, and how decoding grows."""

from __future__ import annotations

import pytest

from fakes import round_ceilings
from opscope.analysis.latency.latency import latency_of
from opscope.analysis.latency.methods import MethodTime
from opscope.analysis.operators.operators import FRAMEWORK_BACKEND, Operator, OperatorFacts
from opscope.analysis.roofline import OperatorWork
from opscope.analysis.tokens.ledger import ByteUse, TokenLedger, TokenLimit, token_ledgers
from opscope.analysis.tokens.parts import Place, TokenPart, place_of
from opscope.core.table.places import OperatorKey
from opscope.program.ceilings import KernelClass
from opscope.program.cost.cache import CacheUse
from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.kinds import Attribution, Category
from opscope.program.phases import phase_of

METHOD = "decode_at_10"


def operator(
    number: int | None = 0,
    module: str | None = None,
    kind: str = "linear",
    category: Category = Category.GEMM,
    **changes: object,
) -> Operator:
    """An operator that ran once in each call, with changes."""
    framework = kind == "framework"
    known = {
        "method": METHOD,
        "instruction": number,
        "position": None if framework else 0,
        "name": "Fully Connected (NC, F32) GEMM",
        "category": category,
        "kind": kind,
        "backend": FRAMEWORK_BACKEND if framework else "XnnpackBackend",
        "calls": 1.0,
        "time_ns": None,
        "share": 0.0,
        "traced_ns": 0.0,
        "handles": [],
        "module": module,
        "attribution": Attribution.EXACT,
        "dtype": "fp32",
    }
    lacking = {field: None for field in Operator.__struct_fields__ if field not in known}
    lists = {"computes": [], "fused": [], "candidates": [], "uncertainty_ns": 0.0, "activation": False}
    return Operator(**{**lacking, **lists, **known, **changes})


@pytest.mark.parametrize(
    ("module", "kind", "category", "place"),
    [
        ("network.tok_embeddings", "gather", Category.DATA_MOVEMENT, Place(None, TokenPart.EMBEDDING)),
        ("network.layers.3.attention.wq", "linear", Category.GEMM, Place(3, TokenPart.PROJECTIONS)),
        ("network.layers.3.attention.SDPA", "attention", Category.GEMM, Place(3, TokenPart.ATTENTION)),
        ("network.layers.3.attention.SDPA", "layout", Category.DATA_MOVEMENT, Place(3, TokenPart.COPIES)),
        ("network.layers.0.attention_norm", "reduction", Category.OTHER, Place(0, TokenPart.NORMS)),
        ("network.layers.0.feed_forward.w1", "linear", Category.GEMM, Place(0, TokenPart.FEED_FORWARD)),
        (
            "network.layers.0.attention.rope.apply_rotary_emb",
            "arithmetic",
            Category.ELEMENTWISE,
            Place(0, TokenPart.ATTENTION),
        ),
        ("network.layers.0", "arithmetic", Category.ELEMENTWISE, Place(0, TokenPart.OTHER)),
        ("network.output", "linear", Category.GEMM, Place(None, TokenPart.HEAD)),
        ("model.layers.12.attn.q_proj", "linear", Category.GEMM, Place(12, TokenPart.PROJECTIONS)),
        ("model.layers.12.mlp.down_proj", "linear", Category.GEMM, Place(12, TokenPart.FEED_FORWARD)),
        ("model.layers.12.input_layernorm", "norm", Category.OTHER, Place(12, TokenPart.NORMS)),
        ("model.layers.12.final_norm_layernorm", "norm", Category.OTHER, Place(None, TokenPart.NORMS)),
        ("lm_head", "linear", Category.GEMM, Place(None, TokenPart.HEAD)),
        ("module.2.atten_func.qkv_projection", "linear", Category.GEMM, Place(2, TokenPart.PROJECTIONS)),
        ("module.2.atten_func", "matmul", Category.GEMM, Place(2, TokenPart.ATTENTION)),
        ("module.2.ff.w2", "linear", Category.GEMM, Place(2, TokenPart.FEED_FORWARD)),
        (None, "linear", Category.GEMM, Place(None, TokenPart.OTHER)),
    ],
)
def test_a_path_tells_the_part(module: str | None, kind: str, category: Category, place: Place) -> None:
    """Of the exporters of three runtimes."""
    assert place_of(operator(0, module, kind, category), None) == place


def test_what_an_operator_does_with_a_cache_says_more_than_its_path() -> None:
    """Writing is part of the cache, reading is attention."""
    writes = CacheUse(reads=False, places=64, place_bytes=256, place_macs=0, tokens=1)
    reads = CacheUse(reads=True, places=64, place_bytes=512, place_macs=32, tokens=1)
    path = "network.layers.1.attention.SDPA"
    assert place_of(operator(0, path, "copy", Category.DATA_MOVEMENT), writes) == Place(1, TokenPart.CACHE)
    assert place_of(operator(0, path, "attention"), reads) == Place(1, TokenPart.ATTENTION)


def test_a_cache_is_used_up_to_the_position() -> None:
    """Each token with those before it and its own; never more than is allocated."""
    one = CacheUse(reads=True, places=64, place_bytes=512, place_macs=32, tokens=1)
    assert (one.used(10), one.bytes(10), one.macs(10)) == (11, 11 * 512, 11 * 32)
    assert one.used(200) == 64
    prompt = CacheUse(reads=True, places=64, place_bytes=512, place_macs=32, tokens=4)
    assert prompt.macs(0) == 32 * (1 + 2 + 3 + 4)
    assert CacheUse(reads=False, places=64, place_bytes=512, place_macs=0, tokens=4).bytes(10) == 4 * 512


def method(name: str, processes: list[list[int]], traced: list[list[int]] | None = None) -> MethodTime:
    """A method with these untraced calls of each process."""

    def of(source: str, each: list[list[int]]) -> object:
        return latency_of(source, each, [[]] * len(each), [None] * len(each))

    return MethodTime(
        method=name,
        calls=sum(map(len, processes)),
        share=1.0,
        latency=of("untraced", processes),
        traced=of("traced", traced) if traced else None,
        categories=[],
        phase=phase_of(name),
        tokens_per_second=None,
        tokens_ci95=None,
    )


KEY = OperatorKey(METHOD, 0, 0)
COST = Cost(macs=1_000_000, flops=2_000_000, read_bytes=4_000, written_bytes=4_000, weight_bytes=4_000_000)
WORK = OperatorWork(
    method=METHOD,
    instruction=0,
    position=0,
    name="Fully Connected (NC, F32) GEMM",
    dtype="f32",
    kernel=KernelClass.GEMV,
    macs=1_000_000,
    activation_bytes=8_000,
    weight_bytes=4_000_000,
    time_ns=1.0,
)


def ledger(*, traced: int = 500_000) -> TokenLedger:
    """A product that reads 4 MB, an attention, and the framework: 80, 10 and 10 % of the traced call."""
    rows = [
        operator(0, "network.layers.0.feed_forward.w1", share=0.8, weights="fp32", shape=(1, 1, 1000)),
        operator(1, "network.layers.0.attention.SDPA", "attention", name="custom_sdpa", share=0.1, shape=(1, 1, 4, 8)),
        operator(None, None, "framework", Category.OTHER, name="OPERATOR_CALL", share=0.1),
    ]
    cache = CacheUse(reads=True, places=64, place_bytes=512, place_macs=64, tokens=1)
    facts = {KEY: OperatorFacts(cost=COST), OperatorKey(METHOD, 1, 0): OperatorFacts(cache=cache)}
    own = method(METHOD, [[450_000] * 5] * 3, [[traced] * 5] * 3)
    (found,) = token_ledgers(rows, [own], {KEY: WORK}, facts, round_ceilings())
    return found


def test_rows_add_up_to_the_call() -> None:
    """What tracing adds, 50 us of 500, is the framework's own time: its 50 us."""
    found = ledger()
    assert (found.time_ns, found.timed) == (450_000, True)
    assert found.factor == pytest.approx(500 / 450)
    assert sum(row.time_ns or 0.0 for row in found.rows) == pytest.approx(450_000)
    times = {row.part: row.time_ns for row in found.rows}
    assert times[TokenPart.FEED_FORWARD] == pytest.approx(400_000)
    assert times[TokenPart.ATTENTION] == pytest.approx(50_000)
    assert times[TokenPart.FRAMEWORK] == pytest.approx(0)
    assert sum(row.share for row in found.rows) == pytest.approx(1)


def test_a_traced_call_that_is_shorter_leaves_the_rest_to_the_framework() -> None:
    """Copies and the caller's own time are in the call and in no event."""
    found = ledger(traced=400_000)
    times = {row.part: row.time_ns for row in found.rows}
    assert times[TokenPart.FEED_FORWARD] == pytest.approx(320_000)
    assert times[TokenPart.FRAMEWORK] == pytest.approx(40_000 + 50_000)
    assert sum(row.time_ns or 0.0 for row in found.rows) == pytest.approx(450_000)


def test_a_call_that_tracing_doubles_has_shares_only() -> None:
    """No time is invented for its rows, and no limit."""
    found = ledger(traced=1_000_000)
    assert not found.timed
    assert {row.time_ns for row in found.rows} == {None}
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert (found.limits, found.bound) == ([], None)


def test_bytes_are_counted_by_use() -> None:
    """A million weights of 32 bits, eleven places of the cache, what passes between operators."""
    found = {(one.use, one.dtype): one.bytes for one in ledger().bytes}
    assert found[ByteUse.WEIGHTS, "float32"] == 4_000_000
    assert found[ByteUse.CACHE, "float32"] == 11 * 512
    assert ByteUse.SCALES not in {use for use, _ in found}


def test_weights_bound_a_call_whose_time_is_reading_them() -> None:
    """40 MB at the bandwidth outside of caches, which is what the ceilings say; nothing is explained twice."""
    ceilings = round_ceilings()
    facts = {KEY: OperatorFacts(cost=Cost(10_000_000, 20_000_000, 4_000, 4_000, 40_000_000))}
    rows = [operator(0, "network.layers.0.feed_forward.w1", share=1.0, weights="fp32", shape=(1, 1, 1000))]
    (found,) = token_ledgers(rows, [method(METHOD, [[2_000_000]])], {KEY: WORK}, facts, ceilings)
    bandwidth = ceilings.bandwidth(40_000_000)
    assert bandwidth is not None
    assert found.bound is TokenLimit.WEIGHTS
    assert found.limits[0].time_ns == pytest.approx(40e6 / bandwidth * 1e9, rel=0.01)
    assert sum(one.time_ns for one in found.limits) == pytest.approx(2_000_000)
    (row,) = found.rows
    assert row.bandwidth is not None
    assert row.bandwidth.low == pytest.approx(found.limits[0].share, rel=0.01)
    assert found.weights_per_s == bandwidth


def test_a_write_between_operators_of_a_layer_is_of_that_layer() -> None:
    """Its own record names no module."""
    rows = [
        operator(0, "network.layers.2.attention.wk", share=0.4),
        operator(1, None, "copy", Category.DATA_MOVEMENT, name="llama::update_cache.out", share=0.2),
        operator(2, "network.layers.2.attention.SDPA", "attention", share=0.4),
    ]
    (found,) = token_ledgers(rows, [method(METHOD, [[100]])], {}, {}, None)
    assert [(row.layer, row.part) for row in found.rows] == [
        (2, TokenPart.PROJECTIONS),
        (2, TokenPart.ATTENTION),
        (2, TokenPart.CACHE),
    ]


def test_no_phase_has_no_ledger() -> None:
    """A method of an image model."""
    assert token_ledgers([operator()], [method("decode", [[100]])], {}, {}, None) == []
