"""The project's own rules of style, each a few lines over the source. `CONTRIBUTING.md` says why."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import drivetrain

SOURCE = Path(drivetrain.__file__).parent
TESTS = Path(__file__).parents[1]
Node = TypeVar("Node", bound=ast.AST)

FILE_LINES = 500
TEST_FILE_LINES = 600  # a list of cases is read differently
FUNCTION_LINES = 60

# Who may create a task outside a task group, because its life is not that of a block; each says who ends it.
TASK_OWNERS = {
    "cli/chat.py": "the block that shows something turning cancels and awaits it",
    "cli/exports.py": "the block with the sinks stops it, and waits for it",
    "cli/serve.py": "the serving block cancels the one that listens for SIGHUP",
    "engines/contract.py": "a test that cancels a generation",
    "engines/llamacpp/fleet.py": "a loaded model's owner; closing the engine ends them all",
    "engines/naps.py": "a server falls asleep after its last caller has gone; closing the engine ends that",
    "engines/llamacpp/process.py": "a process's attendant ends with the process",
    "gateway/hedge.py": "the generator that has two attempts race ends and awaits both",
    "gateway/drain.py": "an answer is read to its end after its caller has gone; closing the gateway ends them all",
    "library/flight.py": "a download outlives the caller who began it while others wait for it",
    "server/protocol.py": "uvicorn waits for its tasks at shutdown, and a lost connection cancels its own",
    "sinks/process.py": "the run that is told to stop waits for them for a moment, then cancels and awaits both",
}

# Where an error that nobody expected ends.
LAST_RESORTS = {
    "server/__init__.py": "a caller gets an answer",
    "background.py": "what goes on beside the requests goes on",
}

PRINTERS = ("cli/", "engines/llamacpp/worker.py")  # a command line, and a process whose output is its protocol
GENERATORS = {"events", "generate", "pull", "push", "create", "stream", "watch"}  # methods that are async generators


def sources(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), path.name)


def nodes(kind: type[Node], root: Path = SOURCE) -> Iterator[tuple[str, Node]]:
    """Every node of a kind, with its file."""
    for path in sources(root):
        for node in ast.walk(parsed(path)):
            if isinstance(node, kind):
                yield str(path.relative_to(root)), node


def calls(root: Path = SOURCE) -> Iterator[tuple[str, str, int]]:
    """Every call: its file, what is called as it is written, and the line."""
    for file, node in nodes(ast.Call, root):
        yield file, ast.unparse(node.func), node.lineno


def test_no_file_is_longer_than_a_reader_bears() -> None:
    for root, limit in ((SOURCE, FILE_LINES), (TESTS, TEST_FILE_LINES)):
        lengths = {str(path): len(path.read_text().splitlines()) for path in sources(root)}
        assert {path: lines for path, lines in lengths.items() if lines > limit} == {}


def test_a_function_fits_on_a_screen() -> None:
    functions: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = [
        *nodes(ast.FunctionDef),
        *nodes(ast.AsyncFunctionDef),
    ]
    lengths = {f"{file}:{node.name}": (node.end_lineno or 0) - node.lineno + 1 for file, node in functions}
    long = {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}
    assert long == {}


def test_every_module_says_what_it_owns() -> None:
    assert [str(path) for path in sources(SOURCE) if not ast.get_docstring(parsed(path))] == []


def test_nothing_prints_but_the_command_line() -> None:
    assert [(file, line) for file, call, line in calls() if call == "print" and not file.startswith(PRINTERS)] == []


def groups() -> set[tuple[str, str]]:
    """Every file with the names of the task groups that it enters."""
    return {
        (file, ast.unparse(item.optional_vars))
        for file, block in nodes(ast.AsyncWith)
        for item in block.items
        if item.optional_vars is not None and "TaskGroup" in ast.unparse(item.context_expr)
    }


def test_tasks_belong_to_a_group_or_to_somebody_who_says_so() -> None:
    grouped = {(file, f"{name}.create_task") for file, name in groups()}
    bare = {
        file
        for file, call, _ in calls()
        if call.endswith(("create_task", "ensure_future")) and (file, call) not in grouped
    }
    assert bare == TASK_OWNERS.keys()


def test_an_async_generator_is_iterated_only_where_it_is_closed() -> None:
    # An abandoned async generator runs its cleanup when the garbage collector likes: an engine would go on working for
    # a caller who has left. `async with aclosing(x.generate(…)) as events:` ends it at once.
    unclosed = [
        (file, loop.lineno)
        for file, loop in nodes(ast.AsyncFor)
        if isinstance(loop.iter, ast.Call)
        and isinstance(loop.iter.func, ast.Attribute)
        and loop.iter.func.attr in GENERATORS
    ]
    assert unclosed == []


def test_only_the_last_resort_catches_everything() -> None:
    caught = [
        (file, handler.lineno)
        for file, handler in nodes(ast.ExceptHandler)
        if handler.type is None or ast.unparse(handler.type) == "Exception"
        if file not in LAST_RESORTS
    ]
    assert caught == []


def test_who_catches_even_cancellation_raises_it_again() -> None:
    swallowed = [
        (file, handler.lineno)
        for file, handler in nodes(ast.ExceptHandler)
        if handler.type is not None and ast.unparse(handler.type) == "BaseException"
        if not any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    ]
    assert swallowed == []


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    assert [str(path) for path in [*sources(SOURCE), *sources(TESTS)] if marks.search(path.read_text())] == []


# Where nothing runs in between: a look at the disk that repeats itself after a while, watched with a deadline.
WATCHERS = {
    ("unit/library/test_catalog.py", "time.sleep"),
}


def test_tests_watch_instead_of_sleeping_and_use_real_parts() -> None:
    forbidden = {"time.sleep", "mock.patch", "patch", "MagicMock", "AsyncMock", "Mock"}
    found = {(file, call) for file, call, _ in calls(TESTS) if call in forbidden}
    assert found == WATCHERS


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest refuses to collect two of one name."""
    names = [path.name for path in TESTS.rglob("test_*.py") if "node_modules" not in path.parts]
    assert sorted({name for name in names if names.count(name) > 1}) == []
