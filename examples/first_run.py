"""What `make run` does: start the server, fetch a small model, show how to talk to it and one real answer.

Uses nothing but the `drivetrain` command and the standard library. Ends the server when it ends.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PROMPT = "In one short sentence: what is a drivetrain?"
COMMAND = Path(sys.executable).with_name("drivetrain")
# Only what is wrong: the log is not what a newcomer came for.
ENVIRON = {"DRIVETRAIN_LOGGING__LEVEL": "warning", "DRIVETRAIN_LOGGING__FORMAT": "console", **os.environ}

EXAMPLES = """
Drivetrain answers at {url}

# curl
curl {url}/v1/chat/completions -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hi"}}]}}'

# Python, the `openai` package ({python} has it)
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
answer = client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hi"}}])
print(answer.choices[0].message.content)

# Python, the `ollama` package
from ollama import Client
print(Client("{url}").chat("{model}", [{{"role": "user", "content": "Hi"}}]).message.content)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, default=11435)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--once", action="store_true", help="stop the server after the answer")
    asked = parser.parse_args()
    home = asked.home.absolute()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server ends with us then, too
    server = subprocess.Popen([COMMAND, "serve", "--home", home, "--port", str(asked.port)], env=ENVIRON)
    try:
        url = wait_for_server(server, home)
        subprocess.run([COMMAND, "pull", asked.model, "--home", home], check=True)
        python = os.path.relpath(sys.executable)
        print(EXAMPLES.format(url=url, model=asked.model, python=python), flush=True)
        print(f"# And one real answer\n> {PROMPT}\n{answer(url, asked.model)}\n", flush=True)
        if asked.once:
            return 0
        print("The server runs until Ctrl-C.", flush=True)
        return server.wait()
    except subprocess.CalledProcessError as error:  # it has said why
        return error.returncode
    except KeyboardInterrupt:
        return 0
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def wait_for_server(server: "subprocess.Popen[bytes]", home: Path) -> str:
    """The address of the server, once it answers. Ends this program if the server ended: it has said why."""
    address = home / "state" / "server.json"
    while server.poll() is None:
        try:
            told = json.loads(address.read_text())
            if told["pid"] == server.pid:  # else a server's that was killed
                urllib.request.urlopen(f"{told['url']}/healthz").close()
                return str(told["url"])
        except (OSError, ValueError):
            pass  # not yet
        time.sleep(0.05)
    sys.exit(server.returncode or 1)


def answer(url: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 60, "temperature": 0}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["choices"][0]["message"]["content"]).strip()


if __name__ == "__main__":
    sys.exit(main())
