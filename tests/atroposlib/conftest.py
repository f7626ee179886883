"""One Rollyard, one vLLM server and one model for all tests with Atropos' own clients."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.atroposlib.parties import Inference, running_inference
from tests.e2e.yard import Yard, make_tiny_model, running_yard

VENV = Path(__file__).parents[2] / ".venv-atropos"


@pytest.fixture(scope="package")
def atropos_bin() -> Path:
    """Programs of an environment with the real atroposlib."""
    if not (VENV / ".installed").exists():
        pytest.skip(f"needs the real atroposlib in {VENV.name}: run `make atropos-venv`, which needs a package index")
    return VENV / "bin"


@pytest.fixture(scope="package")
def yard(atropos_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with running_yard(tmp_path_factory.mktemp("yard") / "up.log") as yard:
        yield yard


@pytest.fixture(scope="package")
def visitor(yard: Yard) -> Iterator[httpx.Client]:
    """A person who is signed in."""
    with httpx.Client(base_url=yard.url, follow_redirects=True, timeout=30) as client:
        assert client.get(yard.login_url).status_code == 200
        yield client


@pytest.fixture(scope="package")
def inference(atropos_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inference]:
    directory = tmp_path_factory.mktemp("inference")
    model = make_tiny_model(directory / "model")
    # Newer versions of transformers write a name for this class that those Atropos works with do not know.
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    with running_inference(model, directory) as found:
        yield found
