"""Downloads from a hub: a server on this machine that answers as the hub does, asked by the hub's own client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

import dcinterp
from dcinterp.checkpoints.hub import cached_snapshot
from dcinterp.support.errors import UserError

PROMPT = "There are a pear, a car, a car. Which is not car? The"
MODEL = Path(dcinterp.__file__).parent / "checkpoints" / "shipped" / "dcformer++"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ID = "somebody/dcformer-small"


class Hub(ThreadingHTTPServer):
    """The files of one folder under one id, and a list of what was asked."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        self.asked: list[str] = []
        self.broken: set[str] = set()
        """Files whose next transfer ends halfway."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = self.path.split("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        if path == "/":
            return self.send(b"")
        if path.startswith(f"/api/models/{ID}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": sha1(content).hexdigest()}
                for name, content in self.server.files.items()
            ]
            return self.send(json.dumps(tree).encode())
        if path.startswith(f"/api/models/{ID}"):
            names = [{"rfilename": name} for name in self.server.files]
            return self.send(json.dumps({"id": ID, "modelId": ID, "sha": COMMIT, "siblings": names}).encode())
        if path.startswith("/api/") or not path.startswith(f"/{ID}/resolve/"):
            code = "GatedRepo" if "gated" in path else "RepoNotFound"
            return self.send(b"", status=403 if "gated" in path else 401, **{"X-Error-Code": code})
        name = path.rsplit("/", 1)[1]
        if name not in self.server.files:
            return self.send(b"", status=404, **{"X-Error-Code": "EntryNotFound"})
        self.send_file(name)

    def send_file(self, name: str) -> None:
        content = self.server.files[name]
        marks: dict[str, Any] = {"ETag": f'"{sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if first:
            marks["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        if self.command == "GET" and name in self.server.broken:
            self.server.broken.discard(name)
            self.send(content[first:], cut=(len(content) - first) // 2, **marks)
            self.close_connection = True
        else:
            self.send(content[first:], status=206 if first else 200, **marks)

    def send(self, content: bytes, *, status: int = 200, cut: int | None = None, **headers: Any) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:cut])

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests look at what was asked."""


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[Hub]:
    """The hub that the client asks, and an empty cache."""
    server = Hub(MODEL)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "ENDPOINT": server.address,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": False,
    }.items():
        assert hasattr(constants, name)
        monkeypatch.setattr(constants, name, value)
    yield server
    server.shutdown()
    server.server_close()


def refusal(name: str) -> str:
    """The sentence by which a model is refused."""
    with pytest.raises(UserError) as refused:
        dcinterp.load(name)
    (sentence,) = str(refused.value).splitlines()
    return sentence


def test_a_model_is_fetched_once_and_then_needs_no_hub(hub, shipped):
    first = dcinterp.load(ID)
    assert f"GET /{ID}/resolve/{COMMIT}/model.safetensors" in hub.asked
    hub.asked.clear()
    again = dcinterp.load(ID)
    assert hub.asked == []
    expected = shipped(PROMPT)
    assert torch.equal(first(PROMPT), expected)
    assert torch.equal(again(PROMPT), expected)


def test_a_snapshot_without_weights_is_no_whole_model(hub, monkeypatch):
    dcinterp.load(ID)
    folder = cached_snapshot(ID)
    assert folder is not None
    (folder / "model.safetensors").unlink()
    (folder / "training_args.bin").write_bytes(b"of a trainer")
    assert cached_snapshot(ID) is None


def test_a_transfer_that_breaks_off_is_asked_for_again(hub, shipped):
    hub.broken.add("model.safetensors")
    assert torch.equal(dcinterp.load(ID)(PROMPT), shipped(PROMPT))
    assert hub.asked.count(f"GET /{ID}/resolve/{COMMIT}/model.safetensors") == 2


def test_a_model_of_others_goes_through_transformers(hub, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=509, **sizes)).save_pretrained(tmp_path / "llama")
    tokenizer = {name: content for name, content in hub.files.items() if name.startswith("tokenizer")}
    hub.files = tokenizer | {path.name: path.read_bytes() for path in (tmp_path / "llama").iterdir()}
    bridge = dcinterp.load(ID)
    assert (bridge.cfg.n_layers, bridge.cfg.n_heads) == (1, 2)
    assert torch.isfinite(bridge(PROMPT)).all()


@pytest.mark.parametrize(("name", "said"), [("nobody/nothing", "check the spelling"), ("gated/model", "on request")])
def test_a_refusal_says_why(hub, name, said):
    assert said in refusal(name)


@pytest.mark.parametrize(
    ("missing", "said"), [("config.json", "without a config.json"), ("model.safetensors", "no safetensors weights")]
)
def test_what_is_no_whole_model_is_refused(hub, missing, said):
    del hub.files[missing]
    assert said in refusal(ID)


def test_a_hub_that_answers_nonsense_is_refused(hub):
    hub.files["config.json"] = b"<html>Log in to this network</html>"
    assert "not valid JSON" in refusal(ID)
