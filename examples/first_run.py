"""What `make run` does: start the server, fetch a small model, show how to talk to it and one real answer.

Uses nothing but the `drivetrain` command and the standard library. Stops the server when it is stopped.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PROMPT = "In one short sentence: what is a drivetrain?"
COMMAND = Path(sys.executable).with_name("drivetrain")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, default=11435)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--once", action="store_true", help="stop the server after the answer")
    asked = parser.parse_args()
    home = asked.home.absolute()
    server = subprocess.Popen([COMMAND, "serve", "--home", home, "--port", str(asked.port)])
    try:
        url = wait_for_server(server, home)
        subprocess.run([COMMAND, "pull", asked.model, "--home", home], check=True)
        print(introduction(url, asked.model), flush=True)
        print(f"> {PROMPT}\n{answer(url, asked.model)}\n", flush=True)
        if asked.once:
            return 0
        print("The server goes on until Ctrl-C.", flush=True)
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def wait_for_server(server: "subprocess.Popen[bytes]", home: Path) -> str:
    """The address of the server, once it answers."""
    address = home / "state" / "server.json"
    while server.poll() is None:
        try:
            told = json.loads(address.read_text())
            if told["pid"] == server.pid:
                urllib.request.urlopen(f"{told['url']}/healthz").close()
                return str(told["url"])
        except (OSError, ValueError, urllib.error.URLError):
            pass
        time.sleep(0.05)
    sys.exit(server.returncode or 1)


def answer(url: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 60}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["choices"][0]["message"]["content"]).strip()


def introduction(url: str, model: str) -> str:
    return f"""
Drivetrain answers at {url}

  curl:    curl {url}/v1/chat/completions -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hi"}}]}}'

  openai:  from openai import OpenAI
           client = OpenAI(base_url="{url}/v1", api_key="none")
           print(client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hi"}}]))

  ollama:  from ollama import Client
           print(Client("{url}").chat("{model}", [{{"role": "user", "content": "Hi"}}]))
"""


if __name__ == "__main__":
    sys.exit(main())
