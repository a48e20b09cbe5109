"""Which requests are made up: for fake engines any that the descriptions allow and many that they do not, for the real
model valid ones whose answers are short."""

from typing import Any

from tests.e2e.generated import Plan
from tests.e2e.servers import MODEL
from tests.e2e.specs import OLLAMA, OPENAI

CHAT, COMPLETIONS, EMBEDDINGS = "/chat/completions", "/completions", "/embeddings"
GENERATING = ["/api/generate", "/api/chat", "/api/embed"]
MANAGING = [f"/api/{name}" for name in ("show", "create", "copy", "pull", "push", "delete", "tags", "ps", "version")]


def one_of(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def members(schema: str, **members: Any) -> dict[str, Any]:
    """What a plan has to say of a schema's members."""
    return {f"{schema}.properties.{name}": member for name, member in members.items()}


ENGINES = one_of("chat", "native", "absent")
SHELF = one_of("tiny", "copied", "org/made:v1", "lost")
PLANS = {
    "OpenAI": (
        OPENAI,
        Plan(
            [CHAT, COMPLETIONS, EMBEDDINGS, "/models", "/models/{model}"],
            {
                "ModelIdsShared": ENGINES,
                **members("CreateCompletionRequest", model=ENGINES),
                **members("CreateEmbeddingRequest", model=ENGINES),
            },
            examples=15,
        ),
    ),
    "Ollama's answers": (
        OLLAMA,
        Plan(
            GENERATING,
            {
                **members("GenerateRequest", model=ENGINES),
                **members("ChatRequest", model=ENGINES),
                **members("EmbedRequest", model=ENGINES),
            },
            examples=15,
        ),
    ),
    "Ollama's models": (
        OLLAMA,
        Plan(
            MANAGING,
            {
                **members("ShowRequest", model=SHELF),
                **members("CreateRequest", **{"model": SHELF, "from": SHELF}),
                **members("CopyRequest", source=SHELF, destination=SHELF),
                **members("PullRequest", model=SHELF),
                **members("PushRequest", model=SHELF),
                **members("DeleteRequest", model=SHELF),
            },
            examples=10,
        ),
    ),
}
REAL = one_of(MODEL)
SCHEMA = {"type": "object", "properties": {"day": {"enum": ["Mon", "Tue"]}}, "required": ["day"]}
FEW = {"type": "integer", "minimum": 1, "maximum": 3}
TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3}
TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 49151}, "minItems": 1, "maxItems": 9}
FORMATS = {"enum": ["json", SCHEMA, {}]}
NO_IMAGES = {"type": "array", "maxItems": 0}
STAY = {"enum": ["5m", 60.5, -1]}
REAL_PLANS = {
    "OpenAI": (
        OPENAI,
        Plan(
            [CHAT, COMPLETIONS, EMBEDDINGS],
            {
                "ModelIdsShared": REAL,
                "CreateChatCompletionRequest.allOf.1.required": ["model", "messages", "max_tokens"],
                **members("CreateChatCompletionRequest.allOf.1", max_tokens=FEW, max_completion_tokens=FEW, n=FEW),
                "CreateCompletionRequest.required": ["model", "prompt", "max_tokens"],
                **members("CreateCompletionRequest", model=REAL, prompt={"anyOf": [TEXT, TEXTS, TOKENS]}),
                **members("CreateCompletionRequest", max_tokens=FEW, n=FEW),
                **members("CreateEmbeddingRequest", model=REAL, input={"anyOf": [TEXT, TEXTS, TOKENS]}),
            },
            examples=15,
            kinds="positive",
            edges=False,
        ),
    ),
    "Ollama": (
        OLLAMA,
        Plan(
            GENERATING,
            {
                "GenerateRequest.required": ["model", "options"],
                **members("GenerateRequest", model=REAL, format=FORMATS, keep_alive=STAY, images=NO_IMAGES),
                "ChatRequest.required": ["model", "messages", "options"],
                **members("ChatRequest", model=REAL, format=FORMATS, keep_alive=STAY),
                **members("ChatMessage", images=NO_IMAGES),
                **members("EmbedRequest", model=REAL, keep_alive={"enum": ["5m"]}),
                "ModelOptions.required": ["num_predict"],
                **members("ModelOptions", num_predict=FEW),
            },
            examples=15,
            kinds="positive",
            edges=False,
        ),
    ),
}
