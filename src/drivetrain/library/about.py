"""What is told of a model beyond its listing: its GGUF metadata, licence and the Modelfile that would make it again."""

from collections.abc import Mapping
from typing import Any

from drivetrain import gguf
from drivetrain.dialects.ollama import Shown, modelfile
from drivetrain.library.record import Members
from drivetrain.types import ModelSpec

_VOCABULARY = frozenset(f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges"))


def shown(spec: ModelSpec, members: Members, *, verbose: bool) -> Shown:
    """Reads the header of the model's weights: call it from a thread."""
    licenses = _licenses(members.get("license"))
    text = modelfile.write(
        modelfile.Modelfile(
            from_=spec.id,
            parameters=spec.parameters,
            template=spec.template,
            system=spec.system,
            licenses=licenses,
            messages=spec.messages,
        ),
        comment=f"Made from the model {spec.id}; build it again with: drivetrain create NAME -f FILE",
    )
    told = Shown(license="\n".join(licenses), modelfile=text)
    if spec.weights is None:
        return told
    header = gguf.read(spec.weights, keep=_VOCABULARY if verbose else ())
    tensors = [{"name": t.name, "type": _type(t), "shape": list(t.dims)} for t in header.tensors] if verbose else []
    return Shown(
        license=told.license,
        modelfile=text,
        template=header.text("tokenizer.chat_template"),
        model_info=_metadata(header, verbose=verbose),
        projector_info=_metadata(gguf.read(spec.projector), verbose=verbose) if spec.projector else {},
        tensors=tensors,
    )


def _type(tensor: gguf.Tensor) -> str:
    """Its name, as ggml has it."""
    known = gguf.TENSOR_TYPES.get(tensor.type)
    return known.name if known else "unknown"


def _licenses(said: Any) -> tuple[str, ...]:
    if isinstance(said, str):
        return (said,)
    return tuple(text for text in said or () if isinstance(text, str))


def _metadata(header: gguf.Gguf, *, verbose: bool) -> Mapping[str, Any]:
    """GGUF's own keys. Long arrays are null, and those of the vocabulary unless all is to be told."""
    told: dict[str, Any] = {}
    for key, value in header.metadata.items():
        if isinstance(value, gguf.Array) or (key in _VOCABULARY and not verbose):
            told[key] = None
        elif verbose or key == "tokenizer.ggml.model" or not key.startswith("tokenizer.chat_template"):
            told[key] = value
    told["general.parameter_count"] = header.parameters
    return told
