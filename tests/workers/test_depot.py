"""Files on their way to an agent and back, over a real connection."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import rmtree
from unittest import mock
from urllib.parse import urlsplit

import pytest

from tests.patience import PATIENCE
from tests.workers.test_transfers import filled
from tests.workers.waiting import eventually
from workers import depot, doors, transfers
from workers.depot import PREFIX, Depot
from workers.launchers.base import Handle, LaunchError
from workers.launchers.shepherd import write_json
from workers.nodes import Node, NodeAway
from workers.slurm import carrier
from workers.slurm.launcher import SlurmLauncher
from workers.slurm.queue import Job, SlurmAway
from workers.transfers import Listed, TransferError

KEY = "sesame"


@contextmanager
def listening(root: Path) -> Iterator[str]:
    """The agent of a node whose files lie below `root`; its URL."""
    ready, ended, url = threading.Event(), asyncio.Event(), list[str]()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        own = Depot(root, Path("/replica"))
        async with doors.to_socket(None, KEY, "127.0.0.1", {PREFIX: own.answer}) as found:
            url.append(found)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield url[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "there"


@pytest.fixture
def node(there: Path) -> Iterator[Node]:
    with listening(there) as url:
        node = Node(url, KEY)
        yield node
        node.close()


def on_node(there: Path, path: Path) -> Path:
    return there / path.relative_to("/")


def test_directory_comes_to_a_node_and_back_as_it_was(tmp_path: Path, there: Path, node: Node) -> None:
    source = filled(tmp_path / "source")
    (source / "large").write_bytes(bytes(range(256)) * 4096 * 5 + b"end")
    found = transfers.entries(source)
    node.send(source, found)
    assert transfers.entries(on_node(there, source)) == found
    node.fetch(source, tmp_path / "back")
    assert transfers.entries(tmp_path / "back") == found
    with mock.patch.object(Node, "_fetch_file", side_effect=AssertionError("it is here already")):
        node.fetch(source, tmp_path / "back")


def test_file_alone_comes_too_and_brought_says_what_did(tmp_path: Path, there: Path, node: Node) -> None:
    (tmp_path / "data.jsonl").write_text("row\n")
    node.send(tmp_path / "data.jsonl", transfers.entries(tmp_path / "data.jsonl"))
    assert on_node(there, tmp_path / "data.jsonl").read_text() == "row\n"
    assert json.loads(node.ask("GET", "brought")) == {"is_all": False, "paths": [str(tmp_path / "data.jsonl")]}
    node.ask("POST", "begin")
    assert json.loads(node.ask("GET", "brought"))["is_all"]


def cut(after: int) -> Callable[[socket.socket, object, int, int], int]:
    """In place of `socket.sendfile`: the connection is lost on the way."""

    def send(connection: socket.socket, file: object, offset: int, count: int) -> int:
        file.seek(offset)  # type: ignore[attr-defined]
        connection.sendall(file.read(min(after, count)))  # type: ignore[attr-defined]
        raise ConnectionResetError("the network went away")

    return send


def test_what_was_sent_before_the_network_went_away_is_not_sent_again(
    tmp_path: Path, there: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    content = bytes(range(256)) * 4096 * 3
    (source / "weights").write_bytes(content)
    found = transfers.entries(source)
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "sendfile", cut(2 * 2**20))
        with pytest.raises(NodeAway, match="went away"):
            node.send(source, found)
    assert not on_node(there, source).exists()
    part = on_node(there, source).with_name(f"source{transfers.PARTIAL}") / "weights"
    # Its thread writes what has come after we have seen the end of the connection.
    eventually(lambda: part.exists() and part.stat().st_size == 2 * 2**20, what="what has come")
    sent: list[int] = []
    whole = socket.socket.sendfile

    def counted(connection: socket.socket, file: object, offset: int, count: int) -> int:
        sent.append(count)
        return whole(connection, file, offset, count)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "sendfile", counted)
    node.send(source, found)
    assert sent == [len(content) - 2 * 2**20]
    assert (on_node(there, source) / "weights").read_bytes() == content


def forbidden(*_: object, **__: object) -> None:
    raise AssertionError("no file is to be sent")


def test_what_has_arrived_is_not_sent_again(
    tmp_path: Path, there: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a hiccup of what is brought next."""
    source = filled(tmp_path / "source")
    found = transfers.entries(source)
    node.send(source, found)
    inode = on_node(there, source).stat().st_ino
    with monkeypatch.context() as patch:
        patch.setattr(Node, "_send_file", forbidden)
        node.send(source, found)
    assert on_node(there, source).stat().st_ino == inode, "nor is it replaced"
    (source / "config.json").write_text("[]")
    node.send(source, transfers.entries(source))
    assert (on_node(there, source) / "config.json").read_text() == "[]"
    for take_away in (lambda: node.ask("POST", "drop", {"path": str(source)}), lambda: rmtree(on_node(there, source))):
        take_away()
        node.send(source, transfers.entries(source))
        assert transfers.entries(on_node(there, source)) == transfers.entries(source)


def test_what_lies_in_a_directory_that_is_replaced_is_sent_again(tmp_path: Path, there: Path, node: Node) -> None:
    above = filled(tmp_path / "above")
    below = filled(above / "below")
    node.send(below, transfers.entries(below))
    (above / "below").rename(tmp_path / "aside")
    node.send(above, transfers.entries(above))
    assert not on_node(there, below).exists()
    (tmp_path / "aside").rename(above / "below")
    node.send(below, transfers.entries(below))
    assert transfers.entries(on_node(there, below)) == transfers.entries(below)


def test_directory_that_is_to_be_empty_takes_nothing_away(
    tmp_path: Path, there: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's `weights` is brought empty, before the version in it, and again after a hiccup of that."""
    weights = tmp_path / "weights"
    (weights / "step_3").mkdir(parents=True)
    (weights / "step_3" / "model").write_bytes(bytes(2**20))
    found = transfers.entries(weights / "step_3")
    node.send(weights, [])
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "sendfile", cut(2**19))
        with pytest.raises(NodeAway, match="went away"):
            node.send(weights / "step_3", found)
    part = on_node(there, weights) / f"step_3{transfers.PARTIAL}" / "model"
    eventually(lambda: part.exists() and part.stat().st_size == 2**19, what="what has come")
    node.send(weights, [])
    assert part.stat().st_size == 2**19
    node.send(weights / "step_3", found)
    node.send(weights, [])
    assert transfers.entries(on_node(there, weights / "step_3")) == found
    monkeypatch.setattr(Node, "_send_file", forbidden)
    node.send(weights / "step_3", found)


def test_listing_of_many_files_arrives(tmp_path: Path, there: Path, node: Node) -> None:
    """It may be longer than a mebibyte."""
    source = tmp_path / "source"
    deep = source.joinpath(*(letter * 200 for letter in "abcd"))
    deep.mkdir(parents=True)
    for number in range(100):
        (deep / f"{number:0200}").touch()
    found = [*transfers.entries(source)] * 12
    assert len(json.dumps(found)) > 2**20
    node.send(source, found)
    assert len(list(on_node(there, source).rglob("0*"))) == 100


def test_arrival_whose_answer_was_lost_is_finished_once(
    tmp_path: Path, there: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled(tmp_path / "source")
    found = transfers.entries(source)
    begun, goes_on, finished = threading.Event(), threading.Event(), list[int]()
    finish = transfers.Arrival.finish

    def slow(arrival: transfers.Arrival, wanted: list[Listed]) -> None:
        begun.set()
        assert goes_on.wait(30 * PATIENCE)
        finish(arrival, wanted)
        finished.append(len(wanted))

    monkeypatch.setattr(transfers.Arrival, "finish", slow)
    with closing(node._connected()) as hasty, monkeypatch.context() as patch:
        hasty.timeout = 1.0
        patch.setattr(node, "_connection", hasty)
        with pytest.raises(NodeAway, match="timed out"):
            node.send(source, found)
    assert begun.is_set()
    again = threading.Thread(target=node.send, args=(source, found))
    again.start()
    time.sleep(0.2)  # so that it asks while the first is finished
    goes_on.set()
    again.join(30 * PATIENCE)
    assert finished == [len(found)]
    assert transfers.entries(on_node(there, source)) == found


def test_who_waits_for_files_waits_as_long_as_more_of_them_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depot, "_QUIET_S", 1.5)
    monkeypatch.setattr(depot, "_LOOK_S", 0.05)
    source = filled(tmp_path / "source")

    def bring(url: str) -> None:
        with closing(Node(url, KEY)) as node:
            for round_of_it in range(5):
                time.sleep(0.6)
                (source / "config.json").write_text(str(round_of_it))
                node.send(source, transfers.entries(source))

    async def wait() -> str:
        own, unless = Depot(tmp_path / "there", Path("/replica")), asyncio.Event()
        async with doors.to_socket(None, KEY, "127.0.0.1", {PREFIX: own.answer}) as url:
            since = time.monotonic()
            bringing = asyncio.create_task(asyncio.to_thread(bring, url))
            with pytest.raises(TimeoutError) as said:
                await own.is_brought([str(source), "/models/late"], unless=unless)
            await bringing
            assert time.monotonic() - since > 4.0
            own.begun.set()
            assert await own.is_brought([], unless=unless)
            unless.set()
            assert not await own.is_brought([], unless=unless)
            return str(said.value)

    assert asyncio.run(wait()).endswith("these are not here: /models/late")


def test_what_takes_long_to_read_is_read_once_and_fetched(
    tmp_path: Path, there: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depot, "_LISTED_S", 0.05)
    source = filled(on_node(there, tmp_path / "step_1"))
    asked, read = list[str](), list[Path]()
    ask, entries = Node.ask, transfers.entries

    def note(self: Node, method: str, route: str, *args: object, **query: object) -> bytes:
        asked.append(route)
        return ask(self, method, route, *args, **query)

    def read_slowly(path: Path) -> list[Listed]:
        read.append(path)
        eventually(lambda: len(asked) > 3, what=lambda: str(asked))
        return entries(path)

    with mock.patch.object(transfers, "entries", read_slowly), mock.patch.object(Node, "ask", note):
        node.fetch(tmp_path / "step_1")
    assert read == [source]
    assert entries(tmp_path / "step_1") == entries(source)


def test_an_agent_stays_for_as_long_as_what_is_left_is_on_its_way(
    tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depot, "_FETCHED_S", 0.5)
    monkeypatch.setattr(depot, "_LOOK_S", 0.05)
    place = on_node(there, tmp_path / "step_1")
    place.mkdir(parents=True)
    (place / "weights").write_bytes(bytes(2**26))  # more than the buffers of a connection hold

    async def stay() -> None:
        own = Depot(there, Path("/replica"))
        async with doors.to_socket(None, KEY, "127.0.0.1", {PREFIX: own.answer}) as url:
            address = urlsplit(url)
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            query = f"file?path={tmp_path / 'step_1'}&name=weights"
            lines = [f"GET {PREFIX}{query} HTTP/1.1", "Host: node", f"Authorization: Bearer {KEY}", "", ""]
            writer.write("\r\n".join(lines).encode())
            await reader.readexactly(2**20)
            staying = asyncio.create_task(own.be_fetched())
            assert not (await asyncio.wait([staying], timeout=1.5))[0], "it is on its way"
            await reader.readexactly(2**26 - 2**20)
            async with asyncio.timeout(30):
                await staying
            staying = asyncio.create_task(own.be_fetched())
            own.left.set()
            async with asyncio.timeout(30):
                await staying
            writer.close()

    asyncio.run(stay())


def test_file_that_changed_since_it_was_listed_does_not_arrive(tmp_path: Path, there: Path, node: Node) -> None:
    source = filled(tmp_path / "source")
    found = transfers.entries(source)
    (source / "config.json").write_text("[]")
    with pytest.raises(TransferError, match="did not arrive as it was sent"):
        node.send(source, found)
    assert not on_node(there, source).exists()
    node.send(source, transfers.entries(source))
    assert (on_node(there, source) / "config.json").read_text() == "[]"


def test_file_that_became_shorter_is_refused(tmp_path: Path, node: Node) -> None:
    source = filled(tmp_path / "source")
    found = [Listed(entry.name, entry.size + 1, entry.digest) for entry in transfers.entries(source) if entry.size]
    with pytest.raises((TransferError, NodeAway)):
        node.send(source, found)


@pytest.mark.parametrize("name", ["../outside", "/outside", "deep/../../outside"])
def test_name_that_leads_elsewhere_is_refused_on_both_ways(tmp_path: Path, there: Path, node: Node, name: str) -> None:
    with pytest.raises(TransferError, match="is no name of a file"):
        node.ask("GET", "file", path=str(tmp_path), name=name)
    headers = {"Authorization": f"Bearer {KEY}", "Connection": "Upgrade", "Upgrade": depot.BARE}
    with mock.patch.object(node, "_headers", headers), pytest.raises((TransferError, NodeAway)):
        node._send_file(tmp_path, Listed(name, 1, ""), 0, follow_links=False)
    assert not list(there.rglob("outside"))


def test_no_file_passes_without_the_key_or_without_the_bare_connection(tmp_path: Path, there: Path) -> None:
    with listening(there) as url:
        stranger = Node(url, "wrong")
        with pytest.raises(NodeAway, match="401"):
            stranger.send(filled(tmp_path / "source"), transfers.entries(tmp_path / "source"))
        friend = Node(url, KEY)
        with pytest.raises(NodeAway, match="426"):
            friend.ask("POST", "file", b"x", path=str(tmp_path / "a"), name="b", size=1, offset=0)
        stranger.close()
        friend.close()
    assert not there.exists()


def test_link_on_the_node_leads_nowhere(tmp_path: Path, there: Path, node: Node) -> None:
    (tmp_path / "secret").write_text("hush")
    place = on_node(there, tmp_path / "run")
    place.mkdir(parents=True)
    (place / "weights").symlink_to(tmp_path / "secret")
    with pytest.raises(TransferError):
        node.ask("GET", "file", path=str(tmp_path / "run"), name="weights")


def test_log_of_another_node_is_appended_once(tmp_path: Path, there: Path, node: Node) -> None:
    (there / "replica").mkdir(parents=True)
    for offset, more in [(0, b"one\n"), (0, b"one\n"), (4, b"two\n")]:
        answer = json.loads(node.ask("POST", "report", more, node=1, offset=offset))
        assert answer == {"is_stopped": False}
    assert (there / "replica" / "node-1" / "log.txt").read_text() == "one\ntwo\n"
    node.ask("POST", "stop")
    assert json.loads(node.ask("POST", "report", b"", node=1, offset=8)) == {"is_stopped": True}
    status = json.loads(node.ask("POST", "status", {"logs": {"node-1/log.txt": 4}}))
    assert list(status["logs"]) == ["node-1/log.txt"]


def test_a_control_plane_that_was_started_anew_has_a_node_let_go_of_versions_that_the_last_one_brought(
    tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, handle = tmp_path / "weights", Handle("token", tmp_path / "replica")
    handle.directory.mkdir()
    begun_with = filled(weights / "step_0")
    described = {"token": "token", "shared": False, "sends": [{"path": str(begun_with)}]}
    (handle.directory / "job.json").write_text(json.dumps(described))
    with listening(there) as url:
        job = Job("7", "RUNNING", "None", "n1", comment=url)
        monkeypatch.setattr("workers.slurm.queue.Queue.jobs", lambda queue: {"token": job})
        with closing(Node(url, KEY)) as node:
            node.send(begun_with, transfers.entries(begun_with))
        for steps in ((1, 2), (3,)):
            launcher = SlurmLauncher(tmp_path, key_of=lambda token: KEY)
            for step in steps:
                launcher.bring(handle, filled(weights / f"step_{step}"))
    assert {path.name for path in on_node(there, weights).iterdir()} == {"step_0", "step_2", "step_3"}


def test_while_slurm_is_away_versions_are_brought_and_logs_fetched(
    tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, handle = tmp_path / "weights", Handle("token", tmp_path / "replica")
    handle.directory.mkdir()
    described = {"token": "token", "shared": False, "sends": [], "keeps": [], "nodes": 1}
    (handle.directory / "job.json").write_text(json.dumps(described))
    monkeypatch.setattr("workers.slurm.queue._ask", mock.Mock(side_effect=SlurmAway("no controller")))
    launcher = SlurmLauncher(tmp_path, key_of=lambda token: KEY)
    with pytest.raises(LaunchError, match="has not said where it listens"):
        launcher.bring(handle, filled(weights / "step_0"))
    with listening(there) as url:
        (handle.directory / "agent.json").write_text(json.dumps({"token": "token", "base_url": url}))
        launcher.bring(handle, filled(weights / "step_1"))
        (there / "replica").mkdir()
        (there / "replica" / "log.txt").write_text("it trains")
        launcher.poll(handle)  # which has somebody carry its files
        eventually(lambda: launcher.logs(handle, 1) == "it trains")
        write_json(there / "replica" / "exit.json", {"token": "token"})
        eventually((handle.directory / "exit.json").exists)
    assert {path.name for path in on_node(there, weights).iterdir()} == {"step_1"}


def test_a_job_is_silent_only_since_somebody_listens_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle("token", tmp_path / "replica")
    handle.directory.mkdir()
    described = {"token": "token", "shared": False, "sends": [], "nodes": 1}
    for name, content in {"job.json": described, "agent.json": {"token": "token", "base_url": ""}}.items():
        (handle.directory / name).write_text(json.dumps(content))
    (handle.directory / "heartbeat").touch()
    os.utime(handle.directory / "heartbeat", (0, 0))
    jobs = {"token": Job("7", "RUNNING", "None", "n1")}
    monkeypatch.setattr("workers.slurm.queue.Queue.jobs", lambda queue: jobs)
    launcher = SlurmLauncher(tmp_path)
    since = time.monotonic()

    def silent_s() -> float:
        age_s = launcher.poll(handle).heartbeat_age_s
        assert age_s is not None
        assert age_s < time.monotonic() - since, "what was while the control plane was away does not count"
        return age_s

    assert eventually(lambda: silent_s() > 0.2), "an agent that never answers is found"
    jobs.clear()
    eventually(lambda: all(each.name != "carry-replica" for each in threading.enumerate()))


class Offering:
    """A node on which a heart beats, and which offers a version that is long on its way."""

    def __init__(self, offer: Path) -> None:
        self.offers = [str(offer)]
        self.arrives = threading.Event()
        self.asked: list[str] = []
        self.beats = 0

    def close(self) -> None:
        pass

    def fetch(self, path: Path) -> None:
        self.asked.append(f"fetch {path.name}")
        assert self.arrives.wait(60)

    def ask(self, method: str, route: str, body: object = None) -> bytes:
        if route == "taken":
            self.offers = []
        if route != "status":
            self.asked.append(route)
        self.beats += 1
        reports = {} if self.offers else {"exit.json": {"token": "token", "code": 0}}
        status = {"has_begun": True, "logs": {}, "fault": None, "reports": reports, "offers": self.offers}
        return json.dumps(status | {"heart_beats": self.beats}).encode()


def test_a_heart_is_heard_and_a_stop_passed_on_while_a_version_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"token": "token", "writes": [str(tmp_path)], "keeps": []}))
    node, heart = Offering(tmp_path / "step_1"), tmp_path / "heartbeat"
    monkeypatch.setattr(carrier, "_LOOK_S", 0.01)
    monkeypatch.setattr(carrier, "Node", lambda *_: node)
    thread = carrier.Carrier(tmp_path, KEY, lambda: "http://n1")
    thread.start()
    try:
        eventually(lambda: node.asked == ["fetch step_1"])
        os.utime(heart, (0, 0))
        (tmp_path / "stop").touch()
        eventually(lambda: heart.stat().st_mtime > 0)
        eventually(lambda: "stop" in node.asked)
    finally:
        node.arrives.set()
        thread.join(30)
    assert node.asked == ["fetch step_1", "stop", "taken", "leave"]
    assert (tmp_path / "exit.json").exists()


def test_what_is_carried_is_given_up_after_failures_in_a_row_alone(
    tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"token": "token", "sends": []}))
    (there / "replica").mkdir(parents=True)
    monkeypatch.setattr(carrier, "_PAUSE_S", 0.0)
    monkeypatch.setattr(carrier, "_LOOK_S", 0.0)
    fails = [True] * (carrier._TRIES - 1)
    looks = iter([*fails, False, *fails, False, *fails, True, True, True])

    def look(*_: object) -> bool:
        if next(looks):
            raise TransferError("did not arrive as it was sent")
        return True

    monkeypatch.setattr(carrier.Carrier, "_look", look)
    with listening(there) as url:
        carrier.Carrier(tmp_path, KEY, lambda: url).run()
    assert list(looks) == [True, True]
    assert json.loads((tmp_path / "exit.json").read_text())["code"] == 1


def test_address_that_is_none_ends_a_job_with_what_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle("token", tmp_path / "replica")
    handle.directory.mkdir()
    described = {"token": "token", "shared": False, "sends": [], "keeps": [], "nodes": 1}
    (handle.directory / "job.json").write_text(json.dumps(described))
    monkeypatch.setattr(carrier, "_PAUSE_S", 0.0)
    job = Job("7", "RUNNING", "None", "n1", comment="http://2001:db8::5:40123")
    monkeypatch.setattr("workers.slurm.queue.Queue.jobs", lambda queue: {"token": job})
    launcher = SlurmLauncher(tmp_path, key_of=lambda token: KEY)
    with pytest.raises(LaunchError, match=r"step_0 was not brought to its node: .*2001:db8::5"):
        launcher.bring(handle, tmp_path / "step_0")
    launcher.poll(handle)  # which has somebody carry its files
    eventually((handle.directory / "exit.json").exists)
    assert "it listens at 'http://2001:db8::5:40123'" in launcher.logs(handle, 5)
