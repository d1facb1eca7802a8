"""The classes with which commands are declared, and the layout of help pages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from boardclient.cli._text import has_color

_WIDEST_HELP = 110

Notes = Mapping[str, str | Sequence[str]]
"""Sections at the end of a help page. A text is a paragraph; a sequence is a list of unwrapped lines."""


class _Formatter(click.HelpFormatter):
    """Formats a help page with bold headings and coloured terms.

    It is as wide as the terminal, up to 110 columns.
    """

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage line."""
        super().write_usage(prog, args, click.style("Usage:", bold=True) + " ")

    def write_heading(self, heading: str) -> None:
        """Write the heading of a section."""
        self.write(click.style(heading, bold=True) + "\n")

    def write_dl(self, rows: Any, col_max: int = 34, col_spacing: int = 2) -> None:
        """Write a list of terms and their descriptions."""
        super().write_dl([(click.style(term, fg="cyan"), text) for term, text in rows], col_max, col_spacing)


class _Context(click.Context):
    """The settings that all help pages and errors share."""

    formatter_class = _Formatter

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("max_content_width", _WIDEST_HELP)
        options.setdefault("help_option_names", ["-h", "--help"])
        super().__init__(*args, **{**options, "color": has_color()})


class Argument(click.Argument):
    """An argument with a line of help."""

    def __init__(self, name: str, *, metavar: str, help: str, required: bool = True) -> None:  # noqa: A002 -- click's name
        super().__init__([name], metavar=metavar, required=required)
        self.text = help


class Number(click.FloatRange):
    """A number in a range. Errors call it a number, not a "float range"."""

    name = "number"


class WholeNumber(click.IntRange):
    """A whole number in a range."""

    name = "whole number"


class Option(click.Option):
    """An option. `otherwise` describes its default in the help text."""

    def __init__(self, *names: str, otherwise: str | None = None, **settings: Any) -> None:
        if otherwise is not None:
            settings["help"] = f"{settings['help']}  [default: {otherwise}]"
        super().__init__(names, **settings)


class _Page(click.Command):
    """A command or group with a help page in our layout."""

    context_class = _Context
    notes: Notes = MappingProxyType({})

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description of the command."""
        formatter.write_paragraph()
        formatter.write_text(self.help or "")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options."""
        arguments = [(param.metavar or "", param.text) for param in self.params if isinstance(param, Argument)]
        records = (param.get_help_record(ctx) for param in self.get_params(ctx) if not isinstance(param, Argument))
        options = [record for record in records if record is not None]
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of `notes`."""
        for title, text in self.notes.items():
            with formatter.section(title):
                if isinstance(text, str):
                    formatter.write_text(text)
                else:
                    formatter.write("".join(f"  {line}\n" for line in text))


class Command(_Page):
    """A command whose function is imported when it is called.

    `call` names the function as `module.function`. The function gets the global options, and the command's own parameters as
    keyword arguments.
    """

    def __init__(self, name: str, call: str, text: str, *params: click.Parameter, notes: Notes | None = None) -> None:
        super().__init__(name, params=list(params), help=text)
        self.call, self.notes = call, notes or {}

    def invoke(self, ctx: click.Context) -> object:
        """Import the function and call it."""
        module, _, name = self.call.partition(".")
        settings = importlib.import_module("boardclient.cli._settings")
        function = getattr(importlib.import_module(f"boardclient.cli.{module}"), name)
        return function(settings.Options(**ctx.find_root().params), **ctx.params)


class Group(_Page, click.Group):
    """A group of commands. Without a command it shows its help."""

    def __init__(self, name: str, text: str, *commands: click.Command, params: Sequence[Option] = (), notes: Notes | None = None):
        super().__init__(name, commands=list(commands), params=list(params), help=text, no_args_is_help=True)
        self.notes = notes or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order in which they are declared."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help or "") for name, command in self.commands.items()])
        super().format_options(ctx, formatter)
