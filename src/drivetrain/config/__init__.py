"""The configuration: `drivetrain.yaml`, the environment and the command line as one validated, immutable value."""

from drivetrain.config.load import FILE, Resolved, dump, find, flat, home, json_schema, load, resolve, to_yaml
from drivetrain.config.problems import ConfigError, Place, Problem
from drivetrain.config.schema import Config

__all__ = [
    "FILE",
    "Config",
    "ConfigError",
    "Place",
    "Problem",
    "Resolved",
    "dump",
    "find",
    "flat",
    "home",
    "json_schema",
    "load",
    "resolve",
    "to_yaml",
]
