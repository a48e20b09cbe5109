"""The chat: entries, slash commands, and what Ctrl-C and Ctrl-D do, in a real terminal."""

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from drivetrain.cli.chat import Conversation
from drivetrain.cli.client import Server
from drivetrain.cli.command import Missing, Misused
from drivetrain.cli.terminal import HELP, Session, read_entry
from tests.unit.cli.kit import Play, Terminal
from tests.unit.cli.screen import CTRL_C, CTRL_D, UP, Screen
from tests.unit.cli.standin import Answer, StandIn

RUN = "import sys; from drivetrain.cli import main; sys.exit(main())"
DONE = {"message": {"role": "assistant", "content": ""}, "done": True}


def echo(body: Any) -> Answer:
    """Says how many messages it was sent, and the last of them."""
    if not body["messages"]:
        return 200, [{"done": True, "done_reason": "load"}]
    said = f"{len(body['messages'])}: {body['messages'][-1]['content']}"
    return 200, [{"message": {"role": "assistant", "content": said}, "done": False}, DONE]


# --- entries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "entry"),
    [
        (["hello "], "hello"),
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['"""one line"""'], "one line"),
        (['/set system """Be', 'brief."""'], "/set system Be\nbrief."),
        (['"""', "def f():", "    pass", '"""'], "def f():\n    pass"),
    ],
)
def test_an_entry_is_a_line_or_what_stands_between_three_quotes(lines: list[str], entry: str) -> None:
    left = iter(lines)
    assert entry == read_entry(lambda prompt: next(left))
    assert list(left) == []


def test_the_prompt_shows_that_a_text_goes_on() -> None:
    prompts: list[str] = []
    lines = iter(['"""a', "b", 'c"""'])

    def read(prompt: str) -> str:
        prompts.append(prompt)
        return next(lines)

    read_entry(read)
    assert prompts == [">>> ", "... ", "... "]


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(play: Play) -> StandIn:
    return play(
        {
            "POST /api/chat": echo,
            "POST /api/show": (200, {"system": "From the model.", "details": {"family": "llama"}}),
            "POST /api/create": (200, {"status": "success"}),
            "POST /v1/models": (500, {"error": {"message": "no such model"}}),
        }
    )


@pytest.fixture
def session(server: StandIn) -> Iterator[Session]:
    with asyncio.Runner() as runner:
        client = Server(server.url, {})
        yield Session(runner, client, Conversation(model="m"))
        runner.run(client.aclose())


def test_what_was_said_is_sent_again(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert not session.take("one")
    assert not session.take("two")

    assert capsys.readouterr().out == "1: one\n3: two\n"
    assert [message["content"] for message in session.conversation.messages] == ["one", "1: one", "two", "3: two"]


def test_clear_forgets_it(session: Session) -> None:
    session.take("one")
    session.take("/clear")
    assert session.conversation.messages == ()


@pytest.mark.parametrize(
    ("entry", "change"),
    [
        ("/set parameter temperature 0.5", {"options": {"temperature": 0.5}}),
        ('/set parameter stop "a b" c', {"options": {"stop": ["a b", "c"]}}),
        ("/set system Be brief.", {"system": "Be brief."}),
        ("/set system", {"system": None}),
        ("/set format json", {"format": "json"}),
        ('/set format {"type": "object"}', {"format": {"type": "object"}}),
        ("/set noformat", {"format": None}),
        ("/set think", {"think": True}),
        ("/set think high", {"think": "high"}),
        ("/set nothink", {"think": False}),
        ("/set verbose", {"verbose": True}),
        ("/set quiet", {"verbose": False}),
        ("/load other", {"model": "other"}),
    ],
)
def test_set_and_load_change_what_comes_next(session: Session, entry: str, change: dict[str, Any]) -> None:
    session.conversation = replace(session.conversation, system="old", format="json", verbose=True)
    expected = replace(session.conversation, **change)
    session.take(entry)
    assert expected == session.conversation


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("/set", "/set takes parameter, system, format, noformat, think, nothink, verbose, quiet; got ''"),
        ("/set parameter temperature", "/set parameter takes a name and a value"),
        ("/set parameter heat 1", "there is no parameter 'heat'"),
        ('/set parameter stop "a', '/set parameter stop "a: No closing quotation'),
        ("/load", "/load takes the name of a model"),
        ("/save", "/save takes a name for the model"),
        ("/show everything", "/show takes license, modelfile, parameters, system, template; got 'everything'"),
        ("/sett", "there is no '/sett'; /? tells what there is"),
    ],
)
def test_a_wrong_command_is_told_and_changes_nothing(session: Session, entry: str, message: str) -> None:
    before = session.conversation
    with pytest.raises(Misused) as caught:
        session.take(entry)
    assert caught.value.message.startswith(message)
    assert before == session.conversation


def test_save_keeps_model_system_parameters_and_messages(session: Session, server: StandIn) -> None:
    for entry in ("/set system S", "/set parameter seed 1", "one", "/save mine"):
        session.take(entry)

    assert server.asked[-1] == (
        "POST /api/create",
        {
            "model": "mine",
            "from": "m",
            "system": "S",
            "parameters": {"seed": 1},
            "messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "2: one"}],
            "stream": False,
        },
    )


def test_show_tells_the_models_part_and_what_was_set_here(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    for entry in ("/set system S", "/show system", "/show template", "/show"):
        session.take(entry)
    assert capsys.readouterr().out == (
        "From the model.\nset in this chat: S\nthe model has no template\n"
        "  Model\n    architecture         llama\n\n  System\n    From the model.\n"
    )


def test_help_tells_of_every_command(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.take("/?")
    assert capsys.readouterr().out == HELP + "\n"


@pytest.mark.parametrize("entry", ["/bye", "/exit", "/quit"])
def test_bye_leaves(session: Session, entry: str) -> None:
    assert session.take(entry)


def test_a_failure_leaves_the_conversation_as_it_was(session: Session, server: StandIn) -> None:
    before = session.conversation
    for entry in ("/load nowhere", "hello"):
        server.play("POST /api/chat", (404, {"error": "model not found"}))
        with pytest.raises(Missing):
            session.take(entry)
    assert before == session.conversation


# --- in a terminal ----------------------------------------------------------------------------------------------------


def chatting(drivetrain: Terminal) -> Screen:
    return Screen([sys.executable, "-c", RUN, "run", "m", "--home", str(drivetrain.home)], os.environ)


def test_a_chat_with_history(drivetrain: Terminal, server: StandIn) -> None:
    with chatting(drivetrain) as screen:
        screen.wait_for(">>> ")
        screen.enter("hello")
        assert screen.wait_for(">>> ") == "hello\n1: hello\n>>> "
        screen.enter('"""two')
        screen.wait_for("... ")
        screen.enter('lines"""')
        assert screen.wait_for("lines\n>>> ") == 'lines"""\n3: two\nlines\n>>> '
        screen.enter("/nothing")
        screen.wait_for("Error: there is no '/nothing'; /? tells what there is\n>>> ")
        screen.press(CTRL_D)
        assert screen.exit_code() == 0

    with chatting(drivetrain) as screen:
        screen.wait_for(">>> ")
        screen.press(UP * 4 + "\r")
        screen.wait_for("1: hello\n>>> ")
        screen.enter("/bye")
        assert screen.exit_code() == 0
    assert (drivetrain.home / "state" / "history").stat().st_mode & 0o777 == 0o600


def test_ctrl_c_stops_the_answer_and_not_the_program(drivetrain: Terminal, play: Play) -> None:
    leaving = threading.Event()

    def endless(body: Any) -> Answer:
        if not body["messages"] or body["messages"][-1]["content"] != "count":
            return echo(body)

        def frames() -> Iterator[Any]:
            yield {"message": {"role": "assistant", "content": "1 2 3"}, "done": False}
            leaving.wait(30)

        return 200, frames()

    play({"POST /api/chat": endless})
    with chatting(drivetrain) as screen:
        screen.wait_for(">>> ")
        screen.press(CTRL_C)
        screen.wait_for("Use Ctrl-D or /bye to leave.\n>>> ")
        screen.enter("count")
        screen.wait_for("1 2 3")
        screen.press(CTRL_C)
        screen.wait_for(">>> ")
        screen.enter("go on")
        screen.wait_for("3: go on\n>>> ")  # the part that was told is part of the conversation
        screen.enter("/bye")
        assert screen.exit_code() == 0
    leaving.set()


def test_ctrl_c_ends_the_answer_to_one_prompt(drivetrain: Terminal, play: Play) -> None:
    leaving = threading.Event()

    def frames() -> Iterator[Any]:
        yield {"message": {"role": "assistant", "content": "1 2 3"}, "done": False}
        leaving.wait(30)

    play({"POST /api/chat": lambda body: (200, frames())})
    words = [sys.executable, "-c", RUN, "run", "m", "count", "--home", str(drivetrain.home)]
    with Screen(words, os.environ) as screen:
        screen.wait_for("1 2 3")
        screen.press(CTRL_C)
        assert screen.exit_code() == 130
    leaving.set()


def test_json_is_not_for_chats(drivetrain: Terminal) -> None:
    words = [sys.executable, "-c", RUN, "run", "m", "--json", "--home", str(drivetrain.home)]
    with Screen(words, os.environ) as screen:
        screen.wait_for("Error: --json needs a prompt; a chat is for people\n")
        assert screen.exit_code() == 2
