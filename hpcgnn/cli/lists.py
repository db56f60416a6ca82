"""Options that take a list with commas between its items, for every subcommand of `hpcgnn bench`."""

from __future__ import annotations

import click


def parse_list(option: str, text: str, kind: type) -> tuple:
    """Positive numbers of a list with commas."""
    try:
        numbers = tuple(kind(item) for item in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) <= 0:
        raise click.UsageError(f"{option} is {text!r}; expected positive numbers with commas between them")
    return numbers


def parse_choices(option: str, text: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    """Known words of a list with commas, each once."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in choices:
            raise click.UsageError(f"{option} has {word!r}; expected a list of {', '.join(choices)}")
    return words
