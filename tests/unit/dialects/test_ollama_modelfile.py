"""Modelfiles: every statement, quotes over lines, errors with their line, and text that reads back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.dialects.ollama.modelfile import Modelfile, parse, write
from drivetrain.errors import BadRequest
from drivetrain.types import Message, Role, Text


def said(role: Role, text: str) -> Message:
    return Message(role=role, content=(Text(text=text),) if text else ())


EVERYTHING = '''# A comment, and a blank line

FROM llama3:8b
parameter temperature 0.7
PARAMETER\tnum_ctx   4096
PARAMETER stop "<|end|>"
PARAMETER stop """a b"""
PARAMETER use_mmap false
PARAMETER mirostat 2
TEMPLATE """{{ if .System }}<|system|>
{{ .System }}{{ end }}
# no comment
<|user|>"""
SYSTEM "You say ""hi"" \\ often."
ADAPTER ./lora.gguf
DRAFT ./draft.gguf
RENDERER qwen
PARSER qwen
REQUIRES 0.14.0
LICENSE """
MIT
"""
LICENSE Apache-2.0
MESSAGE user Is Toronto in Canada?
MESSAGE assistant """yes
indeed"""
'''


def test_every_statement() -> None:
    assert parse(EVERYTHING) == Modelfile(
        from_="llama3:8b",
        parameters={"temperature": 0.7, "num_ctx": 4096, "stop": ["<|end|>", "a b"], "use_mmap": False},
        template="{{ if .System }}<|system|>\n{{ .System }}{{ end }}\n# no comment\n<|user|>",
        system='You say ""hi"" \\ often.',
        adapters=("./lora.gguf",),
        drafts=("./draft.gguf",),
        licenses=("\nMIT\n", "Apache-2.0"),
        messages=(said("user", "Is Toronto in Canada?"), said("assistant", "yes\nindeed")),
        renderer="qwen",
        parser="qwen",
        requires="0.14.0",
    )


def test_line_ends_marks_and_case_do_not_matter() -> None:
    assert parse("\ufefffrom x\r\nSyStEm hi\r\n") == Modelfile(from_="x", system="hi") == parse("FROM x\nSYSTEM hi")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no FROM line"),
        ("SYSTEM x", "no FROM line"),
        ("FROM", "no FROM line"),
        ("FROM x\nFORM y", None),
        ("FROM x\n\nPARAMETER top_k many", "(line 3): invalid integer value [many] of parameter top_k"),
        ("FROM x\nPARAMETER speed 5", "(line 2): unknown parameter 'speed'"),
        ("FROM x\nPARAMETER top_k", "(line 2): PARAMETER needs a name and a value"),
        ("FROM x\nMESSAGE robot hi", '(line 2): message role must be one of "system", "user", or "assistant"'),
        ('FROM x\nSYSTEM """never closed\nat all', "(line 2): unexpected EOF: the quotes of SYSTEM are never closed"),
        ('FROM x\nSYSTEM "never', "(line 2): unexpected EOF: the quotes of SYSTEM are never closed"),
    ],
)
def test_an_error_names_its_line(text: str, error: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(text)
    if error is None:
        assert refused.value.message.startswith('(line 2): command must be one of "from", "license", ')
    else:
        assert refused.value.message == error


def test_a_file_is_written_in_a_stable_form() -> None:
    file = Modelfile(
        from_="llama3",
        parameters={"temperature": 0.5, "use_mmap": True, "stop": ["a b", "c "]},
        system="Two\nlines",
        template='with "quotes"',
        messages=(said("user", "Hi"), said("assistant", "")),
    )
    assert write(file, comment="Made by hand\n\nfor a test") == (
        '# Made by hand\n#\n# for a test\nFROM llama3\nTEMPLATE with "quotes"\nSYSTEM "Two\nlines"\n'
        'PARAMETER temperature 0.5\nPARAMETER use_mmap true\nPARAMETER stop a b\nPARAMETER stop "c "\n'
        'MESSAGE user Hi\nMESSAGE assistant ""\n'
    )


def test_a_text_that_no_quotes_can_hold_is_refused() -> None:
    with pytest.raises(BadRequest, match="three double quotes at the end of a line"):
        write(Modelfile(from_="x", system='a"""\nb'))


_TEXTS = st.text(st.sampled_from('ab "\n\t#\\{}é'), max_size=12)
_LINES = st.text(st.sampled_from("abc/.:_-"), min_size=1, max_size=8)
_PARAMETERS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "num_ctx": st.integers(1, 9999),
        "use_mmap": st.booleans(),
        "stop": st.lists(_TEXTS, min_size=1, max_size=2),
    },
)
_FILES = st.builds(
    Modelfile,
    from_=_LINES,
    parameters=_PARAMETERS,
    template=st.none() | _TEXTS,
    system=st.none() | _TEXTS,
    adapters=st.lists(_LINES, max_size=2).map(tuple),
    licenses=st.lists(_TEXTS, max_size=2).map(tuple),
    messages=st.lists(st.builds(said, st.sampled_from(["system", "user", "assistant"]), _TEXTS), max_size=2).map(tuple),
)


@given(_FILES)
def test_what_is_written_is_read_again(file: Modelfile) -> None:
    try:
        text = write(file)
    except BadRequest as error:
        assert "at the end of a line" in error.message
        return
    assert parse(text) == file


@given(st.text(st.sampled_from('FROMfrom PARAMETER stop user"\n#x1.'), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except BadRequest as error:
        assert error.message
