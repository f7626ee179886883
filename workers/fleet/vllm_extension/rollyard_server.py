"""vLLM's API server, which says so when it dies of what it was given: `python -m rollyard_server ...`.

Its exit status is 1 for a model it does not know and for a port that is taken; only the second is worth another start.
What vLLM refuses while it makes its config out of the arguments and the model's files is the input's fault.
"""

import runpy
from typing import Any

from rollyard_faults import blaming_input  # type: ignore[import-not-found]


def main() -> None:
    """Serve."""
    from vllm.engine.arg_utils import EngineArgs

    create_engine_config = EngineArgs.create_engine_config

    def create(*args: Any, **kwargs: Any) -> Any:
        with blaming_input():
            return create_engine_config(*args, **kwargs)

    EngineArgs.create_engine_config = create
    # As the main module, by its own name: vLLM's processes are spawned from it.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
