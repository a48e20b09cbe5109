"""Prompt templates in a request: what is rendered, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.dialects.ollama.template import render
from drivetrain.errors import Unsupported

VALUES = {".System": "S", ".Prompt": "P", ".Suffix": ""}


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("", ""),
        ("plain { } text", "plain { } text"),
        ("[{{ .System }}|{{.Prompt}}]", "[S|P]"),
        ("{{ if .System }}a{{ else }}b{{ end }}", "a"),
        ("{{ if .Suffix }}a{{ else }}b{{ end }}", "b"),
        ("{{ if .Suffix }}{{ if .System }}a{{ else }}b{{ end }}{{ .Nothing }}{{ end }}c", "c"),
        ("a \n {{- .Prompt -}} \n b", "aPb"),
        ("a{{/* a comment */}}b", "ab"),
        ("<u>{{ .Prompt }}<a>{{ .Response }}</a>", "<u>P<a>"),
        ("{{ if .Suffix }}{{ .Response }}{{ end }}c", "c"),
    ],
)
def test_renders(template: str, prompt: str) -> None:
    assert render(template, VALUES) == prompt


@pytest.mark.parametrize(
    "action", ["range .Messages", ".Tools", "and .System .Prompt", "if or .System .Prompt", "else", "end"]
)
def test_refuses_what_it_does_not_know(action: str) -> None:
    with pytest.raises(Unsupported) as refused:
        render(f"x{{{{ {action} }}}}", VALUES)
    assert refused.value.message == f"a template in a request may not use {{{{ {action} }}}}; put it into the model"


@given(st.text(st.sampled_from("{}- .Pif end/*\n"), max_size=40))
def test_any_template_is_rendered_or_refused(template: str) -> None:
    try:
        render(template, VALUES)
    except Unsupported as error:
        assert error.param == "template"
