"""YAML as we read it: what is written is what is meant, and every value knows where it stands."""

from typing import Any

import pytest

from drivetrain.config import ConfigError, Place
from drivetrain.config.document import parse, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("012", 12),
        ("0o17", 15),
        ("0xfF", 255),
        ("-7", -7),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("2024-01-02", "2024-01-02"),
        ("1_000", "1_000"),
        ("<<", "<<"),
        ("box-1", "box-1"),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    assert (value, type(value)) == (scalar(text), type(scalar(text)))
    assert {"a": value} == parse(f"a: {text}", "f").data


def test_quoted_scalars_are_text() -> None:
    assert parse("a: '1'\nb: \"true\"\nc: |\n  one\n  two\n", "f").data == {"a": "1", "b": "true", "c": "one\ntwo\n"}


def test_an_empty_file_says_nothing() -> None:
    assert {} == parse("", "f").data == parse("# only a comment\n", "f").data


def test_every_value_and_name_has_its_place() -> None:
    document = parse("server:\n  port: 8080\nlist:\n  - x\n  - {y: 2}\n", "f.yaml")

    assert Place("f.yaml", 2, 9) == document.values["server", "port"]
    assert Place("f.yaml", 2, 3) == document.keys["server", "port"]
    assert Place("f.yaml", 5, 9) == document.values["list", 1, "y"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f:3:1: a: is written twice; first on line 1"),
        ("a: {b: 1, b: 2}", "f:1:11: a.b: is written twice; first on line 1"),
        ("a: &x 1", "f:1:4: anchors (&x) are not supported; write the value out"),
        ("a: *x", "f:1:4: aliases (*x) are not supported; write the value out"),
        ("a: !!int '1'", "f:1:4: tags (tag:yaml.org,2002:int) are not supported; write a plain value"),
        ("a: !x 1", "f:1:4: tags (!x) are not supported; write a plain value"),
        ("? [a]\n: 1", "f:1:3: a name must be plain text"),
        ("a: [", "f:1:5: expected the node content, but found '<stream end>' while parsing a flow node"),
        ("a: 1\n---\nb: 2", "f:2:1: but found another document expected a single document in the stream"),
        ("[" * 40 + "]" * 40, "f:1:34: values are nested too deeply"),
    ],
)
def test_what_could_mislead_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert message == str(caught.value)


def test_every_duplicate_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("a: 1\na: 2\nb: 1\nb: 2", "f")
    assert str(caught.value).splitlines() == [
        "f:2:1: a: is written twice; first on line 1",
        "f:4:1: b: is written twice; first on line 3",
    ]
