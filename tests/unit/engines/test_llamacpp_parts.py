"""The pure parts of the embedded engine: settings, memory, tools, choices, and what a worker is told and tells."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.dialects import openai
from drivetrain.engines import EngineSettings
from drivetrain.engines.llamacpp import LlamaCpp, choices, embedding, memory, process, settings, tools
from drivetrain.engines.llamacpp.fleet import Crashes
from drivetrain.engines.llamacpp.launch import Adapter, Launch
from drivetrain.engines.llamacpp.sockets import MAX_PATH_BYTES, Sockets
from drivetrain.errors import BadRequest, Unsupported
from drivetrain.gguf import Array, Gguf, Metadata
from drivetrain.types import (
    ChoiceFinished,
    Completion,
    Event,
    Finished,
    Message,
    ModelSpec,
    NamedTool,
    Opaque,
    Request,
    Sampling,
    Text,
    TextDelta,
    Timings,
    Tool,
    Usage,
)
from tests.fakes.host import NoHost

MIB = 2**20
LLAMA: dict[str, Metadata] = {
    "general.architecture": "llama",
    "llama.block_count": 32,
    "llama.context_length": 8192,
    "llama.embedding_length": 4096,
    "llama.feed_forward_length": 14336,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "tokenizer.ggml.tokens": Array(8, 128256),
}


def model(**changes: Metadata) -> Gguf:
    metadata = LLAMA | {name.replace("__", "."): value for name, value in changes.items()}
    return Gguf(version=3, metadata=metadata, tensors=(), alignment=32, data_offset=0, file_bytes=0)


def launch(given: dict[str, Any] | None = None, gguf: Gguf | None = None, **spec: Any) -> Launch:
    resolved = ModelSpec(id="m", weights="/m.gguf", **spec)
    return settings.resolve(resolved, settings.chosen(given or {}), gguf or model(), cores=6)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "member", "expected"),
    [
        ("ctx_len", 2048, "context", 2048),  # Jan
        ("num_ctx", 2048, "context", 2048),  # Ollama
        ("cache_prompt", False, "reuse", False),
        ("n_ctx", 2048.0, "context", 2048),  # llama.cpp, from a JSON writer that knows only floats
        ("ngl", 12, "gpu_layers", 12),
        ("num_gpu", -1, "gpu_layers", None),
        ("cpu_threads", 3, "threads", 3),
        ("num_thread", 0, "threads", 6),
        ("n_parallel", 2, "parallel", 2),
        ("embedding", False, "embedding", False),
        ("num_batch", 32, "cpu_batch", 32),
        ("flash_attn", True, "flash", "enabled"),
        ("flash_attn", "off", "flash", "disabled"),
        ("cache_type_k", "Q8_0", "cache_k", "q8_0"),
        ("use_mmap", False, "mmap", False),
        ("mmproj", "/p.gguf", "projector", "/p.gguf"),
        ("pooling_type", "mean", "pooling", "mean"),
        (
            "adapters",
            ["/a", {"path": "/b", "scale": 0.5}],
            "adapters",
            (Adapter(path="/a"), Adapter(path="/b", scale=0.5)),
        ),
        ("cache_ram", 8, "prompt_cache_bytes", 8 * MIB),
        ("rope_frequency_base", 1e6, "rope_freq_base", 1e6),
    ],
)
def test_a_setting_is_known_by_every_name_that_it_has(name: str, value: Any, member: str, expected: Any) -> None:
    assert getattr(launch({name: value}), member) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_ctx", "2048"),
        ("num_ctx", -1),
        ("num_ctx", True),
        ("n_parallel", 0),
        ("flash_attn", 1),
        ("flash_attn", []),
        ("cache_type_v", "q9"),
        ("use_mmap", 1),
        ("mmproj", 1),
        ("lora", [1]),
        ("rope_freq_base", float("nan")),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as error:
        settings.chosen({name: value})
    assert error.value.message.startswith(f"setting {name!r} is {value!r}; it must be ")
    assert error.value.param == name


def test_what_is_none_of_its_business_is_left_alone() -> None:
    assert settings.chosen({"temperature": 0.5, "prompt_template": "{x}", "num_ctx": None}) == {}


def test_the_context_is_modest_unless_asked_and_never_beyond_the_training() -> None:
    assert launch().context == 4096
    assert launch(gguf=model(llama__context_length=512)).context == 512
    assert launch({"num_ctx": 100_000}).context == 8192
    assert launch({"num_ctx": 2**52}).context == 8192
    assert launch({"num_ctx": 1}).context == 4
    assert launch({"num_ctx": 100_000, "rope_freq_scale": 0.1}).context == 100_000


def test_every_slot_has_its_context_where_that_is_cheap_and_they_share_where_it_is_dear() -> None:
    assert launch({"num_ctx": 256}).cells == 4 * 256
    assert launch({"num_ctx": 8192}).cells == 8192


def test_a_model_made_for_embeddings_keeps_its_pooling_and_others_take_the_last_token() -> None:
    assert launch(gguf=model(llama__pooling_type=1)).pooling == "unspecified"
    assert launch().pooling == "last"


def test_an_encoder_takes_a_whole_input_at_once() -> None:
    encoder = launch(gguf=model(llama__attention__causal=False))
    assert (encoder.encoder, encoder.cpu_batch) == (True, encoder.context)


def test_orders_are_json_by_the_names_of_llama_cpp() -> None:
    orders = json.loads(json.dumps(launch({"ngl": 5}, projector="/p").orders("/s.sock", "m")))
    params = orders["params"]
    assert params["hostname"] == "/s.sock"
    assert params["mmproj.path"] == "/p"
    assert params["n_gpu_layers"] == 5
    assert params["kv_unified_per_slot"] == 4096
    assert params["flash_attn_type"] == "LLAMA_FLASH_ATTN_TYPE_AUTO"
    assert orders["with_gpu"] == {"n_batch": 2048, "n_ubatch": 512}
    assert json.loads(json.dumps(launch().orders("/s", "m")))["with_gpu"]["fit_params"] is True


def test_an_option_of_the_engine_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"engines\.local: .*memory"):
        LlamaCpp("local", EngineSettings(kind="llamacpp", options={"memory": 1}), NoHost())


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_token_in_the_cache_takes_keys_and_values_of_every_layer() -> None:
    assert memory.cell_bytes(model(), "f16", "f16") == 32 * 2 * 8 * 128 * 2
    assert memory.cell_bytes(model(), "q8_0", "q8_0") == 32 * 2 * 8 * 128 // 32 * 34


def test_layers_may_differ_and_some_have_no_cache() -> None:
    hybrid = model(llama__block_count=3, llama__attention__head_count_kv=(8, 0, 4))
    assert memory.cell_bytes(hybrid, "f16", "f16") == (8 + 4) * 128 * 2 * 2


def test_latent_attention_keeps_one_compressed_head() -> None:
    latent = model(llama__block_count=2, llama__attention__kv_lora_rank=512, llama__rope__dimension_count=64)
    assert memory.cell_bytes(latent, "f16", "f16") == 2 * (512 + 64 + 512) * 2


def test_more_of_anything_takes_more() -> None:
    def bytes_of(given: dict[str, Any]) -> int:
        return memory.estimate(launch(given), model(), 4000 * MIB)

    plain = bytes_of({})
    assert bytes_of({"num_ctx": 8192}) > plain
    assert bytes_of({"num_batch": 512}) > plain
    assert bytes_of({"flash_attn": False}) > plain
    assert bytes_of({"cache_type_k": "q4_0"}) < plain
    assert bytes_of({"cache_ram": 0}) == plain - 256 * MIB


def test_a_header_that_lies_costs_nothing() -> None:
    absurd = model(llama__block_count=2**31, llama__attention__head_count=0, llama__attention__head_count_kv=2**31)
    assert memory.cell_bytes(absurd, "f16", "f16") > 0
    assert memory.cell_bytes(model(llama__block_count="many"), "f16", "f16") == 0


# --- tools ------------------------------------------------------------------------------------------------------------


def test_a_template_that_knows_tools_and_none_at_all_are_left_alone() -> None:
    assert tools.with_tools("{% if tools %}…{% endif %}") is None
    assert tools.with_tools("") is None


def test_a_template_without_words_for_tools_is_kept_whole_behind_the_preface() -> None:
    assert str(tools.with_tools("{# system #}…")).endswith("{%- endif -%}\n{# system #}…")
    assert "fold_system = true" not in str(tools.with_tools("{# system #}…"))
    assert "fold_system = true" in str(tools.with_tools("{{ raise_exception('System role not supported') }}"))
    assert "fold_system = true" in str(tools.with_tools("…"))


@pytest.mark.parametrize(
    ("template", "taken"),
    [
        ("HELLO {{ messages[0].content }}", True),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", True),
        ("{{ bad", True),  # llama.cpp tells what is wrong with it
        ("{{ .Prompt }}", False),
        ("{{- range .Messages }}{{ .Content }}{{ end }}", False),
        ("{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}", False),
        ("{{- $last := 1 }}{{/* a note */}}", False),
        ("no braces", False),
        (None, False),
    ],
)
def test_a_models_own_template_is_taken_where_it_is_jinja(template: str | None, taken: bool) -> None:
    assert tools.jinja(template) == (template if taken else None)
    of_weights = model(tokenizer__chat_template="{{ tools }}")
    assert launch(gguf=of_weights, template=template).template == (tools.with_tools(str(template)) if taken else None)


def demanding(**members: Any) -> Request:
    message = Message(role="user", content=(Text(text="Hi."),))
    return Request(model="m", messages=(message,), tools=(Tool(name="a"), Tool(name="b")), **members)


def test_a_demanded_call_is_begun_where_the_form_of_calls_is_ours() -> None:
    request = demanding(tool_choice="required")
    assert tools.demanded(request, prefaced=True).messages[-1].text == "<tool_call>\n"
    assert tools.demanded(request, prefaced=False) is request
    assert tools.demanded(demanding(tool_choice="auto"), prefaced=True).messages == request.messages


def test_a_named_tool_is_the_only_one_left() -> None:
    asked = tools.demanded(demanding(tool_choice=NamedTool(name="b")), prefaced=False)
    assert ([tool.name for tool in asked.tools], asked.tool_choice) == (["b"], "required")


def test_the_callers_own_body_says_the_same() -> None:
    body = json.loads(openai.CHAT.encode_request(demanding()))
    body |= {"tool_choice": {"type": "function", "function": {"name": "b"}}, "top_k": 3}
    request = openai.CHAT.decode_request(json.dumps(body).encode())
    sent = json.loads(openai.CHAT.encode_request(tools.demanded(request, prefaced=True)))
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["b"]
    assert (sent["tool_choice"], sent["top_k"]) == ("required", 3)
    assert sent["messages"][-1] == {"role": "assistant", "content": "<tool_call>\n"}


@pytest.mark.parametrize("kind", [{}, {"type": "function"}])
def test_functions_are_the_tools_it_knows(kind: dict[str, str]) -> None:
    tools.refuse_others(demanding())
    for sent in ([kind | {"function": {"name": "a"}}], [], None):
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": sent}
        tools.refuse_others(openai.CHAT.decode_request(json.dumps(body).encode()))


def test_other_tools_are_refused_by_place() -> None:
    sent = [{"function": {"name": "a"}}, {"type": "custom", "custom": {"name": "b"}}]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": sent}
    with pytest.raises(Unsupported) as caught:
        tools.refuse_others(openai.CHAT.decode_request(json.dumps(body).encode()))
    assert caught.value.param == "tools[1].type"
    assert caught.value.message == "'tools[1].type' is \"custom\"; the embedded engine knows no tools but functions"


def choosing(choice: Any, **members: Any) -> Request:
    """A chat in the caller's own words, with the functions `a` and `b`."""
    body = json.loads(openai.CHAT.encode_request(demanding())) | {"tool_choice": choice, **members}
    return openai.CHAT.decode_request(json.dumps(body).encode())


def allowing(mode: str, *listed: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}


@pytest.mark.parametrize(("mode", "begun"), [("required", True), ("auto", False)])
def test_allowed_tools_are_the_only_ones_left_and_the_choice_is_one_word(mode: str, begun: bool) -> None:
    request = choosing(allowing(mode, {"type": "function", "function": {"name": "b"}}), top_k=3)
    sent = json.loads(openai.CHAT.encode_request(tools.demanded(request, prefaced=True)))
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["b"]
    assert (sent["tool_choice"], sent["top_k"]) == (mode, 3)
    assert (sent["messages"][-1] == {"role": "assistant", "content": "<tool_call>\n"}) is begun


@pytest.mark.parametrize("choice", [None, "auto", "none", "required"])
def test_a_choice_of_one_word_goes_as_it_is(choice: str | None) -> None:
    request = choosing(choice)
    tools.refuse_others(request)
    assert tools.demanded(request, prefaced=False) is request


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("any", "'tool_choice' is \"any\"; the embedded engine knows auto, none, required and functions"),
        (
            {"type": "custom", "custom": {"name": "a"}},
            "'tool_choice.type' is \"custom\"; the embedded engine knows no tools but functions",
        ),
        (
            allowing("required", {"type": "custom", "custom": {"name": "x"}}),
            "'tool_choice' allows no functions; the embedded engine knows no other tools",
        ),
    ],
)
def test_a_choice_that_it_does_not_know_is_refused(choice: Any, message: str) -> None:
    with pytest.raises(Unsupported) as caught:
        tools.refuse_others(choosing(choice))
    assert (caught.value.message, caught.value.param) == (message, "tool_choice")


def test_a_choice_that_is_none_of_the_surfaces_is_left_alone() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "functions": [{"name": "a"}]}
    tools.refuse_others(openai.CHAT.decode_request(json.dumps(body | {"tool_choice": "any"}).encode()))


@pytest.mark.parametrize("schema", [5, True, False, [], "x"])
def test_a_schema_that_is_no_object_is_refused(schema: Any) -> None:
    for given in (
        {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        {"type": "json_object", "schema": schema},
    ):
        with pytest.raises(Unsupported) as caught:
            tools.refuse_others(choosing("auto", response_format=given))
        told = f"'response_format' has the schema {json.dumps(schema)}; the embedded engine takes an object"
        assert (caught.value.message, caught.value.param) == (told, "response_format")


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, None])
def test_a_schema_that_is_one_goes_on(schema: Any) -> None:
    named = {"name": "n", "schema": schema}
    tools.refuse_others(choosing("auto", response_format={"type": "json_schema", "json_schema": named}))


# --- choices ----------------------------------------------------------------------------------------------------------


def test_several_choices_of_several_prompts_are_asked_for_one_by_one() -> None:
    body = {"model": "m", "prompt": ["a", "b"], "n": 2, "seed": 7, "top_k": 3, "stream": True}
    request = openai.COMPLETIONS.decode_request(json.dumps(body).encode())
    assert choices.several(request)
    asked = [json.loads(openai.COMPLETIONS.encode_request(single)) for single in choices.singles(request)]
    assert [(one["prompt"], one.get("n", 1), one["seed"], one["top_k"]) for one in asked] == [
        ("a", 1, 7, 3),
        ("a", 1, 8, 3),
        ("b", 1, 7, 3),
        ("b", 1, 8, 3),
    ]


def test_one_choice_of_one_prompt_goes_as_it_is() -> None:
    assert not choices.several(Request(model="m"))
    assert not choices.several(Request(model="m", completion=Completion(prompts=("a",))))
    assert choices.several(Request(model="m", sampling=Sampling(n=2)))


def test_of_no_token_is_asked_for_as_one_and_told_as_none() -> None:
    body = {"model": "m", "prompt": "a", "max_tokens": 0, "stream": True}
    request = openai.COMPLETIONS.decode_request(json.dumps(body).encode())
    assert choices.several(request)
    (single,) = choices.singles(request)
    assert json.loads(openai.COMPLETIONS.encode_request(single))["max_tokens"] == 1
    assert not choices.several(single)
    told: list[Event] = [
        TextDelta(text="a", raw=b"x"),
        ChoiceFinished(reason="stop"),
        Finished(usage=Usage(prompt=3, completion=1)),
    ]
    assert choices.silent(told) == [ChoiceFinished(reason="length"), Finished(usage=Usage(prompt=3))]


def test_events_are_renumbered_and_lose_frames_that_say_otherwise() -> None:
    events = (Opaque(raw=b"role"), TextDelta(text="a", raw=b"a"), ChoiceFinished(reason="stop"), Finished())
    assert choices.numbered(events, 3) == [TextDelta(text="a", index=3), ChoiceFinished(reason="stop", index=3)]


def test_a_prompt_counts_once_however_many_choices_it_has() -> None:
    ends = [
        Finished(usage=Usage(prompt=10, completion=completion), timings=Timings(completion_s=1.0))
        for completion in (1, 2, 3, 4)
    ]
    end = choices.total(ends, choices_per_prompt=2)
    assert end.usage == Usage(prompt=20, completion=10)
    assert end.timings == Timings(completion_s=4.0)


# --- embeddings, crashes, processes, sockets --------------------------------------------------------------------------


def test_a_shortened_vector_has_length_one_again() -> None:
    assert embedding.shortened([3.0, 4.0, 12.0], 2, lenient=False) == [0.6, 0.8]
    assert embedding.shortened([3.0, 4.0], 2, lenient=False) == [3.0, 4.0]


def test_a_vector_that_is_too_short_is_an_error_except_for_callers_who_take_what_there_is() -> None:
    with pytest.raises(BadRequest, match="at most 2"):
        embedding.shortened([3.0, 4.0], 3, lenient=False)
    assert embedding.shortened([3.0, 4.0], 3, lenient=True) == [3.0, 4.0]


def test_the_first_crash_is_forgiven_and_then_pauses_double() -> None:
    assert [Crashes(count, 0.0).back_off_s for count in (1, 2, 3, 4, 20)] == [0.0, 1.0, 2.0, 4.0, 30.0]


def test_progress_counts_over_all_stages() -> None:
    def line(**payload: Any) -> bytes:
        return b"cmd_child_to_router:state:" + msgspec.json.encode({"state": "loading", "payload": payload})

    assert process.fraction(line(stages=["text_model"], current="text_model", value=0.5)) == 0.5
    assert process.fraction(line(stages=["text_model", "mmproj"], current="mmproj", value=0.5)) == 0.75
    assert process.fraction(b'cmd_child_to_router:state:{"state":"ready","payload":{"id":"m"}}') is None
    assert process.fraction(b"cmd_child_to_router:state:{") is None


def test_how_a_process_ended_is_said_in_words() -> None:
    assert process.ending(1) == "exited with code 1"
    assert process.ending(-6) == "was ended by SIGABRT"
    assert process.ending(-9) == "was ended by SIGKILL, perhaps for want of memory"
    assert process.ending(None) == "is still running"


def test_sockets_are_private_and_those_of_dead_servers_are_cleared(tmp_path: Path) -> None:
    directory = tmp_path / "workers"
    directory.mkdir()
    mine, dead = directory / f"{os.getpid()}-7.sock", directory / f"{2**22 + 1}-1.sock"
    mine.touch()
    dead.touch()
    sockets = Sockets(tmp_path)
    first, second = sockets.next(), sockets.next()
    assert (first.parent, first != second) == (directory, True)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (mine.exists(), dead.exists()) == (True, False)


def test_a_home_too_deep_for_a_socket_gets_a_short_directory_of_its_own(tmp_path: Path) -> None:
    sockets = Sockets(tmp_path / ("d" * 100))
    path = sockets.next()
    assert len(os.fsencode(path)) <= MAX_PATH_BYTES
    assert path.parent.stat().st_mode & 0o777 == 0o700
    sockets.close()
    assert not path.parent.exists()


def test_the_directory_of_the_sockets_goes_with_the_last_of_them(tmp_path: Path) -> None:
    sockets = Sockets(tmp_path)
    sockets.close()  # nobody wanted one
    path = sockets.next()
    path.touch()
    sockets.close()
    assert path.exists()
    path.unlink()
    sockets.close()
    assert not path.parent.exists()
    assert sockets.next().parent.exists()
