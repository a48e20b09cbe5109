"""Ollama registries: the manifest and blob protocol, both ways.

    GET  /v2/NS/MODEL/manifests/TAG     which layers; each is a blob with a media type
    GET  /v2/NS/MODEL/blobs/DIGEST      its bytes, in ranges
    HEAD … POST /blobs/uploads/ … PATCH … PUT ?digest=… PUT /manifests/TAG     the other way

A layer is the weights, a projector, an adapter, or a text: template, system, license; or JSON: params, messages.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from drivetrain import web
from drivetrain.dialects.ollama import names
from drivetrain.errors import BadRequest, Forbidden, ModelNotFound
from drivetrain.library.depot import Depot
from drivetrain.library.download import Headers, Remote
from drivetrain.library.sources import RegistryName

MEDIA = "application/vnd.ollama.image."
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
_MAX_MANIFEST_BYTES = 4 * 2**20
_MAX_TEXT_BYTES = 8 * 2**20
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class Layer(msgspec.Struct, frozen=True, kw_only=True, rename={"media_type": "mediaType"}):
    media_type: str
    digest: str
    size: int

    @property
    def kind(self) -> str:
        """The last word of its media type: "model", "template", …"""
        return self.media_type.removeprefix(MEDIA) if self.media_type.startswith(MEDIA) else ""


class Manifest(
    msgspec.Struct, frozen=True, kw_only=True, rename={"schema_version": "schemaVersion", "media_type": "mediaType"}
):
    schema_version: int = 2
    media_type: str = MANIFEST_TYPE
    config: Layer | None = None
    layers: tuple[Layer, ...] = ()


class Repository:
    """One model's place in a registry, with the credentials that it asked for."""

    def __init__(self, client: web.Client, base_url: str, name: names.Name) -> None:
        self.client, self.name = client, name
        self.root = f"{base_url.rstrip('/')}/v2/{name.namespace}/{name.model}"
        self.host = urlsplit(base_url).netloc
        self.headers: Headers = {}

    async def authorised(self, challenge: str) -> Headers:
        """Headers for what an answer 401 asked for: an anonymous bearer token. Raises `Forbidden` for other schemes.

        The token comes over TLS, or from the registry itself: a registry must not make us call at other doors.
        """
        asked = dict(_CHALLENGE.findall(challenge))
        realm = urlsplit(asked.get("realm", ""))
        if not challenge.lower().startswith("bearer ") or not (realm.scheme == "https" or realm.netloc == self.host):
            raise Forbidden(f"{self.host}: it asks for credentials that are not known here")
        query = urlencode({name: asked[name] for name in ("service", "scope") if name in asked})
        with web.translated(self.host):
            response = await self.client.get(f"{asked['realm']}?{query}")
        try:
            body = msgspec.json.decode(response.content, type=dict[str, Any]) if response.status_code == 200 else {}
        except (msgspec.DecodeError, msgspec.ValidationError):
            body = {}
        token = body.get("token") or body.get("access_token")
        if not isinstance(token, str):
            raise Forbidden(f"{self.host}: access denied; it gives no token for {self.name.shown} to an unknown caller")
        self.headers = {"authorization": f"Bearer {token}"}
        return self.headers

    async def ask(self, method: str, url: str, **more: Any) -> web.Response:
        """One request with a small answer; credentials are fetched when they are asked for."""
        url = url if "://" in url else f"{self.root}{url}"
        headers: Mapping[str, str] = more.pop("headers", {})
        with web.translated(self.host):
            response = await self.client.request(method, url, headers={**headers, **self.headers}, **more)
        if response.status_code == 401 and "www-authenticate" in response.headers:
            await self.authorised(response.headers["www-authenticate"])
            with web.translated(self.host):
                response = await self.client.request(method, url, headers={**headers, **self.headers}, **more)
        return response

    async def manifest(self) -> Manifest:
        """Raises `ModelNotFound` with Ollama's text if there is none."""
        response = await self.ask("GET", f"/manifests/{self.name.tag}", headers={"accept": MANIFEST_TYPE})
        if response.status_code == 404:
            raise ModelNotFound("pull model manifest: file does not exist", param="model")
        if response.status_code in (401, 403):
            raise Forbidden(f"pull model manifest: {self.host} denies access to {self.name.shown}")
        if response.status_code != 200:
            raise web.Unreachable(f"pull model manifest: {self.host} answers with status {response.status_code}")
        if len(response.content) > _MAX_MANIFEST_BYTES:
            raise web.Unreachable(f"pull model manifest: {self.host} sends {len(response.content)} bytes")
        try:
            manifest = msgspec.json.decode(response.content, type=Manifest)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise web.Unreachable(f"pull model manifest: {self.host} answers nonsense: {error}") from error
        for layer in manifest.layers:
            names.digest(layer.digest)  # they become names of files
        return manifest

    def part(self, layer: Layer) -> Remote:
        digest = f"sha256:{names.digest(layer.digest)}"
        return Remote(
            url=f"{self.root}/blobs/{digest}", digest=digest, size=layer.size, headers=self.headers, renew=self._renew
        )

    async def _renew(self) -> Headers:
        response = await self.ask("HEAD", f"/manifests/{self.name.tag}", headers={"accept": MANIFEST_TYPE})
        if response.status_code not in (200, 405):
            raise Forbidden(f"{self.host}: it refuses the download (status {response.status_code})")
        return self.headers


async def bring(source: RegistryName, base_url: str, depot: Depot) -> tuple[dict[str, str], dict[str, Any]]:
    """The files of a registry's model as blobs, by name, and its other layers as members of model.json."""
    repository = Repository(depot.client, base_url, source.name)
    manifest = await repository.manifest()
    files = _file_names(manifest)
    depot.expect([repository.part(layer) for layer in files.values()], f"the download of {source.id}")
    await depot.foresee([repository.part(files["model.gguf"])])
    brought = {name: await depot.fetch(repository.part(layer)) for name, layer in files.items()}
    members: dict[str, Any] = {
        "sources": [{"filename": name, "url": repository.part(layer).url} for name, layer in files.items()],
        "adapters": [name for name in files if name.startswith("adapter")],
    }
    for layer in manifest.layers:
        if layer not in files.values() and layer.kind:
            _add(members, layer.kind, await depot.text(repository.part(layer), _MAX_TEXT_BYTES))
    return brought, members


def _file_names(manifest: Manifest) -> dict[str, Layer]:
    """The layers that are files by the names they get, the weights first. Raises `BadRequest` without weights."""
    models = [layer for layer in manifest.layers if layer.kind == "model"]
    if not models:
        kinds = ", ".join(sorted({layer.kind or layer.media_type for layer in manifest.layers})) or "nothing"
        raise BadRequest(f"this model cannot be used here: it has no GGUF weights, only {kinds}", param="model")
    found = {"model.gguf": models[0]}
    projectors = [layer for layer in manifest.layers if layer.kind == "projector"]
    if projectors:
        found["mmproj.gguf"] = projectors[0]
    adapters = [layer for layer in manifest.layers if layer.kind == "adapter"]
    return found | {f"adapter-{place}.gguf": layer for place, layer in enumerate(adapters)}


def _add(members: dict[str, Any], kind: str, text: str) -> None:
    """A layer that is a text, as a member of model.json. Kinds that nobody knows are left out."""
    match kind:
        case "template" | "system":
            members[kind] = text
        case "license":
            members["license"] = [*members.get("license", []), text]
        case "params":
            members["parameters"] = _json(text, dict[str, Any], kind)
        case "messages":
            members["messages"] = _json(text, list[dict[str, Any]], kind)
        case "prompt":  # the template's name in the first registries
            members.setdefault("template", text)


def _json(text: str, kind: Any, name: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise web.Unreachable(f"its layer {name!r} cannot be read: {error}") from error
