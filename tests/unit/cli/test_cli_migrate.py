"""`drivetrain migrate`: which model becomes which, what stands against it, and the rollouts that move callers."""

import json
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from drivetrain.cli.migrating import comparing, ledger, planning, replay
from drivetrain.cli.migrating.comparing import Answer
from drivetrain.cli.migrating.judging import Judged, Made, Side, Used, judge
from drivetrain.cli.migrating.mapping import match
from drivetrain.cli.migrating.sides import parameters
from drivetrain.cli.migrating.today import Public, baseline, moved, publics
from drivetrain.config.schema import Config, Engine, Policy, Route, Target
from drivetrain.dialects import ollama, openai
from drivetrain.rollouts.plan import Arm, Plan, Rollout, Stage
from drivetrain.store import Body, Store
from drivetrain.types import Choice, Embeddings, Model, ModelSpec, Request, Response
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.manners import openai_frames
from tests.fakes.replies import Stream, Whole
from tests.fakes.upstream import FakeUpstream
from tests.unit.cli.kit import Terminal
from tests.unit.cli.rows import CAME_S, attempt, fill

# --- which becomes which ----------------------------------------------------------------------------------------------

HUB = tuple(
    Model(id=name)
    for name in (
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.1-70B-Instruct",
        "meta-llama/Llama-3.1-8B-base",
        "Qwen/Qwen2.5-7B-Instruct-AWQ",
        "Qwen/Qwen2.5-Coder-7B-Instruct",
        "google/gemma-2-9b-it",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "mistralai/Mistral-7B-Instruct-v0.3",
        "mistralai/Mixtral-8x7B-Instruct",
        "same",
    )
)


@pytest.mark.parametrize(
    ("name", "becomes", "why"),
    [
        ("same:latest", "same", "the same name"),
        ("llama3.1:8b", "meta-llama/Llama-3.1-8B-Instruct", "family llama3.1, size 8B, quantisation not told"),
        ("llama3.1:8b-text", "meta-llama/Llama-3.1-8B-base", "family llama3.1, size 8B, quantisation not told"),
        ("qwen2.5:7b-instruct-q4_K_M", "Qwen/Qwen2.5-7B-Instruct-AWQ", "family qwen2.5, size 7B, Q4_K_M becomes AWQ"),
        ("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct", "family qwen2.5coder, size 7B, quantisation not told"),
        ("gemma2:9b", "google/gemma-2-9b-it", "family gemma2, size 9B, quantisation not told"),
        ("me/smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "family smollm2, size 135M, quantisation not told"),
        ("mixtral:8x7b", "mistralai/Mixtral-8x7B-Instruct", "family mixtral, size 8X7B, quantisation not told"),
        ("mixtral:8x22b", None, "no model has its family and size; write --map"),
        ("llama3.1", None, "several might be meta-llama"),
        ("gemma2:27b", None, "no model has its family and size; write --map"),
        ("phi4", None, "no model has its family and size; write --map"),
    ],
)
def test_a_model_becomes_the_one_of_its_name_or_family_and_size(name: str, becomes: str | None, why: str) -> None:
    found = match(Model(id=name), HUB, {})
    assert found.target == becomes
    if name == "llama3.1":
        assert found.why == "several might be meant; write --map"
        assert found.choices == ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct")
    else:
        assert found.why == why


def test_what_the_source_tells_of_a_model_counts_where_its_name_does_not() -> None:
    known = Model(id="llama3.1:latest", parameter_size="8.03B", quantization="Q4_K_M")
    found = match(known, HUB, {})
    assert found.target == "meta-llama/Llama-3.1-8B-Instruct"


def test_a_near_version_is_offered_and_never_taken() -> None:
    assert match(Model(id="mistral:7b"), HUB, {}).choices == ("mistralai/Mistral-7B-Instruct-v0.3",)


def test_of_several_the_one_of_the_same_quantisation_is_taken() -> None:
    offered = (Model(id="m-7b-awq"), Model(id="m-7b-fp8"))
    assert match(Model(id="m:7b-fp8"), offered, {}).target == "m-7b-fp8"


def test_what_is_said_holds_if_it_is_there() -> None:
    assert match(Model(id="phi4:latest"), HUB, {"phi4": "SAME"}).target == "same"
    missing = match(Model(id="phi4"), HUB, {"phi4": "gone"})
    assert (missing.target, missing.why) == (None, "there is no 'gone'")


# --- what stands behind a name ----------------------------------------------------------------------------------------

BOX, GPU = "box", "gpu"
CONFIG = Config(
    engines={BOX: Engine(kind="ollama"), GPU: Engine(kind="vllm"), "other": Engine(kind="openai")},
    models={
        "chat": Route(
            targets=(
                Target(engine=BOX, model="m:7b", weight=3),
                Target(engine=BOX, model="m:8b"),
                Target(engine="other", model="x", tier=1),
            ),
            policy="p",
        )
    },
    policies={"p": Policy(settings={"n_ctx": 8192}, parameters={"top_p": 0.5})},
)
LISTED = {BOX: (Model(id="m:7b"), Model(id="chat")), GPU: (Model(id="M:7B"),), "other": ()}


def rollout(state: Any, arm: Arm, model: str = "m:7b") -> Rollout:
    stages = (Stage(percent=0, shadow=True), Stage(percent=100))
    return Rollout(id="R", model=model, arms=(Arm(name="baseline"), arm), stages=stages, state=state)


def test_public_names_are_those_of_routes_of_the_library_and_of_engines_each_once() -> None:
    spec = ModelSpec(id="mine", engine=BOX, remote_model="far")
    found = {one.name: one for one in publics(CONFIG, [spec], LISTED, Plan())}
    assert list(found) == ["chat", "mine", "m:7b"]
    assert found["mine"].targets == (Target(engine=BOX, model="far"),)
    assert [target.engine for target in found["m:7b"].targets] == [BOX, GPU]
    assert not found["m:7b"].written


def test_a_rollout_that_is_done_says_where_a_name_is_and_one_on_its_way_is_told() -> None:
    there = rollout("done", Arm(name="box-to-gpu", targets=(Target(engine=GPU, model="org/m"),)))
    busy = rollout("paused", Arm(name="new", prompt="a@1"), model="chat")
    plan = Plan(rollouts={"m:7b": there, "chat": busy})
    chat, done = publics(CONFIG, [], LISTED, plan)
    assert done.targets == (Target(engine=GPU, model="org/m"),)
    assert chat.busy == busy


def test_the_new_engine_takes_the_place_of_the_old_one_and_nothing_else_changes() -> None:
    chat, both = publics(CONFIG, [], LISTED, Plan())
    assert moved(chat, BOX, GPU, "org/m") == (
        Target(engine=GPU, model="org/m", weight=3),
        Target(engine="other", model="x", tier=1),
    )
    assert baseline(chat, GPU) == chat.targets
    assert [target.engine for target in baseline(both, GPU)] == [BOX]


# --- what stands against it -------------------------------------------------------------------------------------------


UNUSED, PLAIN = Used(), Made()


def judged(
    one: Model, other: Model, *, kind: str = "vllm", used: Used = UNUSED, made: Made = PLAIN, **of: Any
) -> Judged:
    public = Public(**{"name": "chat", "targets": (Target(engine=BOX, model=one.id),), "policy": "p", **of})
    source = Side(name=BOX, kind="ollama", models=(one,), made={one.id: made})
    target = Side(name=GPU, kind=kind, models=(other,))
    found = judge(public, source, target, {}, used, Config(engines=CONFIG.engines))
    assert found is not None
    return found


def texts(found: Judged) -> list[tuple[bool, str]]:
    return [(finding.blocks, finding.text) for finding in found.findings]


def able(*abilities: Any, context: int | None = None, name: str = "m:7b-q8_0") -> Model:
    return Model(id=name, capabilities=frozenset(abilities), context_length=context)


def said(surface: Any, **members: Any) -> Request:
    request: Request = surface.decode_request(json.dumps({"model": "chat", **members}).encode())
    return request


CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def test_the_same_model_with_the_same_abilities_is_ready() -> None:
    found = judged(able("completion", "tools", context=4096), able("completion", "tools", context=8192))
    assert (found.verdict, found.goes) == ("ready", True)


def test_an_ability_that_is_missing_blocks_only_where_callers_need_it() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    asks = Used(requests=1, samples=(said(ollama.CHAT, **CHAT, tools=tools),))
    one, other = able("completion", "tools"), able("completion")
    assert texts(judged(one, other)) == [(False, "m:7b-q8_0 has no tools")]
    assert texts(judged(one, other, used=asks)) == [(True, "m:7b-q8_0 has no tools, and is asked for")]


def test_an_ability_that_is_not_told_is_a_remark() -> None:
    [(blocks, text)] = texts(judged(able("completion", "tools"), able()))
    assert not blocks
    assert text.endswith(
        "does not tell whether m:7b-q8_0 has tools; vLLM calls tools only with --enable-auto-tool-choice"
    )


def test_a_context_that_is_too_short_blocks_only_what_was_longer() -> None:
    one, other = able(context=8192), able(context=4096)
    assert texts(judged(one, other, used=Used(requests=1, longest=4000))) == [
        (False, "context of 4,096 tokens instead of 8,192; the longest seen had 4,000")
    ]
    assert texts(judged(one, other, used=Used(requests=1, longest=5000))) == [
        (True, "a request had 5,000 tokens, and m:7b-q8_0 takes 4,096")
    ]


def test_kept_requests_are_written_for_the_new_engine_and_what_it_has_no_word_for_is_told() -> None:
    sent = Used(samples=(said(ollama.CHAT, **CHAT, options={"num_ctx": 99, "mirostat": 1, "temperature": 0}),))
    assert texts(judged(able(), able(), used=sent)) == [
        (False, "callers send mirostat, num_ctx, for which gpu has no word: left out")
    ]
    biased = Used(samples=(said(openai.CHAT, **CHAT, logit_bias={"1": 5}), said(openai.CHAT, **CHAT)))
    assert texts(judged(able(), able(), kind="ollama", used=biased)) == [
        (True, "1 of 2 kept requests cannot go there: an Ollama engine takes no logit_bias")
    ]


def test_what_a_modelfile_adds_is_told() -> None:
    made = Made(system="Be brief.", parameters={"temperature": 0.1, "num_gpu": 1, "num_ctx": 1}, messages=2)
    found = [text for _, text in texts(judged(able(), able(), made=made))]
    assert found[0].startswith("its Modelfile has a system prompt, which gpu does not know")
    assert found[1:] == [
        "its Modelfile begins with 2 messages, which gpu does not know",
        "its Modelfile sets num_gpu, for which gpu has no word",
    ]


def test_embeddings_and_conversations_by_tokens_do_not_move_along() -> None:
    used = Used(dialects={"ollama.embed": 3, "ollama.generate": 1})
    found = [text for _, text in texts(judged(able("embedding"), able("embedding", name="m:7b"), used=used))]
    assert "vectors of another engine or quantisation may not fit an index that is made already" in found
    assert any("that conversation is forgotten" in text for text in found)


def test_a_name_without_a_counterpart_blocks_if_somebody_wrote_or_used_it() -> None:
    lonely = able(name="gone:1b")
    assert judged(lonely, able()).verdict == "blocked"
    unused = judged(lonely, able(), written=False)
    assert (unused.verdict, unused.goes) == ("remarks", False)
    assert judged(lonely, able(), written=False, used=Used(requests=1)).verdict == "blocked"


def test_a_rollout_on_its_way_blocks() -> None:
    found = judged(able(), able(), busy=rollout("running", Arm(name="new")))
    assert texts(found) == [(True, "rollout R of it is running; end it first: drivetrain rollouts")]


# --- the rollouts -----------------------------------------------------------------------------------------------------


def test_a_rollout_begins_with_copies_and_keeps_what_a_modelfile_says_of_requests() -> None:
    made = Made(parameters={"temperature": 0.1, "top_p": 0.9, "num_ctx": 2, "stop": ("a",)})
    one = judged(able(), able(), made=made)
    source = Side(name=BOX, kind="ollama", models=(able(),), made={"m:7b-q8_0": made})
    public = Public(name="chat", targets=(Target(engine=BOX, model="m:7b-q8_0"),))
    fields = planning.fields(
        public,
        one,
        source,
        Side(name=GPU, kind="vllm", models=()),
        CONFIG.policies["p"],
        stage={"least_s": 1.0},
        guards={"errors": 0.1},
        shadow={"usd": 5.0},
    )
    assert [arm["name"] for arm in fields["arms"]] == ["baseline", "box-to-gpu"]
    assert fields["arms"][1]["parameters"] == {"temperature": 0.1, "stop": ["a"]}  # the policy says top_p
    assert [(stage["percent"], stage.get("shadow")) for stage in fields["stages"]] == [
        (0.0, True),
        (1.0, None),
        (5.0, None),
        (25.0, None),
        (100.0, None),
    ]


def test_parameters_are_read_as_ollama_shows_them() -> None:
    text = 'temperature                    0.7\nstop   "<|x|>"\nstop "b"\nnum_ctx 4096\nunknown 1\nseed many'
    assert parameters(text) == {"temperature": 0.7, "stop": ("<|x|>", "b"), "num_ctx": 4096}


# --- side by side -----------------------------------------------------------------------------------------------------


def answer(text: str, first_s: float, total_s: float, tokens: int) -> Answer:
    response = Response(choices=(Choice(index=0, text=text),))
    return Answer(said=response, first_token_s=first_s, total_s=total_s, tokens=tokens)


def embedded(*vectors: Sequence[float], total_s: float = 1.0) -> Answer:
    return Answer(said=Embeddings(vectors=vectors), total_s=total_s)


def side_by_side(of: comparing.Kind, ours: Sequence[Answer], theirs: Sequence[Answer]) -> comparing.Comparison:
    source, target = comparing.column(BOX, "m", ours), comparing.column(GPU, "n", theirs)
    return comparing.compared("chat", of, source=source, target=target, both=(ours, theirs))


def test_engines_are_compared_by_what_they_answered_to_the_same_prompts() -> None:
    ours = [answer("a b", 0.1, 1.1, 11), answer("c", 0.3, 2.3, 21), Answer(why="it broke")]
    theirs = [answer("a b", 0.2, 0.7, 11), answer("d", 0.2, 0.7, 11), answer("e", 0.2, 0.7, 11)]
    one = side_by_side("answers", ours, theirs)
    assert (one.alike, one.worse) == (0.5, False)
    assert comparing.rows(one) == [
        ("requests", "3", "3", ""),
        ("failed", "1", "0", ""),
        ("first token, median", "200 ms", "200 ms", "x 1.00"),
        ("first token, 95th percentile", "300 ms", "200 ms", "x 0.67"),
        ("tokens per second", "10", "20", "x 2.00"),
        ("whole answer, median", "1,700 ms", "700 ms", "x 0.41"),
        ("whole answer, 95th percentile", "2,300 ms", "700 ms", "x 0.30"),
    ]


def test_engines_are_compared_by_the_angle_between_their_vectors() -> None:
    ours = [embedded((1.0, 0.0), (3.0, 4.0), total_s=0.5), embedded((0.0, 2.0), total_s=0.5)]
    theirs = [embedded((5.0, 0.0), (4.0, 3.0), total_s=0.1), embedded((1.0, 0.0), total_s=0.1)]
    one = side_by_side("vectors", ours, theirs)
    assert one.alike == pytest.approx((0.98 + 0.0) / 2)  # of the first request (1 + 0.96) / 2
    assert not one.worse
    assert (one.apart(0.4), one.apart(0.5)) == (False, True)
    assert comparing.rows(one) == [
        ("requests", "2", "2", ""),
        ("failed", "0", "0", ""),
        ("numbers in a vector", "2", "2", ""),
        ("vectors per second", "3", "15", "x 5.00"),
        ("whole answer, median", "500 ms", "100 ms", "x 0.20"),
        ("whole answer, 95th percentile", "500 ms", "100 ms", "x 0.20"),
    ]


def test_what_failed_at_both_sides_is_not_alike() -> None:
    one = side_by_side("answers", [Answer(why="it broke")], [Answer(why="it broke, too")])
    assert (one.alike, one.worse, one.apart(0.9), one.apart(0.0)) == (None, False, True, False)


def test_vectors_of_another_length_are_worse_however_fast_they_come() -> None:
    one = side_by_side("vectors", [embedded((1.0, 0.0))], [embedded((1.0, 0.0, 0.0))])
    assert (one.fits, one.worse, one.alike) == (False, True, 0.0)


def test_vectors_that_point_away_from_each_other_or_nowhere_have_nothing_in_common() -> None:
    assert comparing.cosine((1.0, 0.0), (-1.0, 0.0)) == 0.0
    assert comparing.cosine((0.0, 0.0), (1.0, 0.0)) == 0.0


def test_a_kept_request_is_asked_without_chance_and_not_in_the_callers_own_words() -> None:
    asked = replay.settled(said(ollama.CHAT, **CHAT, options={"temperature": 2, "num_predict": 9}), "other", 64)
    assert (asked.model, asked.sampling.temperature, asked.sampling.max_tokens, asked.source) == ("other", 0.0, 9, None)


# --- the command line, with engines that answer -----------------------------------------------------------------------

HOUSE = """
engines:
  box: {{kind: ollama, url: "{box}"}}
  gpu: {{kind: openai, url: "{gpu}"}}
models:
  chat: {{targets: [{{engine: box, model: {fake}}}]}}
"""


def keep(home: Path, bodies: Sequence[tuple[str, str]]) -> None:
    """What was said in requests."""
    store = Store.open("sqlite:///state/drivetrain.db", home)
    into = store.rows()
    into.keep([Body(request_id=id, at_s=CAME_S, delete_s=CAME_S * 2, request=said, answer="") for id, said in bodies])
    into.close()
    store.close()


class House:
    """A command line beside two engines that answer."""

    def __init__(self, drivetrain: Terminal, box: FakeUpstream, gpu: FakeUpstream) -> None:
        self.drivetrain = drivetrain
        self.box = box
        self.gpu = gpu

    async def type(self, line: str) -> Any:
        return await anyio.to_thread.run_sync(self.drivetrain.type, line)

    def measured(self) -> Sequence[Any]:
        """What the new engine was asked, but for what only brings its model into memory."""
        bodies = [each.json for each in self.gpu.requests if each.path == "/v1/chat/completions"]
        return [body for body in bodies if body["max_tokens"] > 1]

    async def rollouts(self, line: str) -> Sequence[Any]:
        outcome = await self.type(f"{line} --json")
        assert outcome.code == 0, outcome.err
        return list(outcome.json["rollouts"])


@pytest.fixture
async def house(drivetrain: Terminal) -> AsyncGenerator[House, None]:
    async with FakeUpstream() as box, FakeUpstream() as gpu:
        drivetrain.home.mkdir()
        (drivetrain.home / "drivetrain.yaml").write_text(HOUSE.format(box=box.url, gpu=gpu.url, fake=FAKE))
        yield House(drivetrain, box, gpu)


pytestmark = pytest.mark.anyio


async def test_a_migration_from_its_check_to_its_way_back(house: House) -> None:
    checked = await house.type("migrate check --from box --to gpu")
    assert checked.code == 0, checked.out + checked.err
    assert checked.out.splitlines()[-1] == "ready with remarks"
    planned = await house.rollouts("migrate plan --from box --to gpu")
    assert {one["model"]: one["state"] for one in planned} == {"chat": "paused", f"{FAKE}:latest": "paused"}
    again = await house.type("migrate plan --from box --to gpu")
    assert again.code == 1
    assert "is blocked; see `drivetrain migrate check`" in again.err
    assert {one["state"] for one in await house.rollouts("migrate shift")} == {"running"}
    assert {one["stage"] for one in await house.rollouts("migrate shift")} == {1}
    assert {one["stage"] for one in await house.rollouts("migrate shift --to 25")} == {3}
    for share, problem in (
        (33, "has no such stage; there are 1, 5, 25, 100"),
        (5, "is at 25 % already"),
        (0, "no such"),
    ):
        refused = await house.type(f"migrate shift --to {share}")
        assert (refused.code, problem in refused.err) == (2, True), refused.err
        assert {one["stage"] for one in await house.rollouts("migrate status")} == {3}
    assert {one["stage"] for one in await house.rollouts("migrate shift --to 100")} == {4}
    assert {one["state"] for one in await house.rollouts("migrate shift --to next")} == {"done"}
    assert (await house.type("migrate shift")).code == 3
    back = await house.rollouts("migrate plan --from gpu --to box --model chat")
    assert [one["arms"][1]["targets"][0]["engine"] for one in back] == ["box"]
    assert [one["arms"][0]["targets"][0]["engine"] for one in back] == ["gpu"]
    assert [one["state"] for one in await house.rollouts("migrate rollback")] == ["rolled_back"]
    assert {one["state"] for one in await house.rollouts("migrate rollback")} == {"rolled_back"}
    assert (await house.type("migrate rollback")).code == 3
    assert len(await house.rollouts("migrate status --migration box-to-gpu")) == 2


async def test_both_engines_are_asked_the_same(house: House, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("One?\n\nTwo?\n")
    outcome = await house.type(f"migrate validate --from box --to gpu --model chat --prompts {tmp_path}/prompts.txt")
    assert outcome.code == 0, outcome.err
    assert "answers are alike by 100%" in outcome.out
    asked = house.measured()
    assert sorted(body["messages"][0]["content"] for body in asked) == ["One?", "Two?"]
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in asked} == {(FAKE, 0.0, 64)}


async def test_prompts_are_read_once_for_all_models_as_they_may_come_from_a_pipe(house: House) -> None:
    given, into = os.pipe()
    os.write(into, b"One?\n")
    os.close(into)
    outcome = await house.type(f"migrate validate --from box --to gpu --prompts /dev/fd/{given}")
    os.close(given)
    assert outcome.code == 0, outcome.err
    assert [body["messages"][0]["content"] for body in house.measured()] == ["One?", "One?"]


@pytest.mark.parametrize(("how", "looked", "bodies"), [("", 1, 2), ("--prompts {path}", 1, 2), ("--count 201", 1, 2)])
async def test_the_ledger_is_looked_at_once_for_the_words_of_a_model(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, looked: int, bodies: int
) -> None:
    fill(house.drivetrain.home, [attempt(request_id=f"req_{at}", dialect="ollama.chat") for at in (1, 2)])
    said = [json.dumps({"model": "chat", "messages": [{"role": "user", "content": f"Kept {at}?"}]}) for at in (1, 2)]
    keep(house.drivetrain.home, [(f"req_{at}", body) for at, body in enumerate(said, 1)])
    (tmp_path / "prompts.txt").write_text("One?\n")
    seen = {name: watched(monkeypatch, name) for name in ("attempts", "body")}
    words = f"migrate validate --from box --to gpu --model chat --since 2026-01-01 {how}"
    outcome = await house.type(words.format(path=tmp_path / "prompts.txt"))
    assert outcome.code == 0, outcome.err
    asked = [query.model for query in seen["attempts"]]
    assert (asked.count("chat"), len(seen["body"])) == (looked, bodies)
    kept = sorted(body["messages"][0]["content"] for body in house.measured())
    assert kept == (["One?"] if "--prompts" in how else ["Kept 1?", "Kept 2?"])


def watched(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """What a method of the store is asked from now on."""
    asked: list[Any] = []
    usual = getattr(Store, name)

    def noted(store: Store, what: Any) -> Any:
        asked.append(what)
        return usual(store, what)

    monkeypatch.setattr(Store, name, noted)
    return asked


async def test_more_kept_requests_than_a_check_looks_at_are_read_where_they_are_wanted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MOST_SAMPLES", 1)
    fill(house.drivetrain.home, [attempt(request_id=f"req_{at}", dialect="ollama.chat") for at in (1, 2, 3)])
    said = {"model": "chat", "messages": [{"role": "user", "content": "Kept?"}]}
    keep(house.drivetrain.home, [(f"req_{at}", json.dumps(said)) for at in (1, 2, 3)])
    words = "migrate validate --from box --to gpu --model chat --since 2026-01-01"
    assert (await house.type(f"{words} --count 2")).code == 0
    assert len(house.measured()) == 2
    assert (await house.type(f"{words} --count 1")).code == 0
    assert len(house.measured()) == 3


async def test_kept_requests_of_callers_are_looked_at_and_asked_again(house: House) -> None:
    rows = [("req_1", "ollama.chat", "ok"), ("req_2", "ollama.generate", "ok"), ("req_3", "ollama.chat", "rejected")]
    home = house.drivetrain.home
    fill(home, [attempt(request_id=id, dialect=dialect, outcome=outcome) for id, dialect, outcome in rows])
    said = {"model": "chat", "messages": [{"role": "user", "content": "Kept?"}], "options": {"mirostat": 1}}
    keep(home, [("req_1", json.dumps(said)), ("req_2", '{"model": "chat", "prompt": "Cut o')])
    since = "--model chat --since 2026-01-01"
    checked = (await house.type("migrate check --from box --to gpu --since 2026-01-01 --json")).json["models"][0]
    assert (checked["requests"], checked["dialects"]) == (2, {"ollama.chat": 1, "ollama.generate": 1})
    assert "callers send mirostat, for which gpu has no word: left out" in [one["text"] for one in checked["findings"]]
    outcome = await house.type(f"migrate validate --from box --to gpu {since}")
    assert outcome.code == 0, outcome.err
    asked = house.measured()
    assert [body["messages"] for body in asked] == [said["messages"]]


async def test_kept_texts_that_callers_had_embedded_are_embedded_again(house: House) -> None:
    rows = [("req_1", "ollama.embed"), ("req_2", "openai.embeddings"), ("req_3", "ollama.embeddings")]
    home = house.drivetrain.home
    fill(home, [attempt(request_id=id, dialect=dialect) for id, dialect in rows])
    said = {"model": "chat", "input": ["One", "Two"]}, {"model": "chat", "input": "Three", "dimensions": 2}
    keep(home, [(f"req_{at}", json.dumps(body)) for at, body in enumerate([*said, {"model": "chat"}], 1)])
    outcome = await house.type(
        "migrate validate --from box --to gpu --model chat --since 2026-01-01 --concurrency 1 --json"
    )
    assert outcome.code == 0, outcome.err
    words, vectors = outcome.json["models"]
    assert (words["of"], words["source"]["requests"], words["source"]["dimensions"]) == ("answers", 8, [])
    assert (vectors["of"], vectors["fits"], vectors["shadows"]) == ("vectors", True, None)
    assert vectors["alike"] == pytest.approx(1.0)
    assert [vectors[side]["dimensions"] for side in ("source", "target")] == [[2, 3], [2, 3]]
    asked = [each.json for each in house.gpu.requests if each.path == "/v1/embeddings"]
    assert [body["input"] for body in asked] == [replay.WARM, "Three", ["One", "Two"]]


async def test_a_likeness_that_is_asked_for_decides(house: House) -> None:
    house.gpu.script("/v1/chat/completions", Stream(frames=openai_frames("chat.completion.chunk", ("Nothing",))))
    line = "migrate validate --from box --to gpu --model chat"
    assert (await house.type(line)).code == 0
    assert (await house.type(f"{line} --alike 0.9")).code == 1


async def test_what_is_planned_is_validated_without_naming_it_again(house: House) -> None:
    await house.rollouts("migrate plan --from box --to gpu --model chat")
    outcome = await house.type("migrate validate --json --model chat")
    assert outcome.code == 0, outcome.err
    [one] = outcome.json["models"]
    assert (one["target"]["engine"], one["target"]["requests"], one["shadows"]["comparisons"]) == ("gpu", 8, 0)


async def test_only_a_mapping_that_was_written_is_blamed(house: House) -> None:
    """The source may have lost a model since the migration was planned."""
    await house.rollouts("migrate plan --from box --to gpu --model chat")
    house.box.script("/api/tags", Whole(body={"models": [{"name": "other:latest", "model": "other:latest"}]}))
    outcome = await house.type("migrate validate --model chat --json")
    assert outcome.code == 0, outcome.err
    assert [one["target"]["model"] for one in outcome.json["models"]] == [FAKE]
    refused = await house.type("migrate validate --model chat --map foo=bar")
    assert (refused.code, "--map foo=bar: box has no model 'foo'; there are other" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ("check --from box --to gone", 2, "there is no engine 'gone'"),
        ("check --from box --to box", 2, "--from and --to are both 'box'"),
        ("check --from gpu --to local", 1, ""),
        ("check --from box --to gpu --map foo=bar", 2, "--map foo=bar: box has no model 'foo'; there are"),
        ("validate --from box", 2, "name both --from and --to, or neither"),
        ("plan --from box --to gpu --model gone", 3, "box does not answer 'gone'"),
        ("shift", 3, "no migration is planned"),
        ("rollback --migration a-to-b", 3, "there is no migration 'a-to-b'"),
        ("shift --to many", 2, "'many' is neither a percent nor `next`"),
    ],
)
async def test_what_cannot_be_moved_is_told(house: House, words: str, code: int, problem: str) -> None:
    outcome = await house.type(f"migrate {words}")
    assert outcome.code == code, outcome.out + outcome.err
    assert problem in outcome.err
