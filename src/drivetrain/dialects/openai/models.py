"""Lists of models in OpenAI's form, both ways."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from drivetrain.dialects.openai import errors, wire
from drivetrain.errors import EngineFailed
from drivetrain.types import Model

PATH: Final = "/models"
OWNER: Final = "drivetrain"


class _List(msgspec.Struct, frozen=True):
    data: list[wire.ModelOut]


_list = msgspec.json.Decoder(_List | list[wire.ModelOut])  # some remote APIs send the bare list


def encode_models(models: Iterable[Model]) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [_listed(model) for model in models]})


def encode_model(model: Model) -> bytes:
    return msgspec.json.encode(_listed(model))


def _listed(model: Model) -> dict[str, Any]:
    listed: dict[str, Any] = {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": model.engine or OWNER,
    }
    if model.context_length is not None:
        listed["context_length"] = model.context_length
    return listed


def decode_models(body: bytes) -> tuple[Model, ...]:
    """The models that an engine lists. Raises the error that the body holds, or `EngineFailed`."""
    try:
        listed = _list.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if (told := errors.decode_frame(body)) is not None:
            raise told from error
        raise EngineFailed(f"the engine sent a list of models that cannot be read: {error}") from error
    return tuple(_model(model) for model in (listed.data if isinstance(listed, _List) else listed))


def _model(given: wire.ModelOut) -> Model:
    meta = given.meta or wire.ModelMeta()
    return Model(
        id=given.id,
        context_length=given.context_length or given.max_model_len or meta.n_ctx or meta.n_ctx_train,
        embedding_length=meta.n_embd,
        created_s=int(given.created or 0),
        size_bytes=meta.size or 0,
    )
