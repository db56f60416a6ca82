"""Help under headings, short by default and complete with `--help-all`; and completion by the shell's tab key."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from hpcgnn.config import known_settings, nearest
from hpcgnn.methods import METHODS
from hpcgnn.nn.names import MODEL_PATHS

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_setting(ctx: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Completions of `--set`: names of settings and, after `=`, the choices of the named one."""
    name, is_assigned, value = typed.partition("=")
    known = {own.name: own for own in known_settings()}
    if not is_assigned:
        return [CompletionItem(f"{other}=") for other in sorted(known) if other.startswith(name.replace("-", "_"))]
    own = known.get(name.replace("-", "_"))
    return [CompletionItem(f"{name}={choice}") for choice in _choices_of(own) if choice.startswith(value)]


def completer_of(flag: str) -> Completer | None:
    """Completer of a setting's flag such as `--model`; None if its values are not names."""
    if flag == "--set":
        return complete_setting
    own = next((own for own in known_settings() if f"--{own.name.replace('_', '-')}" == flag), None)
    choices = _choices_of(own)
    if not choices:
        return None
    return lambda ctx, option, typed: [CompletionItem(choice) for choice in choices if choice.startswith(typed)]


def _choices_of(own) -> list[str]:
    if own is None:
        return []
    by_name = {"model": tuple(MODEL_PATHS), "method": tuple(METHODS)}
    return [str(choice) for choice in by_name.get(own.name, own.metadata.get("choices") or ())]


OF_PRESET = ", or the preset's"
METAVARS = {"INTEGER": "N", "FLOAT": "X", "TEXT": "NAME"}


def brief_of(flag: str, text: str) -> tuple[str, str]:
    """Short help of an option: its first clause, its choices and its default.

    `flag` includes its metavar; in `text`, "One of …" lists choices, and the default is in brackets at the end.
    """
    text, bracket, default = text.replace(OF_PRESET, "").partition(" [default: ")
    clause, *others = re.split(r"(?<=\.) (?=[A-Z])", text)
    choices = next((one for one in (clause, *others) if one.startswith("One of ")), "")
    clause = "" if clause == choices else re.split("[;:]", clause.rstrip("."))[0] + "."
    name, _, metavar = flag.partition(" ")
    sentences = " ".join(filter(None, (clause, choices)))
    return f"{name} {METAVARS.get(metavar, metavar)}".rstrip(), f"{sentences}{bracket}{default}"


class GroupedOption(click.Option):
    """An option with its heading; `is_common`: short help lists it."""

    def __init__(self, *words: Any, heading: str = "Run", is_common: bool = True, **more: Any):
        super().__init__(*words, **{"shell_complete": completer_of(words[0][0]), **more})
        self.heading, self.is_common = heading, is_common


class RareSetting(NamedTuple):
    """A setting without a flag, which `--set` changes: its name, its heading, its sentence of help."""

    name: str
    heading: str
    help: str


class GroupedCommand(click.Command):
    """Lists the options of a command by heading in its help; short help has the common ones only.

    `rare_settings` gives the settings that only `--set` changes, which `--help-all` lists too.
    """

    def __init__(self, *arguments: Any, headings: list[str], rare_settings: Callable[[], list[RareSetting]],
                 **more: Any):
        super().__init__(*arguments, **more)
        self._headings, self._rare_settings = headings, rare_settings
        self.params.append(click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False,
                                        callback=_show_all, help="Show all options and exit."))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shows_all = ctx.meta.get("shows_all", False)
        grouped = [option for option in self.params if isinstance(option, GroupedOption)]
        others = [option for option in self.get_params(ctx)
                  if isinstance(option, click.Option) and option not in grouped]
        rare = self._rare_settings()
        sections: dict[str, list[tuple[str, str]]] = {}
        for heading in self._headings:
            records = [option.get_help_record(ctx) for option in grouped
                       if option.heading == heading and (shows_all or option.is_common)]
            if shows_all:
                records += [(f"--set {one.name}=", one.help) for one in rare if one.heading == heading]
            elif len(records) == 1 and sections:
                # Short help prints no heading above a single option.
                heading = next(reversed(sections))
            if records:
                sections.setdefault(heading, []).extend(records)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records if shows_all else [brief_of(*record) for record in records])
        with formatter.section("Help"):
            formatter.write_dl([option.get_help_record(ctx) for option in others])
        if not shows_all:
            num_hidden = sum(not option.is_common for option in grouped) + len(rare)
            formatter.write_paragraph()
            formatter.write_text(f"{num_hidden} more settings are shown by --help-all.")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # The error names the flag or the rare setting that was probably meant.
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            rare = {setting.name for setting in self._rare_settings()}
            if name in rare:
                raise click.UsageError(f"{error.option_name} is no flag; write --set {name}=VALUE", ctx) from error
            raise click.UsageError(explain_option(error, rare), ctx) from error


# Flags that were one until they became settings of `--set` or joined another flag: what to write instead.
FORMER_FLAGS = {
    ("infer", "--row-bits"): "--bits WEIGHTS,ROWS", ("quantize", "--row-bits"): "--bits WEIGHTS,ROWS",
    ("infer", "--batch-size"): "--set batch_size=CLUSTERS", ("infer", "--aggregation"): "--set aggregation=WAY",
    ("infer", "--between-clusters"): "--set between_clusters=true",
    ("infer", "--pack-features"): "--set pack_features=true",
    ("plan", "--sample"): "--set sample=SHARE", ("plan", "--dropout"): "--set dropout=P",
    ("plan", "--norm"): "--set norm=WAY",
}


def explain_option(error: click.NoSuchOption, rare: Collection[str] = ()) -> str:
    """One clause about an unknown flag, with the command's flag or the `rare` setting that was probably meant."""
    command = error.ctx.info_name if error.ctx else None
    if (command, error.option_name) in FORMER_FLAGS:
        return f"{error.option_name} is no flag; write {FORMER_FLAGS[command, error.option_name]}"
    name = error.option_name.lstrip("-").replace("-", "_")
    options = error.ctx.command.params if error.ctx else []
    flags = {flag.lstrip("-").replace("-", "_"): flag for option in options for flag in option.opts
             if isinstance(option, click.Option)}
    near = nearest(name, [*flags, *rare])
    hint = f"; did you mean {flags.get(near, f'--set {near}=VALUE')}?" if near else ""
    return f"No such option {error.option_name!r}{hint}"


def _show_all(ctx: click.Context, option: click.Option, is_asked: bool) -> None:
    if is_asked:
        ctx.meta["shows_all"] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def parse_set(assignments: tuple[str, ...], known: Mapping[str, click.ParamType]) -> dict[str, Any]:
    """Values by name of the options --set NAME=VALUE, of the `known` names and types."""
    found = {}
    for assignment in assignments:
        name, mark, text = assignment.partition("=")
        if name not in known or not mark:
            raise click.UsageError(f"--set is {assignment!r}; expected NAME=VALUE with one of {', '.join(known)}")
        try:
            found[name] = known[name].convert(text, None, None)
        except click.BadParameter as error:
            raise click.UsageError(f"--set {name}: {error.message}") from error
    return found
