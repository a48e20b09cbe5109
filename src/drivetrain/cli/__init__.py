"""The command line: `drivetrain`. The top layer; it composes everything else, and imports it only when it is used."""

from drivetrain.cli.app import main

__all__ = ["main"]
