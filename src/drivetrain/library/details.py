"""What a model's files tell of it: size, digest, architecture, capabilities. Known once, kept beside the files.

`.weights.json` in a model's folder remembers each file's hash and details, valid while its size and time of change are
the same. A file that was put there by hand has no hash yet: until `settle` computes it, a stand-in is shown.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec

from drivetrain import gguf
from drivetrain.errors import BadRequest
from drivetrain.library import files
from drivetrain.types import Capability

FILE = ".weights.json"
_FORMAT = 1  # raise it when details are derived in another way

_TOOLS = re.compile(r"\btools\b|\.Tools\b")
_THINKING = re.compile(r"<think>|enable_thinking|reasoning_content|<\|channel\|>|\.Think|◁think▷")
_FILL_KEYS = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")
_RANK = 4  # llama.cpp's pooling type of rerankers
_ENCODERS = frozenset(
    {"bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "modern-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"}
    | {"t5encoder", "gemma-embedding"}
)


class Details(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the header of a GGUF file says."""

    family: str = ""
    parameters: int = 0
    quantization: str = ""
    context_length: int | None = None
    embedding_length: int | None = None
    capabilities: tuple[Capability, ...] = ()

    @property
    def parameter_size(self) -> str:
        return size_label(self.parameters)


class FileFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    size: int
    mtime_ns: int
    sha256: str = ""
    details: Details | None = None
    made_of: str = ""  # the `combined` digest of the files that this container was packed from


class _Sidecar(msgspec.Struct, frozen=True):
    format: int
    files: dict[str, FileFacts]


def size_label(count: int) -> str:
    """A number of parameters as people say it: 8.0B, 134.52M."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= unit:
            return f"{count / unit:.{digits}f}{letter}"
    return str(count) if count else ""


def template_capabilities(template: str) -> frozenset[Capability]:
    """What a chat template, Jinja's or Go's, makes possible."""
    found: set[Capability] = set()
    if _TOOLS.search(template):
        found.add("tools")
    if _THINKING.search(template):
        found.add("thinking")
    if ".Suffix" in template:
        found.add("insert")
    return frozenset(found)


def examine(path: Path) -> Details:
    """Reads the headers of a model's files, `path` being the first. Raises `BadRequest` for what is not GGUF."""
    parts = gguf.parts(path)
    head = gguf.read(parts[0])
    rest = sum(gguf.read(part).parameters for part in parts[1:])
    family = head.architecture
    return Details(
        family=family,
        parameters=head.parameters + rest,
        quantization=head.quantization,
        context_length=head.whole(f"{family}.context_length") or None,
        embedding_length=head.whole(f"{family}.embedding_length") or None,
        capabilities=tuple(sorted(_capabilities(head))),
    )


def _capabilities(head: gguf.Gguf) -> frozenset[Capability]:
    family = head.architecture
    if family == "clip":  # a projector, not a model
        kinds: tuple[tuple[Capability, str], ...] = (
            ("vision", "clip.has_vision_encoder"),
            ("audio", "clip.has_audio_encoder"),
        )
        return frozenset(name for name, key in kinds if head.metadata.get(key)) or frozenset({"vision"})
    pooling = head.whole(f"{family}.pooling_type")
    if pooling == _RANK:
        return frozenset({"rerank"})
    if pooling or family in _ENCODERS:
        return frozenset({"embedding"})
    found: set[Capability] = {"completion", *template_capabilities(head.text("tokenizer.chat_template"))}
    if any(key in head.metadata for key in _FILL_KEYS):
        found.add("insert")
    if head.whole(f"{family}.vision.block_count"):
        found.add("vision")
    return frozenset(found)


def load(folder: Path) -> Mapping[str, FileFacts]:
    """What is remembered of the folder's files; nothing if that cannot be read."""
    try:
        sidecar = msgspec.json.decode((folder / FILE).read_bytes(), type=_Sidecar)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return {}
    return sidecar.files if sidecar.format == _FORMAT else {}


def store(folder: Path, facts: Mapping[str, FileFacts]) -> None:
    files.write_whole(folder / FILE, msgspec.json.encode(_Sidecar(_FORMAT, dict(facts))))


def facts_of(path: Path, sha256: str, details: Details | None = None, made_of: str = "") -> FileFacts:
    status = path.stat()
    return FileFacts(size=status.st_size, mtime_ns=status.st_mtime_ns, sha256=sha256, details=details, made_of=made_of)


def current(facts: FileFacts | None, path: Path) -> bool:
    """Whether what is remembered is about the file as it is now."""
    status = path.stat()
    return facts is not None and (facts.size, facts.mtime_ns) == (status.st_size, status.st_mtime_ns)


def combined(digests: Sequence[str]) -> str:
    """One digest for a model of several files: that of a single one, else the hash of them all."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else ""


def stand_in(path: Path) -> str:
    """64 hex digits that stay the same while the file does, without reading it."""
    status = path.stat()
    return hashlib.sha256(f"{path.name}:{status.st_size}:{status.st_mtime_ns}".encode()).hexdigest()


async def settle(folder: Path, weights: Sequence[Path]) -> bool:
    """Hash and examine those of the files that nothing valid is remembered of. False if there was nothing to do."""
    known = dict(load(folder))
    missing = [path for path in weights if not current(known.get(path.name), path) or not known[path.name].sha256]
    for path in missing:
        digest = await files.sha256(path)
        before = known[path.name] if current(known.get(path.name), path) else FileFacts(size=0, mtime_ns=0)
        details = before.details or await anyio.to_thread.run_sync(_examined, path)
        known[path.name] = facts_of(path, digest, details, before.made_of)
    if missing:
        await anyio.to_thread.run_sync(store, folder, known)
    return bool(missing)


def _examined(path: Path) -> Details | None:
    try:
        return examine(path)
    except BadRequest:
        return None  # the catalogue tells the reason when it is asked for this model
