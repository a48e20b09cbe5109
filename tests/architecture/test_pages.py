"""The pages of the documentation: their links lead somewhere, and nothing that can be asked for is left out."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from drivetrain.config import schema
from drivetrain.engines.llamacpp import settings
from drivetrain.library.record import Record
from drivetrain.parameters import PARAMETERS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
MACHINE = re.compile(r"/root/|/home/(?!ada/)|/Users/")  # paths of whoever wrote the page


@cache
def text(page: Path) -> str:
    return page.read_text()


def anchors(page: Path) -> set[str]:
    """What `#…` can lead to, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text(page), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> Iterator[str]:
    for link in LINK.findall(CODE.sub("", text(page))):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        reached.add(page)
        found = [
            (page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(text(page)) if "://" not in link
        ]
        pages = [one for path in found for one in (sorted(path.glob("*.md")) if path.is_dir() else [path])]
        todo += [one for one in pages if one.suffix == ".md" and one.exists() and one not in reached]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_no_page_knows_the_machine_of_its_author() -> None:
    assert [str(page.relative_to(ROOT)) for page in PAGES if MACHINE.search(text(page))] == []


def test_every_setting_of_the_configuration_is_documented() -> None:
    page = text(DOCS / "reference" / "configuration.md")
    sections = [kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, schema.Section)]
    members = {name for section in sections if section is not schema.Config for name in section.__struct_fields__}
    assert sorted(name for name in members if f"`{name}`" not in page and f".{name}" not in page) == []


def test_every_member_and_name_of_a_model_is_documented() -> None:
    page = text(DOCS / "reference" / "model-json.md")
    names = {*Record.__struct_fields__, *settings._NAMES, *PARAMETERS}
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def test_every_route_is_documented() -> None:
    source = text(ROOT / "src" / "drivetrain" / "server" / "routes.py")
    told = "".join(text(page) for page in sorted((DOCS / "reference").glob("*.md")))
    routes = re.findall(r'table\.(?:add|under)\("[A-Z ]+", "(/[^"]*)"', source)
    assert len(routes) > 20
    assert sorted({route for route in routes if route not in told}) == []


def test_every_target_of_make_is_documented() -> None:
    makefile = text(ROOT / "Makefile")
    targets = re.findall(r"[\w-]+", makefile.partition(".PHONY:")[2].partition("\n")[0])
    assert len(targets) > 10
    told = "".join(text(page) for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"))
    assert [name for name in targets if not re.search(rf"\bmake {name}\b(?!-)", told)] == []


def runtime() -> list[str]:
    return list(tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["dependencies"])


def beside() -> list[str]:
    """What extras and groups ask for."""
    project = tomllib.loads(text(ROOT / "pyproject.toml"))
    groups = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
    return [name for group in groups for name in group if not name.startswith("drivetrain[")]  # a sum of others


def test_every_dependency_is_pinned_and_has_its_reason() -> None:
    wanted = [*runtime(), *beside()]
    page = text(DOCS / "design" / "dependencies.md")
    assert [name for name in wanted if not re.match(r"[\w-]+(\[\w+\])?==[\w.]+(;|$)", name)] == []
    assert [name for name in wanted if f"`{re.split(r'[=[]', name)[0]}`" not in page] == []


def test_every_dependency_is_imported() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    modules = {"pyyaml": "yaml"}
    named = [name.partition("==")[0].lower().replace("-", "_") for name in runtime()]
    used = [modules.get(name, name) for name in named]
    unused = [name for name in used if not re.search(rf"(?:import|from) {name}\b|import_module\(\"{name}\"", source)]
    assert unused == []


def test_the_lock_names_every_dependency_and_no_index() -> None:
    wanted = [*runtime(), *beside()]
    lock = text(ROOT / "requirements.lock")
    pinned = set(re.findall(r"^([\w.-]+==[\w.]+)", lock, re.MULTILINE))
    bare = [re.sub(r"\[\w+\]|;.*", "", name).lower() for name in wanted]
    assert [name for name in bare if name not in pinned] == []
    assert re.findall(r"\S+://\S+", lock) == []
