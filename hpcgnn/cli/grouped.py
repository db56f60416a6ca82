"""Help under headings: short by default, whole with `--help-all`."""

from __future__ import annotations

import itertools
from typing import Any

import click


class GroupedOption(click.Option):
    """An option with the heading that it belongs under, and whether short help lists it."""

    def __init__(self, *words: Any, heading: str = "Run", is_common: bool = True, **more: Any):
        super().__init__(*words, **more)
        self.heading, self.is_common = heading, is_common


class GroupedCommand(click.Command):
    """A command whose help lists its options by heading, the common ones only unless `--help-all` asks for all."""

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        self.params.append(click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False,
                                        callback=_show_all, help="Show all options and exit."))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command`."""
        shows_all = ctx.meta.get("shows_all", False)
        grouped = [option for option in self.params if isinstance(option, GroupedOption)]
        others = [option for option in self.get_params(ctx)
                  if isinstance(option, click.Option) and option not in grouped]
        listed = [option for option in grouped if shows_all or option.is_common]
        for heading, options in itertools.groupby(listed, key=lambda option: option.heading):
            with formatter.section(heading):
                formatter.write_dl([option.get_help_record(ctx) for option in options])
        with formatter.section("Help"):
            formatter.write_dl([option.get_help_record(ctx) for option in others])
        if len(listed) < len(grouped):
            formatter.write_paragraph()
            formatter.write_text(f"{len(grouped) - len(listed)} more options are shown by --help-all.")


def _show_all(ctx: click.Context, option: click.Option, is_asked: bool) -> None:
    if is_asked:
        ctx.meta["shows_all"] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
