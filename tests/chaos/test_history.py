"""Histories of clients that may be killed at any instant."""

from pathlib import Path

from tests.chaos.history import Act, Outcome, Recorder, read


def test_a_call_without_an_answer_is_unknown(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.jsonl", "r")
    recorder.hear(recorder.ask(Act.FETCH, step=0), Act.FETCH, Outcome.OK, step=0, sha256="f" * 64)
    recorder.ask(Act.ACK, step=0)
    assert [(call.asked.act, call.outcome) for call in read(tmp_path, "r")] == [
        (Act.FETCH, Outcome.OK),
        (Act.ACK, Outcome.UNKNOWN),
    ]


def test_a_client_that_is_started_again_goes_on_after_its_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = Recorder(path, "r")
    first.hear(first.ask(Act.FETCH, step=0), Act.FETCH, Outcome.FAIL)
    first.ask(Act.FETCH, step=1)
    path.write_bytes(path.read_bytes() + b'{"number":3,"at_')
    second = Recorder(path, "r")
    second.hear(second.ask(Act.FETCH, step=2), Act.FETCH, Outcome.OK)
    assert [(call.asked.step, call.outcome) for call in read(tmp_path, "r")] == [
        (0, Outcome.FAIL),
        (1, Outcome.UNKNOWN),
        (2, Outcome.OK),
    ]


def test_calls_of_several_clients_come_in_the_order_of_the_clock_and_of_one_run(tmp_path: Path) -> None:
    clients = [Recorder(tmp_path / f"{name}.jsonl", run) for name, run in (("a", "r"), ("b", "r"), ("c", "other"))]
    for step in range(3):
        for client in clients:
            client.ask(Act.FETCH, step=step)
    calls = read(tmp_path, "r")
    assert [(call.client, call.asked.step) for call in calls] == [(name, step) for step in range(3) for name in "ab"]
