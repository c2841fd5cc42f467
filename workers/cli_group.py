"""A group of commands that names the nearest one when it does not know the one asked for."""

from __future__ import annotations

from difflib import get_close_matches

import click


class NearestGroup(click.Group):
    """Unknown commands are a usage error that suggests."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            raise click.UsageError(f"no such command {args[0]!r}{nearest(args[0], known)}", ctx)
        return super().resolve_command(ctx, args)


def nearest(given: str, known: list[str]) -> str:
    """``; did you mean …?`` where one is near, else nothing."""
    found = get_close_matches(given, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
