"""Models from Hugging Face. Its client tells what a repository holds; the bytes come by our own resumable download."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import anyio.to_thread
import msgspec

from drivetrain import __version__, web
from drivetrain.errors import BadRequest, DrivetrainError, Forbidden, ModelNotFound, NotFound
from drivetrain.library import weights
from drivetrain.library.depot import Depot
from drivetrain.library.download import Remote
from drivetrain.library.sources import HubRepo

_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "Q8_0")
_TIMEOUT_S = 30.0


class RepoFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a repository, as far as downloads care."""

    name: str
    url: str
    size: int | None = None
    sha256: str | None = None


async def bring(source: HubRepo, endpoint: str, depot: Depot) -> tuple[dict[str, str], dict[str, Any]]:
    """The chosen files as blobs, by name, and what the repository says for model.json."""
    files, headers, about = await anyio.to_thread.run_sync(_describe, source.repo, endpoint)
    chosen = choose(files, source.quant)
    parts = [
        Remote(url=file.url, digest=f"sha256:{file.sha256}" if file.sha256 else None, size=file.size, headers=headers)
        for file in chosen
    ]
    depot.expect(parts, f"the download of {source.id}")
    await depot.foresee([part for file, part in zip(chosen, parts, strict=True) if not weights.is_projector(file.name)])
    brought: dict[str, str] = {}
    for file, part in zip(chosen, parts, strict=True):
        brought[file.name.rsplit("/", 1)[-1]] = await depot.fetch(part)
    sources = [{"filename": file.name.rsplit("/", 1)[-1], "url": file.url} for file in chosen]
    return brought, about | {"sources": sources}


def choose(files: Sequence[RepoFile], quant: str) -> list[RepoFile]:
    """The model's file or files, first part first, and its projector if there is one.

    Raises `NotFound` naming what there is, if `quant` fits nothing.
    """
    models = _models([file for file in files if file.name.lower().endswith(".gguf")])
    if not models:
        raise NotFound("the repository holds no *.gguf file", param="model")
    wanted = [quant] if quant and quant.lower() != "latest" else [*_PREFERRED, ""]
    for tag in wanted:
        for name in sorted(models):
            if _fits(name, tag):
                return [*models[name], *_projector(files)]
    available = ", ".join(sorted(models))
    raise NotFound(f"the repository has no file for {quant!r}; it has {available}", param="model")


def _models(files: list[RepoFile]) -> dict[str, list[RepoFile]]:
    """Files that belong together, in order, by the name of the whole."""
    groups: dict[str, list[RepoFile]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.name):
        if not weights.is_projector(file.name):
            groups[re.sub(r"-\d{5}-of-\d{5}(?=\.gguf$)", "", file.name, flags=re.IGNORECASE)].append(file)
    return groups


def _fits(name: str, tag: str) -> bool:
    """Whether a file is the one that a tag names: in full, or by a whole word of it."""
    bare = name.rsplit("/", 1)[-1].lower()
    if tag.lower() in (bare, bare.removesuffix(".gguf")):
        return True
    return re.search(rf"(?<![a-z0-9_]){re.escape(tag.lower())}(?![a-z0-9_])", name.lower()) is not None


def _projector(files: Sequence[RepoFile]) -> list[RepoFile]:
    found = sorted(
        (file for file in files if weights.is_projector(file.name) and file.name.lower().endswith(".gguf")),
        key=_precision,
    )
    return found[:1]


def _precision(file: RepoFile) -> tuple[int, str]:
    order = ("f16", "bf16", "q8_0", "f32")
    return next((place for place, word in enumerate(order) if _fits(file.name, word)), len(order)), file.name


def _describe(repo: str, endpoint: str) -> tuple[list[RepoFile], dict[str, str], dict[str, Any]]:
    """Blocks. What the repository holds, how to ask for it, and what it says of itself."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi, hf_hub_url  # it takes a second to import, so only who pulls from it pays

    api = HfApi(endpoint=endpoint, library_name="drivetrain", library_version=__version__)
    info = _asked(repo, lambda: api.model_info(repo, files_metadata=True, timeout=_TIMEOUT_S))
    files = [
        RepoFile(
            name=sibling.rfilename,
            url=hf_hub_url(repo, sibling.rfilename, revision=info.sha, endpoint=endpoint),
            size=sibling.size,
            sha256=sibling.lfs.sha256 if sibling.lfs else None,
        )
        for sibling in info.siblings or ()
    ]
    token = _token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return (
        files,
        headers,
        {"owned_by": info.author or repo.partition("/")[0], "metadata": {"tags": list(info.tags or ())}},
    )


def _token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _asked(repo: str, ask: Callable[[], Any]) -> Any:
    """The answer, with the client's errors told as ours."""
    from huggingface_hub import errors

    try:
        with web.translated("the Hugging Face hub"):
            return ask()
    except errors.GatedRepoError as error:
        raise Forbidden(
            f"hf.co/{repo} is gated: accept its terms on its page, then set HF_TOKEN to a token of that account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"hf.co/{repo} not found; if it is private, set HF_TOKEN to a token that may read it", param="model"
        ) from error
    except errors.HFValidationError as error:
        raise BadRequest(f"hf.co/{repo}: {error}", param="model") from error
    except errors.HfHubHTTPError as error:
        raise _of_status(repo, error.response.status_code) from error
    except errors.OfflineModeIsEnabled as error:
        raise web.Unreachable("the Hugging Face hub is switched off here by HF_HUB_OFFLINE") from error


def _of_status(repo: str, status: int) -> DrivetrainError:
    if status in (401, 403):
        return Forbidden(f"hf.co/{repo} may not be read (status {status}); set HF_TOKEN to a token that may")
    return web.Unreachable(f"the Hugging Face hub answers with status {status} for {repo}")
