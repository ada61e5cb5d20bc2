"""Help in two sizes: what most people need with ``--help``, and everything with ``--help-all``.

An option that is not common is ``hidden``, and ``rich_help_panel`` is the group that it stands in.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperCommand, TyperOption

from opscope.core.grouping import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer._click import Context, HelpFormatter, Parameter

_ALL = "opscope.help_all"
_EXAMPLE = "Example:"
_MOST_EXAMPLES = 2


class HelpCommand(TyperCommand):
    """A command that shows its common options in groups, and all of them when asked."""

    def __init__(self, *words: Any, **settings: Any) -> None:  # noqa: ANN401 - typer's settings, passed on
        super().__init__(*words, **settings)
        self.has_more = any(isinstance(one, TyperOption) and one.hidden for one in self.params)
        self.params.append(_help_all(shown=self.has_more))

    def format_help_text(self, ctx: Context, formatter: HelpFormatter) -> None:
        """What the command does: with ``--help-all`` every paragraph, else what it is, examples and one more."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(paragraphs if self._is_whole(ctx) else _short(paragraphs)))

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """The arguments, then the options by group."""
        shown = list(self._shown(ctx))
        for heading, parameters in grouped(shown, _heading).items():
            records = [record for one in parameters if (record := one.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        """What it runs that is not opscope's; in short, whether anything."""
        formatter.write_paragraph()
        with formatter.indentation():
            notice = self.epilog or ""
            formatter.write_text(notice if self._is_whole(ctx) else f"{notice.partition(':')[0].rstrip('.')}.")

    def _is_whole(self, ctx: Context) -> bool:
        return bool(ctx.meta.get(_ALL)) or not self.has_more

    def _shown(self, ctx: Context) -> Iterator[Parameter]:
        for one in self.get_params(ctx):
            if isinstance(one, TyperOption) and one.hidden and one.name != "help_all" and self._is_whole(ctx):
                one = copy.copy(one)  # noqa: PLW2901 - the same option, shown
                one.hidden = False
            yield one


def _help_all(*, shown: bool) -> TyperOption:
    return TyperOption(
        param_decls=["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=not shown,
        callback=_show_all,
        help="Show all options and exit.",
    )


def _show_all(ctx: Context, _option: Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        from opscope.cli.output import say

        for line in ctx.get_help().splitlines():
            say(line)
        ctx.exit()


def _heading(parameter: Parameter) -> str:
    group = getattr(parameter, "rich_help_panel", None)
    return group or ("Arguments" if isinstance(parameter, TyperArgument) else "Options")


def _short(paragraphs: list[str]) -> list[str]:
    examples = [one for one in paragraphs if one.startswith(_EXAMPLE)]
    others = [one for one in paragraphs if one not in examples]
    return [others[0], *examples[:_MOST_EXAMPLES], *others[1:2]]
