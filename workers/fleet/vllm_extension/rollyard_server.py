"""vLLM's API server, which says so when it dies of what it was given: `python -m rollyard_server ...`.

Its exit status is 1 for a model it does not know and for a port that is taken; only the second is worth another start.
What vLLM refuses of its arguments, and while it makes its config out of them and the model's files, is the input's
fault.

On a CPU it starts in less than half the time. vLLM imports itself three times, ten seconds each on two cores: here, in
a process that looks at the model's class, and in the engine's. The last two are for the sake of GPUs, which may not be
initialised before a fork.
"""

import gc
import os
import runpy
from typing import Any

from rollyard_faults import blame, blaming_input  # type: ignore[import-not-found]


def main() -> None:
    """Serve."""
    gc.disable()  # what is being loaded is no garbage, and a fifth of that time would go into looking
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    create_engine_config = EngineArgs.create_engine_config
    on_cpu = current_platform.is_cpu()
    if on_cpu:
        registry._run_in_subprocess = lambda look: look()

    def create(*args: Any, **kwargs: Any) -> Any:
        gc.enable()
        with blaming_input():
            config = create_engine_config(*args, **kwargs)
        # After vLLM, which asks for "spawn" while it makes its config. Workers beside each other each need threads of
        # their own, which no fork has.
        if on_cpu and config.parallel_config.world_size_across_dp == 1:
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        return config

    EngineArgs.create_engine_config = create
    refuse = FlexibleArgumentParser.error

    def error(parser: Any, message: str) -> Any:
        blame(f"vLLM's arguments: {message}")
        refuse(parser, message)

    FlexibleArgumentParser.error = error
    # As the main module, by its own name: vLLM's processes are spawned from it.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
