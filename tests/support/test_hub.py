"""The module `hub`: the cache first, the hub asked once at most, what is missing said at once."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RevisionNotFoundError

import compatkit.support.hub
from compatkit.support import hub
from compatkit.support.hub import MODEL_FILES, reachable

ROOT = Path(compatkit.support.hub.__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOBODY = "http://127.0.0.1:9"  # the discard port: connections are refused
VARIABLES = (
    "https_proxy",
    "HTTPS_PROXY",
    "http_proxy",
    "HTTP_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
)

ASK = """
import json, socket, sys, time
begun, connect = [], socket.socket.connect
def counted(self, address):
    begun.append(address)
    return connect(self, address)
def slept(seconds):
    begun.extend(["slept"] * 100)  # a pause between retries: nobody should wait
socket.socket.connect, time.sleep = counted, slept
from compatkit.support.hub import repository
answers = []
for request in json.load(sys.stdin):
    begun.clear()
    try:
        answer = {"folder": str(repository(**request))}
    except Exception as error:
        kinds = {
            "missing": isinstance(error, FileNotFoundError),
            "value": isinstance(error, ValueError),
        }
        answer = {"error": type(error).__name__, "message": str(error)} | kinds
    answers.append(answer | {"connections": len(begun)})
json.dump(answers, sys.stdout)
"""  # huggingface_hub reads its variables on import: each test asks from a process of its own


def ask(home, *requests, **variables):
    """What `repository` answers to each request, in a process whose cache is `home`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HF_") and name not in VARIABLES
    }
    env = kept | {"HF_HOME": str(home), "PYTHONPATH": str(ROOT)} | variables
    result = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(requests),
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr and "Traceback" not in result.stderr, result.stderr
    return json.loads(result.stdout)


def fill(home, name, files, kind="model", revision="main"):
    """A snapshot in the hub's own cache layout; returns its folder."""
    place = home / "hub" / f"{kind}s--{name.replace('/', '--')}"
    reference, snapshot = place / "refs" / revision, place / "snapshots" / COMMIT
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(COMMIT)
    for path, content in files.items():
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).write_bytes(content)
    return str(snapshot)


MODEL = {"config.json": b"{}", "model.safetensors": b"weights", "vocab.txt": b"a"}


# --- what lies on this machine ---------------------------------------------


def test_what_is_in_the_cache_is_found_without_asking_anybody(tmp_path):
    model = fill(tmp_path, "org/model", MODEL)
    table = fill(tmp_path, "org/table", {"part/train.parquet": b"rows"}, "dataset")
    script = fill(
        tmp_path,
        "org/script",
        {"en/train/0000.parquet": b"rows"},
        "dataset",
        "refs/convert/parquet",
    )
    requests = [
        {"name": "org/model"},
        {"name": "org/model", "revision": COMMIT},
        {
            "name": "org/table",
            "kind": "dataset",
            "patterns": ["part/*.parquet", "part/*/*.parquet"],
        },
        {
            "name": "org/script",
            "kind": "dataset",
            "patterns": ["en/*.parquet", "en/*/*.parquet"],
            "revision": "refs/convert/parquet",
        },
    ]
    for variables in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": NOBODY}):
        answers = ask(tmp_path, *requests, **variables)
        assert [answer.get("folder") for answer in answers] == [model, model, table, script], (
            answers
        )
        assert [answer["connections"] for answer in answers] == [0, 0, 0, 0]


def test_another_kind_or_revision_is_not_taken_for_it(tmp_path):
    fill(tmp_path, "org/model", MODEL)
    requests = [
        {"name": "org/model", "kind": "dataset"},
        {"name": "org/model", "revision": "v2"},
        {"name": "org/model2"},
    ]
    answers = ask(tmp_path, *requests, HF_HUB_OFFLINE="1")
    assert all(answer.get("missing") for answer in answers), answers


def test_another_part_of_a_repository_is_not_taken_for_the_one_that_is_asked(tmp_path):
    """GLUE is one repository: who fetched MRPC has not fetched SST-2."""
    fill(tmp_path, "org/glue", {"mrpc/train.parquet": b"rows"}, "dataset")
    request = {
        "name": "org/glue",
        "kind": "dataset",
        "patterns": ["sst2/*.parquet", "sst2/*/*.parquet"],
    }
    (answer,) = ask(tmp_path, request, HF_HUB_OFFLINE="1")
    assert answer.get("missing") and "org/glue" in answer["message"], answer


# --- what cannot be had ---------------------------------------------


@pytest.mark.parametrize(
    "variables, most",
    [({"HF_HUB_OFFLINE": "1"}, 0), ({"HF_ENDPOINT": NOBODY}, 1)],
    ids=["offline by order", "nobody answers"],
)
def test_what_is_nowhere_is_said_at_once_with_the_remedy(tmp_path, variables, most):
    """At once: one connection at most, and no pause before another try."""
    model, table = ask(
        tmp_path, {"name": "org/model"}, {"name": "org/table", "kind": "dataset"}, **variables
    )
    for answer, kind in ((model, "model"), (table, "dataset")):
        assert answer.get("missing") and not answer["value"], answer
        assert answer["connections"] <= most
        assert f"{kind} 'org/{'model' if kind == 'model' else 'table'}'" in answer["message"]
        assert (
            "local folder" in answer["message"]
            and "HF_HOME" in answer["message"]
            and "hf download org/" in answer["message"]
        )
    assert "--repo-type dataset" in table["message"] and "--repo-type" not in model["message"]
    assert "--revision" not in model["message"] + table["message"]


def test_the_remedy_fetches_the_revision_that_is_asked_for(tmp_path):
    """Without it the cache is filled with the main branch, and the next run stops as before."""
    request = {"name": "org/table", "kind": "dataset", "revision": "refs/convert/parquet"}
    pinned, converted = ask(
        tmp_path, {"name": "org/model", "revision": COMMIT}, request, HF_HUB_OFFLINE="1"
    )
    assert f"`hf download org/model --revision {COMMIT}`" in pinned["message"]
    options = "--repo-type dataset --revision refs/convert/parquet"
    assert f"`hf download org/table {options}`" in converted["message"]


def test_an_impossible_id_is_named(tmp_path):
    names = ["no/such/folder", "/no/such/folder", "has space", "../up", "org/two--dashes", ""]
    for name, answer in zip(
        names, ask(tmp_path, *({"name": name} for name in names), HF_ENDPOINT=NOBODY)
    ):
        assert answer.get("value") and not answer["missing"], (name, answer)
        assert repr(name) in answer["message"] and "neither a folder here nor" in answer["message"]
        assert answer["connections"] == 0


# --- what a hub answers: a small one on this machine ---------------------------------------------

SERVED = MODEL | {
    "pytorch_model.bin": b"a pickle",
    "modeling_own.py": b"raise SystemExit('foreign code ran')",
    "README.md": b"words",
}


class Hub(BaseHTTPRequestHandler):
    """The few addresses that a download needs; org/down is broken, all but org/model unknown."""

    protocol_version = "HTTP/1.1"

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        self.server.asked.append(path)
        if path == "/api/models/org/model/revision/main":
            content = {
                "id": "org/model",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in SERVED],
            }
            self.answer(200, json.dumps(content).encode(), Content_Type="application/json")
        elif path == f"/api/models/org/model/tree/{COMMIT}":
            content = [
                {"type": "file", "path": name, "size": len(body), "oid": name}
                for name, body in SERVED.items()
            ]
            self.answer(200, json.dumps(content).encode(), Content_Type="application/json")
        elif path.startswith(f"/org/model/resolve/{COMMIT}/"):
            name = path.rsplit("/", 1)[1]
            self.answer(200, SERVED[name], ETag=f'"{name}"', X_Repo_Commit=COMMIT)
        elif "/org/down/" in path:
            self.answer(503)
        else:
            self.answer(404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def do_CONNECT(self):
        self.answer(403)

    def log_message(self, *words):
        pass


@contextmanager
def small_hub():
    """The address of a small hub on this machine, and the paths it was asked for."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.asked = []
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server.asked
        finally:
            server.shutdown()
            thread.join()


def test_tables_and_weights_are_fetched_and_never_code_or_pickles(tmp_path):
    with small_hub() as (address, asked):
        (answer,) = ask(tmp_path, {"name": "org/model"}, HF_ENDPOINT=address)
        assert {path.name for path in Path(answer["folder"]).iterdir()} == set(MODEL)
        assert not any(path.endswith((".py", ".bin")) for path in asked)
    (again,) = ask(tmp_path, {"name": "org/model"}, HF_ENDPOINT=NOBODY)
    assert again["folder"] == answer["folder"] and again["connections"] == 0


def test_a_cached_part_of_a_model_is_completed_from_the_hub(tmp_path):
    """A tokenizer that was fetched yesterday is not the model."""
    fill(tmp_path, "org/model", {"config.json": b"{}", "vocab.txt": b"a"})
    with small_hub() as (address, _):
        (answer,) = ask(tmp_path, {"name": "org/model"}, HF_ENDPOINT=address)
    assert (Path(answer["folder"]) / "model.safetensors").is_file()


def test_an_unknown_repository_and_a_broken_hub_are_named(tmp_path):
    with small_hub() as (address, _):
        unknown, broken = ask(
            tmp_path, {"name": "org/unknown"}, {"name": "org/down"}, HF_ENDPOINT=address
        )
    assert unknown.get("missing") and "'org/unknown'" in unknown["message"], unknown
    assert broken.get("missing") and "'org/down'" in broken["message"], broken
    assert "local folder" in broken["message"]


def test_a_proxy_that_does_not_let_through_is_named(tmp_path):
    with small_hub() as (address, _):
        for proxy in (NOBODY, address):
            (answer,) = ask(tmp_path, {"name": "org/model"}, https_proxy=proxy)
            assert (
                answer.get("missing")
                and "'org/model'" in answer["message"]
                and "local folder" in answer["message"]
            ), answer


# --- is anybody there? ---------------------------------------------


@pytest.fixture
def clean(monkeypatch):
    """No variable of the hub or of a proxy is set."""
    for name in (*VARIABLES, "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_reachable_tries_the_configured_address(clean):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        clean.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}/path")
        assert reachable()
    assert not reachable()  # the same address, and nobody listens any more


@pytest.mark.parametrize("word", ["1", "true", "True", "ON", "yes"])
def test_offline_by_order_wins_over_everything(clean, word):
    clean.setenv("HF_HUB_OFFLINE", word)
    clean.setenv("https_proxy", "http://127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        clean.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert not reachable()


@pytest.mark.parametrize("word", ["0", "", "false", "no"])
def test_offline_is_not_ordered_by_other_words(clean, word):
    clean.setenv("HF_HUB_OFFLINE", word)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        clean.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert reachable()


def test_a_proxy_counts_as_reachable(clean):
    clean.setenv("HF_ENDPOINT", NOBODY)
    clean.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert reachable()


@pytest.mark.parametrize("address", ["http://no.such.host.invalid", "nonsense"])
def test_an_address_that_leads_nowhere_is_not_reachable(clean, address):
    def refuse(*given):  # no name is looked up outside this machine
        raise socket.gaierror("no such host")

    clean.setattr(socket, "getaddrinfo", refuse)
    clean.setenv("HF_ENDPOINT", address)
    assert not reachable(timeout=0.2)


def test_only_files_without_code_belong_to_a_model():
    assert {Path(pattern).suffix for pattern in MODEL_FILES} == {
        ".json",
        ".txt",
        ".model",
        ".safetensors",
    }


def refused_by(monkeypatch, error):
    """The hub answers, and with this error."""
    monkeypatch.setattr(hub, "reachable", lambda timeout=3.0: True)

    def snapshot(local_files_only=False, **asked):
        if local_files_only:
            raise LocalEntryNotFoundError("nothing here")
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)


def answer(status):
    return httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co"))


def test_a_gated_repository_says_how_to_get_in(monkeypatch):
    refused_by(monkeypatch, GatedRepoError("gated", response=answer(403)))
    with pytest.raises(FileNotFoundError, match="'a/b'.*HF_TOKEN"):
        hub.repository("a/b")
    with pytest.raises(FileNotFoundError, match="at https://huggingface.co/datasets/a/b, then"):
        hub.repository("a/b", kind="dataset")


def test_a_revision_that_is_gone_is_named(monkeypatch):
    refused_by(monkeypatch, RevisionNotFoundError("gone", response=answer(404)))
    with pytest.raises(FileNotFoundError, match="'a/b'.*'refs/pr/4'"):
        hub.repository("a/b", revision="refs/pr/4")


def test_a_full_disk_is_named(monkeypatch):
    refused_by(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="'a/b'.*HF_HOME"):
        hub.repository("a/b")


def test_a_bin_is_whole_with_its_configuration_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert not hub._whole(tmp_path, hub.PICKLED_MODEL_FILES)
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_text("")
    assert hub._whole(tmp_path, hub.PICKLED_MODEL_FILES) and not hub._whole(
        tmp_path, hub.MODEL_FILES
    )
