"""The one thing of ours that runs inside vLLM: `--worker-extension-cls rollyard_vllm.WeightLoading`.

This directory alone is put on the server's PYTHONPATH, so a server may live in an environment that knows no Rollyard.
"""

from typing import Any

from rollyard_faults import blaming_input  # type: ignore[import-not-found]
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

_load_model = BaseModelLoader.load_model


def _load(*args: Any, **kwargs: Any) -> Any:
    """Load the model that the server starts with: weights that do not fit it are a fault of the input."""
    with blaming_input():
        return _load_model(*args, **kwargs)


BaseModelLoader.load_model = _load


class WeightLoading:
    """Mixed into vLLM's worker class, whose attributes it uses; its methods are called by `/collective_rpc`."""

    def load_policy_weights(self: Any, path: str) -> None:
        """Replace the weights by those in the directory `path`."""
        self.reload_weights(weights_path=path)
        if self.device.type != "cpu":
            return
        # On CPU a linear layer computes with a packed copy of its weight. vLLM packs again what it loads, but an output
        # head tied to the embedding is not in the file: it would go on answering with the head of the old weights.
        for module in self.model_runner.get_model().modules():
            if type(module).__name__ == "ParallelLMHead":
                module.quant_method.process_weights_after_loading(module)

    def load_policy_adapter(self: Any, path: str) -> None:
        """Replace the LoRA adapter that the server was started with by the one in `path`; no other weight moves.

        The adapter keeps its id, so requests in flight go on with the new one. The route `/v1/load_lora_adapter` with
        `load_inplace` would not do: every request then carries a path, and the worker reads it again at each step.
        """
        (adapter_id,) = self.list_loras()
        if not self.add_lora(LoRARequest("policy", adapter_id, path, load_inplace=True)):
            raise ValueError(f"vLLM did not take the adapter in {path}")
