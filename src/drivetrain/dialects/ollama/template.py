"""A prompt template given with a `/api/generate` request: the part of Go's template language that such templates use.

Known are `{{ .System }}`, `{{ .Prompt }}`, `{{ .Suffix }}`, `{{ .Response }}` (where the prompt ends), `{{ if .X }}`,
`{{ else }}`, `{{ end }}`, comments, and the trimming marks `{{-` and `-}}`.
"""

import re
from collections.abc import Mapping

from drivetrain.errors import Unsupported

_ACTION = re.compile(r"\{\{(?P<left>-\s)?(?P<what>.*?)(?P<right>\s-)?\}\}", re.DOTALL)
_IF = re.compile(r"if\s+(\.\w+)")


def render(template: str, values: Mapping[str, str]) -> str:
    """The prompt that the template makes of `values`, whose keys are `.System` and the like.

    Raises `Unsupported`, with the action, for a template that does more.
    """
    out: list[str] = []
    shown = [True]  # one entry per open block: whether it and all around it are shown
    taken: list[bool] = []  # one entry per open block: whether its condition held
    for text, what in _pieces(template):
        if shown[-1]:
            out.append(text)
        if what == ".Response" and shown[-1]:
            break
        if condition := _IF.fullmatch(what):
            taken.append(bool(_value(condition[1], values)))
            shown.append(shown[-1] and taken[-1])
        elif what == "else" and taken:
            shown[-1] = shown[-2] and not taken[-1]
        elif what == "end" and taken:
            shown.pop()
            taken.pop()
        elif what and not what.startswith("/*") and shown[-1]:
            out.append(_value(what, values))
    return "".join(out)


def _value(name: str, values: Mapping[str, str]) -> str:
    if name == ".Response":
        return ""
    if name not in values:
        raise Unsupported(
            f"a template in a request may not use {{{{ {name} }}}}; put it into the model", param="template"
        )
    return values[name]


def _pieces(template: str) -> list[tuple[str, str]]:
    """Text and the action after it, trimmed as the actions ask; the last action is empty."""
    pieces, at, trim = [], 0, False
    for action in _ACTION.finditer(template):
        text = template[at : action.start()]
        text = text.lstrip() if trim else text
        pieces.append((text.rstrip() if action["left"] else text, action["what"].strip()))
        at, trim = action.end(), bool(action["right"])
    rest = template[at:]
    return [*pieces, (rest.lstrip() if trim else rest, "")]
