"""The processes under another one, as tests look for them.

A process may end between any two looks at it: it is then not there, which is no error.
"""

import psutil


def under(pid: int | None = None, word: str = "", recursive: bool = False) -> list[psutil.Process]:
    """Those of `commands` whose command line has `word`."""
    return [process for process, command in commands(pid, recursive).items() if word in command]


def commands(pid: int | None = None, recursive: bool = False) -> dict[psutil.Process, str]:
    """Command lines of those under `pid` (under this process without it); `recursive`: under them, too.

    One that has ended and is not waited for yet has no command line any more, and is left out.
    """
    found = psutil.Process(pid).children(recursive=recursive)
    return {process: command for process in found if (command := _command(process))}


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie is one too
        return ""


def sockets_of(process: psutil.Process) -> set[str]:
    """Paths of its Unix sockets; none once it has ended."""
    try:
        return {str(connection.laddr) for connection in process.net_connections("unix")}
    except psutil.NoSuchProcess:
        return set()


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more, waited for or not."""
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
