"""Names of OpenTelemetry attributes, as of semantic-conventions-genai v0.1.0 and of the stable conventions.

Spelled out here: the package with the names drops those of generative AI, and renames come with its releases.
"""

from typing import Final

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"

ERROR_TYPE: Final = "error.type"
STATUS_CODE: Final = "http.response.status_code"
SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"

# What has no name there: ours.
REQUEST_ID: Final = "drivetrain.request_id"
ATTEMPT_ID: Final = "drivetrain.attempt_id"
POSITION: Final = "drivetrain.attempt"
DIALECT: Final = "drivetrain.dialect"
OUTCOME: Final = "drivetrain.outcome"
WHY: Final = "drivetrain.why"
REGION: Final = "drivetrain.region"
COST: Final = "drivetrain.cost_micro_usd"
ESTIMATED: Final = "drivetrain.usage_estimated"
QUEUED: Final = "drivetrain.queued_s"
OVERHEAD: Final = "drivetrain.overhead_s"
MODEL_VERSION: Final = "drivetrain.model_version"
PROMPT_VERSION: Final = "drivetrain.prompt_version"
ROLLOUT: Final = "drivetrain.rollout"
KEY: Final = "drivetrain.key_id"
USER: Final = "drivetrain.user_id"
PROJECT: Final = "drivetrain.project_id"
TEAM: Final = "drivetrain.team_id"
ORG: Final = "drivetrain.org_id"
TAG: Final = "drivetrain.tag."  # and the name that the caller gave it

# Events.
ADMITTED: Final = "drivetrain.admitted"
DEQUEUED: Final = "drivetrain.dequeued"
FIRST_TOKEN: Final = "drivetrain.first_token"  # noqa: S105 - of an answer
