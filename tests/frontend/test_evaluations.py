"""The pages of evaluations: what was measured, over versions, and how two differ."""

import html
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from rollouts.models import Evaluation, Model, Run
from rollouts.selectors import evaluations
from rollouts.services.runs import life
from rollouts.states import EvaluationState
from tests.factories import make_evaluation, make_group, make_project, make_run
from tests.model_files import make_model, whole_model
from trainers.config import resolve


def played(run: Run, version: int, scores: list[list[float]], state: str = EvaluationState.DONE) -> Evaluation:
    """An evaluation of these rewards, problem by problem."""
    evaluation = make_evaluation(run, version, 0.5, state=state)
    for index, rewards in enumerate(scores):
        make_group(
            run,
            rewards=rewards,
            evaluation=evaluation,
            state="evaluated",
            problem_index=index,
            problem_key=f"eval/{index}",
            version=version,
        )
    evaluation.figures = evaluations.figures(evaluation)
    evaluation.save(update_fields=["figures"])
    return evaluation


@pytest.fixture
def run() -> Run:
    return make_run(name="measured", overrides={"evaluation.rollouts_per_problem": 2})


def test_a_run_shows_every_figure_with_its_interval_and_a_curve(client: Client, run: Run) -> None:
    played(run, 0, [[0.0, 1.0], [0.0, 0.0]])
    played(run, 25, [[1.0, 1.0], [0.0, 1.0]])
    answer = client.get(reverse("run-evaluations", args=[run.key]))
    page = answer.content.decode()
    assert "pass@2" in page
    assert "pass^2" in page
    [first, last] = answer.context["lines"]
    assert (first.average.name, first.average.value, last.average.value) == ("avg@2", "0.25", "0.75")
    [curve] = answer.context["curves"]
    assert (curve.first, curve.last, len(curve.points)) == (0, 25, 2)


def test_what_is_not_known_yet_of_an_evaluation_is_no_zero(client: Client, run: Run) -> None:
    make_evaluation(run, 0, state=EvaluationState.PLAYING, cursor=3)
    [line] = client.get(reverse("run-evaluations", args=[run.key])).context["lines"]
    assert (line.tokens, line.truncated, line.failed) == (None, None, None)


def test_two_evaluations_are_compared_pair_by_pair(client: Client, run: Run) -> None:
    first, second = played(run, 0, [[0.0, 0.0], [1.0, 1.0]]), played(run, 25, [[1.0, 1.0], [1.0, 1.0]])
    numbers = {"first": first.pk, "second": second.pk}
    answer = client.get(reverse("evaluations-compare"), numbers)
    found = answer.context["difference"]
    assert (found.pairs, found.better, found.worse, found.estimate.value) == (2, 1, 0, 0.5)
    assert "+0.5" in answer.content.decode()
    told = client.get("/api/v1/evaluations/compare", numbers).json()
    assert (told["pairs"], told["difference"]["value"]) == (2, 0.5)
    listed = client.get(f"/api/v1/runs/{run.key}/evaluations").json()["evaluations"]
    assert [each["version"] for each in listed] == [0, 25]


def test_problems_are_paired_by_their_keys_wherever_they_stand(run: Run) -> None:
    """Data that grew between the two has shifted them; one of a split may come twice."""
    first = make_evaluation(run, 0, 0.5, state=EvaluationState.DONE)
    second = make_evaluation(run, 25, 0.5, state=EvaluationState.DONE)
    for evaluation, keys in ((first, ["a", "twice", "b", "twice"]), (second, ["new", "a", "b", "twice", "twice"])):
        for index, key in enumerate(keys):
            reward = float(evaluation == second and key != "b")
            place = {"evaluation": evaluation, "problem_index": index, "problem_key": key}
            make_group(run, rewards=[reward, reward], state="evaluated", **place)
    found = evaluations.compare(first, second)
    assert (found.pairs, found.only_first, found.only_second, found.better, found.worse) == (4, 0, 1, 3, 0)


RIVAL = {"name": "rival", "model": "/models/rival"}
FEW = "Of so few problems as the 1 in both, the interval is too narrow."


@pytest.mark.parametrize(
    ("changed", "caution"),
    [
        ({"policies.0.replicas": 2, "environments.0.weight": 2.0}, ""),
        ({"policies": [RIVAL, {"name": "unasked", "endpoint": "u"}]}, ""),
        ({"policies.0.model": "/models/stronger"}, "Their opponents or judges were not the same."),
        ({"environments.0.seats": {"first": "rival", "second": "run"}}, "Their opponents or judges were not the same."),
        ({"inference.max_model_len": 4096}, "They were served differently: context length or quantization."),
        ({"inference.quantization": "fp8"}, "They were served differently: context length or quantization."),
        ({"sampling.max_tokens": 7}, "They were sampled differently: temperature, tokens or turns."),
    ],
)
def test_a_comparison_says_what_else_than_the_policy_differed(
    client: Client, changed: dict[str, Any], caution: str
) -> None:
    game = {"name": "kuhn_poker", "seats": {"second": "rival"}}
    config = {"environments": [game], "policies": [RIVAL]}
    first, second = (played(make_run(overrides=config | more), 0, [[1.0]]) for more in ({}, changed))
    told = client.get("/api/v1/evaluations/compare", {"first": first.pk, "second": second.pk}).json()
    assert told["caution"] == " ".join(filter(None, [caution, FEW]))


def test_a_comparison_says_that_one_of_the_two_was_not_played_to_its_end(client: Client, run: Run) -> None:
    first, second = played(run, 0, [[1.0]]), played(run, 25, [[1.0]], state=EvaluationState.EXPIRED)
    told = client.get("/api/v1/evaluations/compare", {"first": first.pk, "second": second.pk}).json()
    assert told["caution"] == f"One of them ended before all of its problems were played. {FEW}"


def test_a_comparison_of_a_policy_that_plays_itself_says_so(client: Client) -> None:
    config = {"environments": [{"name": "kuhn_poker"}]}
    first, second = (played(make_run(overrides=config), 0, [[1.0]] * 30) for _ in range(2))
    told = client.get("/api/v1/evaluations/compare", {"first": first.pk, "second": second.pk}).json()
    assert told["caution"] == "The policy had all seats: where one wins what another loses, that is its mean."


@pytest.mark.parametrize("query", [{}, {"first": "1"}, {"first": "x", "second": "1"}, {"first": "-1", "second": "1"}])
def test_a_comparison_of_nothing_asks_for_two(client: Client, query: dict[str, str]) -> None:
    answer = client.get(reverse("evaluations-compare"), query)
    assert "Choose one evaluation in each column." in answer.content.decode()


def test_what_is_another_projects_is_neither_listed_nor_compared(client: Client, run: Run) -> None:
    own = played(run, 0, [[1.0]])
    hidden = make_run(name="their-run", project=make_project("others"))
    theirs = played(hidden, 0, [[1.0]])
    page = client.get(reverse("evaluations")).content.decode()
    assert "measured" in page
    assert "their-run" not in page
    assert client.get(reverse("run-evaluations", args=[hidden.key])).status_code == 404
    numbers = {"first": own.pk, "second": theirs.pk}
    assert client.get(reverse("evaluations-compare"), numbers).status_code == 404
    assert client.get("/api/v1/evaluations/compare", numbers).status_code == 404


def test_the_pages_of_an_eval_run_speak_of_versions_and_show_no_trainer(client: Client, run: Run) -> None:
    config = {
        "kind": "eval",
        "max_steps": 1,
        "model": {"path": "/somewhere/some-model"},
        "environments": [{"name": "reverse_text"}],
        "evaluation": {"problems": 4},
    }
    measuring = life.create(
        project=run.project, user=None, resolved=resolve(inline=config, environ={}), actor="user:ada"
    )
    for name in ("run", "run-rollouts", "run-events", "run-config", "run-evaluations"):
        page = client.get(reverse(name, args=[measuring.key]))
        assert page.status_code == 200, name
    page_of_run = client.get(reverse("run", args=[measuring.key])).content.decode()
    assert "of 1 versions" in page_of_run
    assert "Ledger" not in page_of_run
    assert client.get(reverse("launch"), {"clone": measuring.key}).status_code == 200


ASKED = {"target": "measured", "environments": 'calculator:{"max_digits": 2}\nreverse_text', "samples": "4"}


@pytest.fixture
def model() -> Model:
    return make_model(make_project(), "measured", whole_model())


def ask(client: Client, **changes: str) -> Any:
    return client.post(reverse("evaluation-make"), ASKED | {"project": make_project().slug} | changes)


def test_what_is_measured_is_asked_for_by_a_form_that_a_link_fills_in(client: Client, model: Model) -> None:
    page = client.get(reverse("model", args=[model.project.slug, model.name])).content.decode()
    [link] = re.findall(r'href="([^"]+)">Measure it', page)
    assert 'value="measured"' in client.get(html.unescape(link)).content.decode()
    answer = ask(client, problems="8", temperature="0", max_tokens="16", threshold=".5", split="train", name="mine")
    run = Run.objects.get()
    assert answer["Location"] == reverse("run-evaluations", args=[run.key])
    config = run.parsed
    assert (config.kind, config.name, config.model.path) == ("eval", "mine", model.source)
    assert [(each.name, each.args) for each in config.environments] == [
        ("calculator", {"max_digits": 2}),
        ("reverse_text", {}),
    ]
    measured = config.evaluation
    assert measured is not None
    assert (measured.problems, measured.rollouts_per_problem, measured.temperature) == (8, 4, 0.0)
    assert (measured.threshold, measured.split, config.sampling.max_tokens) == (0.5, "train", 16)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"target": ""}, "target"),
        ({"target": "nosuch"}, "target"),
        ({"target": "endpoint:nobody"}, "target"),
        ({"environments": ""}, "environments"),
        ({"environments": "nosuch"}, "environments"),
        ({"environments": "calculator:[]"}, "environments"),
        ({"environments": 'calculator:{"max_digit": 2}'}, "environments"),
        ({"samples": "many"}, "samples"),
        ({"samples": "0"}, "samples"),
        ({"temperature": "nan"}, "temperature"),
        ({"max_tokens": "0"}, "max_tokens"),
        ({"split": "all"}, "split"),
    ],
)
def test_what_cannot_be_measured_is_told_at_its_field(
    client: Client, model: Model, changes: dict[str, str], field: str
) -> None:
    answer = ask(client, **changes)
    assert answer.status_code == 422
    form = answer.context["form"]
    assert (list(form.errors), form.faults) == ([field], [])
    page = answer.content.decode()
    assert 0 < page.find('class="notice error"') < page.index("<h1>")
    assert '<a href="#make">' in page
    assert not Run.objects.exists()


def test_a_viewer_measures_nothing(viewer_client: Client, model: Model) -> None:
    assert ask(viewer_client).status_code == 403
    assert "evaluation-make" not in viewer_client.get(reverse("evaluations")).content.decode()
