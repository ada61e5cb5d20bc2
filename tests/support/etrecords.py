"""ETRecords of a few nodes, written as the exporter writes them."""

from __future__ import annotations

import io
import json
import zipfile

MARK = "ETRECORD_V0"


GRAPH = "edge_dialect_exported_program/forward"


TRACE = 'File "net.py", line 30, in forward\n    x = self.stem(x)\n  File "conv.py", line 5, in forward'


STACK = "L__self__,,net.Net;L__self__stem,stem.0,torch.nn.Conv2d"


def named(name: str) -> dict:
    """A tensor as an argument."""
    return {"as_tensor": {"name": name}}


def node(target: str = "torch.ops.aten.relu.default", inputs: tuple = (), **metadata: object) -> dict:
    """An operator of a graph."""
    arguments = [{"name": "x", "arg": argument} for argument in inputs]
    return {"name": "relu", "target": target, "inputs": arguments, "outputs": [named("relu")], "metadata": metadata}


def graph(*nodes: dict, **tensors: dict) -> dict:
    """An exported program as JSON."""
    body = {"inputs": [], "outputs": [], "nodes": list(nodes), "tensor_values": tensors, "sym_int_values": {}}
    return {"graph_module": {"graph": body, "signature": {}}, "schema_version": {"major": 5}, "dialect": "EDGE"}


def archive(members: dict[str, object], method: int = zipfile.ZIP_STORED) -> bytes:
    """An ETRecord with these members, texts and bytes as they are and everything else as JSON."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as file:
        for name, content in {MARK: "", **members}.items():
            # a fixed time, so that the same members are the same bytes
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            file.writestr(info, content if isinstance(content, str | bytes) else json.dumps(content))
    return stream.getvalue()


SMALL = archive(
    {
        GRAPH: graph(
            node(debug_handle="1", stack_trace=TRACE, nn_module_stack=STACK),
            x={"dtype": 7, "sizes": [{"as_int": 1}, {"as_int": 3}]},
        ),
        "debug_handle_map": {"forward": {"0": [1]}},
        "delegate_map": {"forward": {"0": {"name": "XnnpackBackend", "delegate_map": {}}}},
        "instruction_id_to_num_outs_map": {"forward": {"0": 1}},
    }
)
