"""The server of ``opscope mcp``: tools by the Model Context Protocol on standard input and output.

It holds what the SDK needs and nothing of what the tools do. Tools run in threads, those that read one at a time and
those that run programs one at a time. A call that is cancelled, or whose client is gone, ends the processes it started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.assistants import tools
from opscope.assistants.roots import Roots
from opscope.assistants.tools import Desk, ToolAnswer
from opscope.core.errors import InterruptedRunError, MissingDependencyError, OpscopeError, UsageError, did_you_mean
from opscope.core.install import install_command
from opscope.core.system.stop import StopRequest
from opscope.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Json: TypeAlias = Any
    """A document of any shape."""
    Sdk: TypeAlias = Any
    """What the SDK has types for; it is an extra, and may be absent."""

_EXTRA = "mcp"
_MANY_PROGRESS = 1_000
_LOOKS_EVERY_SECONDS = 0.02


class Tool(NamedTuple):
    """A tool: what it takes and what it does; its description is the docstring of that."""

    arguments: type[msgspec.Struct]
    call: Callable[[Any, Desk], ToolAnswer]
    runs: bool = False  # whether it runs programs, and so is there with --allow-run alone


TOOLS: dict[str, Tool] = {
    "list_bundles": Tool(tools.ListBundles, tools.list_bundles),
    "read_bundle": Tool(tools.ReadBundle, tools.read_bundle),
    "analyze_trace": Tool(tools.AnalyzeTrace, tools.analyze_trace),
    "find_operators": Tool(tools.FindOperators, tools.find_operators),
    "compare": Tool(tools.Compare, tools.compare),
    "check": Tool(tools.CheckMeasured, tools.check),
    "preflight": Tool(tools.PreflightProgram, tools.preflight),
    "count": Tool(tools.CountProgram, tools.count, runs=True),
    "profile": Tool(tools.ProfileProgram, tools.profile, runs=True),
    "tune": Tool(tools.TuneProgram, tools.tune, runs=True),
}
_INSTRUCTIONS = (
    "opscope tells where the time of an on-device model goes. Begin with list_bundles and read_bundle, or with "
    "analyze_trace. Times are in ns per inference and shares are of the latency. Trust the grade of a measurement: "
    "do_not_trust means measure again."
)


def schema_of(kind: type[msgspec.Struct]) -> Json:
    """The JSON Schema of a Struct, with an object at its top.

    Its title and docstring are left out: an assistant reads all schemas before its first question.
    """
    (_,), parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    own = {name: value for name, value in parts.pop(kind.__name__).items() if name not in {"title", "description"}}
    return {**own, "$defs": parts} if parts else own


def arguments_of(tool: Tool, given: Json) -> msgspec.Struct:
    """The arguments of a call.

    Raises UsageError: they are not what its schema says.
    """
    try:
        return msgspec.convert(given or {}, type=tool.arguments)
    except msgspec.ValidationError as error:
        names = ", ".join(tool.arguments.__struct_fields__)
        raise UsageError(str(error), where="arguments", hint=f"known: {names}; see the input schema") from None


def serve(roots: Sequence[Path], *, allow_run: bool) -> None:
    """Serve on standard input and output until the client is gone.

    ``roots``: directories that may be seen; ``allow_run``: whether programs may be run.

    Raises MissingDependencyError: the SDK is not installed; NotFoundError: a root is no directory; InterruptedRunError:
    Ctrl-C, or the request to end.
    """
    desk = Roots(roots)
    try:
        import anyio
        import mcp_types  # noqa: F401 - it must be there: version 1 of the SDK has none
        from mcp.server.lowlevel import Server  # noqa: F401 - likewise
    except ImportError:
        problem = "the Python SDK of the Model Context Protocol (mcp, from 2 on) is not installed"
        raise MissingDependencyError(problem, hint=install_command(_EXTRA)) from None
    with _ended_by_signals() as ended:
        anyio.run(_Server(desk, allow_run=allow_run).run)
    if ended.is_set():
        raise InterruptedRunError("terminated by a signal")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[threading.Event]:
    """Let a signal end the input: a thread that reads it could not be woken, and would keep the process.

    The input is copied into a pair of sockets, of which a signal ends the writing side.
    """
    source, ended, (read, write) = os.dup(0), threading.Event(), socket.socketpair()
    os.dup2(read.fileno(), 0)
    read.close()

    def close() -> None:
        with contextlib.suppress(OSError):  # it was closed before, or its reader is gone
            write.shutdown(socket.SHUT_WR)

    def copied() -> None:
        with contextlib.suppress(OSError):
            while part := os.read(source, 1 << 16):
                write.sendall(part)
        close()

    def end(_number: int, _frame: object) -> None:
        ended.set()
        close()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    threading.Thread(target=copied, daemon=True).start()
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server:
    """The tools, and what their calls share."""

    def __init__(self, roots: Roots, *, allow_run: bool) -> None:
        import anyio

        self._roots, self._allow_run = roots, allow_run
        self._tools = {name: tool for name, tool in TOOLS.items() if allow_run or not tool.runs}
        self._turns = {False: anyio.Lock(), True: anyio.Lock()}

    async def run(self) -> None:
        """Serve until the client is gone."""
        from mcp.server.lowlevel import Server
        from mcp.server.stdio import stdio_server

        server: Sdk = Server(
            "opscope",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    async def _list_tools(self, _context: Sdk, _params: Sdk) -> Sdk:
        import mcp_types as types

        return types.ListToolsResult(tools=[_described(name, tool) for name, tool in self._tools.items()])

    async def _call_tool(self, context: Sdk, params: Sdk) -> Sdk:
        try:
            tool = self._tool(params.name)
            arguments = arguments_of(tool, params.arguments)
            async with self._turns[tool.runs]:
                answer = await self._called(tool, arguments, context.session)
        except OpscopeError as error:
            return _refused(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end the server
            traceback.print_exc(file=sys.stderr)
            text = f"a bug in opscope ({type(error).__name__}: {error}); the server printed where"
            return _refused(OpscopeError(text, hint="report it; other tools are unaffected"))
        return _result(msgspec.to_builtins(answer), wrong=False)

    def _tool(self, name: str) -> Tool:
        if name in self._tools:
            return self._tools[name]
        if name in TOOLS:
            raise UsageError("it runs programs", where=name, hint="start the server with --allow-run")
        raise UsageError("no such tool", where=name[:100], hint=did_you_mean(name[:100], self._tools))

    async def _called(self, tool: Tool, arguments: msgspec.Struct, session: Sdk) -> ToolAnswer:
        """Call a tool in a thread, tell the client how far it is, and stop it when the call is cancelled."""
        import anyio

        lines, heard = anyio.create_memory_object_stream[str](_MANY_PROGRESS)
        work = _Work(tool, arguments, lambda line: anyio.from_thread.run_sync(_sent, lines, line))
        async with lines, heard, anyio.create_task_group() as group:
            group.start_soon(_reported, heard, session, time.monotonic())
            try:
                await anyio.to_thread.run_sync(work.run, self._desk(work), abandon_on_cancel=True)
            except anyio.get_cancelled_exc_class():
                work.stop.ask()
                with anyio.CancelScope(shield=True):
                    while work.begun.is_set() and not work.ended.is_set():  # noqa: ASYNC110 - a thread sets it
                        await anyio.sleep(_LOOKS_EVERY_SECONDS)
                raise
            lines.close()
        return work.answer()

    def _desk(self, work: _Work) -> Desk:
        return Desk(self._roots, self._allow_run, work.stop, work.tell)


class _Work:
    """A call of a tool, in a thread."""

    def __init__(self, tool: Tool, arguments: msgspec.Struct, tell: Callable[[str], None]) -> None:
        self.stop, self.tell, self.begun, self.ended = StopRequest(), tell, threading.Event(), threading.Event()
        self._tool, self._arguments = tool, arguments
        self._answer: ToolAnswer | None = None
        self._error: BaseException | None = None

    def run(self, desk: Desk) -> None:
        """Do it, and keep what comes of it: an exception of another thread must not end the loop."""
        self.begun.set()
        try:
            self._answer = self._tool.call(self._arguments, desk)
        except BaseException as error:  # noqa: BLE001 - given on by `answer`
            self._error = error
        finally:
            self.ended.set()

    def answer(self) -> ToolAnswer:
        """What came of it; it raises what the tool raised."""
        if isinstance(self._error, KeyboardInterrupt):
            raise InterruptedRunError("stopped", hint="what was finished is kept")
        if self._error is not None:
            raise self._error
        assert self._answer is not None  # noqa: S101 - what ends without an error answers
        return self._answer


def _sent(lines: Sdk, line: str) -> None:
    import anyio

    with contextlib.suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
        lines.send_nowait(line)


async def _reported(heard: Sdk, session: Sdk, began: float) -> None:
    """Tell the client each line, with the seconds since the call began; a client that did not ask hears nothing."""
    async for line in heard:
        await session.report_progress(round(time.monotonic() - began, 3), message=line)


def _described(name: str, tool: Tool) -> Sdk:
    import mcp_types as types

    return types.Tool(
        name=name,
        description=" ".join((tool.call.__doc__ or "").split()),
        input_schema=schema_of(tool.arguments),
        output_schema=schema_of(ToolAnswer),
        annotations=types.ToolAnnotations(read_only_hint=not tool.runs, destructive_hint=False, open_world_hint=False),
    )


def _refused(error: OpscopeError) -> Sdk:
    """An error as the command line tells it: problem, place, hint, exit code."""
    told = {"error": str(error), "hint": error.hint, "exit_code": error.exit_code}
    return _result(told, wrong=True)


def _result(document: Json, *, wrong: bool) -> Sdk:
    import mcp_types as types

    text = types.TextContent(type="text", text=msgspec.json.encode(document).decode())
    return types.CallToolResult(content=[text], structured_content=document, is_error=wrong)
