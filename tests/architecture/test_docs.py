"""The reference is what the code says, no less and no more."""

import importlib.util
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from drivetrain.config import schema
from drivetrain.config.check import bare, section_of

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(generate: ModuleType) -> None:
    assert generate.outdated() == []  # `make docs` writes them


def test_every_member_of_the_configuration_says_what_it_means(generate: ModuleType) -> None:
    silent = [
        f"{name}.{member}"
        for name, members in generate.comments().items()
        for member, meaning in members.items()
        if not meaning and not section_of(_type(name, member)) and name != "Config"
    ]
    assert silent == []


def _type(section: str, member: str) -> object:
    fields = {field.name: field.type for field in msgspec.structs.fields(getattr(schema, section))}
    return bare(fields[member])
