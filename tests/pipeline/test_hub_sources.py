"""A hub's data sets, against a server on this machine that speaks the hub's protocol: no hub is reached."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

ROOT = Path(__file__).parents[2]
OLD, NEW = "1" * 40, "2" * 40
NAME = "someone/sums"
REVISIONS = {"main": NEW, "v1": OLD, OLD: OLD, NEW: NEW}
SUMS = {OLD: ["1+1", "2+2"], NEW: ["3+3", "4+4", "5+5"]}

# In a process of its own: the hub's address is read when the library is imported.
READ = """
import json, sys
from slipway.config.schema import Source
from slipway.data.sources import open_source
from slipway.errors import SlipwayError
try:
    source = open_source(Source.model_validate(json.loads(sys.argv[1])), "data.a.sources[0]", 0, 0)
    rows = [[place, record["question"]] for block in source.blocks() for place, record in source.read(block)]
    print(json.dumps({"identity": source.identity(), "rows": rows}))
except SlipwayError as error:
    print(json.dumps({"error": str(error)}))
"""


def content(commit: str) -> bytes:
    return "".join(json.dumps({"question": text, "answer": "0"}) + "\n" for text in SUMS[commit]).encode()


class Hub(BaseHTTPRequestHandler):
    """Answers what `datasets` asks of a data set of one file, at two commits."""

    asked: ClassVar[list[str]] = []

    def log_message(self, *_: object) -> None:
        """Stay quiet."""

    def do_HEAD(self) -> None:
        """Answer without the content."""
        self._answer()

    def do_GET(self) -> None:
        """Answer."""
        self._answer()

    def do_POST(self) -> None:
        """Answer what is asked of given paths."""
        length = int(self.headers.get("Content-Length") or 0)
        self._answer(self.rfile.read(length).decode())

    def _answer(self, body: str = "") -> None:
        path = self.path.partition("?")[0].replace("%2F", "/")
        self.asked.append(f"{self.command} {path}")
        api, files = f"/api/datasets/{NAME}", f"/datasets/{NAME}/resolve/"
        if path.startswith(files):
            revision, _, file = path.removeprefix(files).partition("/")
            if file != "train.jsonl":
                return self._send(404, {}, {"X-Error-Code": "EntryNotFound"})
            commit = REVISIONS[revision]
            return self._send(200, content(commit), {"ETag": f'"{commit}"', "X-Repo-Commit": commit})
        if path != api and not path.startswith(f"{api}/"):
            return self._send(404, {}, {"X-Error-Code": "RepoNotFound"})
        what, _, rest = path.removeprefix(api).lstrip("/").partition("/")
        revision = rest.partition("/")[0] or "main"
        if revision not in REVISIONS:
            return self._send(404, {}, {"X-Error-Code": "RevisionNotFound"})
        commit = REVISIONS[revision]
        listed = {
            "type": "file",
            "path": "train.jsonl",
            "size": len(content(commit)),
            "oid": sha1(content(commit)).hexdigest(),
        }
        if what == "tree":
            return self._send(200, [listed])
        if what == "paths-info":
            return self._send(200, [listed] if "train.jsonl" in body else [])
        return self._send(200, {"id": NAME, "sha": commit, "siblings": [{"rfilename": "train.jsonl"}], "tags": []})

    def _send(self, status: int, answer: object, headers: dict[str, str] | None = None) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def read(hub: str, home: Path, **settings: str) -> dict:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub, "HF_HOME": str(home), "PYTHONPATH": str(ROOT / "workflow"), "NO_PROXY": "*"}
    command = [sys.executable, "-P", "-c", READ, json.dumps({"path": NAME} | settings)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_tag_is_read_at_its_commit_which_is_recorded(hub: str, tmp_path: Path) -> None:
    assert read(hub, tmp_path, revision="v1") == {
        "identity": {"commit": OLD, "rows": 2},
        "rows": [[0, "1+1"], [1, "2+2"]],
    }
    # the same cache: the newest commit is not mistaken for the one that lies there
    assert read(hub, tmp_path)["identity"] == {"commit": NEW, "rows": 3}


def test_a_full_commit_needs_no_question_for_it(hub: str, tmp_path: Path) -> None:
    assert [text for _, text in read(hub, tmp_path, revision=OLD)["rows"]] == SUMS[OLD]
    assert f"GET /api/datasets/{NAME}" not in Hub.asked


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"revision": "v9"}, "sources[0].revision: someone/sums has no commit, tag or branch 'v9'"),
        ({"path": "someone/else"}, "sources[0].path: 'someone/else' is neither a file, nor a folder, nor a data set"),
        ({"split": "other"}, "cannot be read by datasets"),
    ],
)
def test_what_the_hub_does_not_have_is_named(hub: str, tmp_path: Path, settings: dict, said: str) -> None:
    assert said in read(hub, tmp_path, **settings)["error"]
