"""What a shell offers at the tab key for options whose values are names; files and folders it completes itself."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from hpcgnn.config import known_settings
from hpcgnn.methods import METHODS
from hpcgnn.nn.names import MODEL_PATHS

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_setting(ctx: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return what `--set` may go on with: names of settings, and behind `=` the choices of that one."""
    name, is_assigned, value = typed.partition("=")
    known = {own.name: own for own in known_settings()}
    if not is_assigned:
        return [CompletionItem(f"{other}=") for other in sorted(known) if other.startswith(name.replace("-", "_"))]
    own = known.get(name.replace("-", "_"))
    return [CompletionItem(f"{name}={choice}") for choice in _choices_of(own) if choice.startswith(value)]


def completer_of(flag: str) -> Completer | None:
    """Return what completes the value of a setting's flag, such as `--model`; None where its values are no names."""
    if flag == "--set":
        return complete_setting
    own = next((own for own in known_settings() if f"--{own.name.replace('_', '-')}" == flag), None)
    choices = _choices_of(own)
    if not choices:
        return None
    return lambda ctx, option, typed: [CompletionItem(choice) for choice in choices if choice.startswith(typed)]


def _choices_of(own) -> list[str]:
    """Return the names that a setting may have, none where it has none or is not known."""
    if own is None:
        return []
    by_name = {"model": tuple(MODEL_PATHS), "method": tuple(METHODS)}
    return [str(choice) for choice in by_name.get(own.name, own.metadata.get("choices") or ())]
