"""The one thing of ours that runs inside vLLM: `--worker-extension-cls rollyard_vllm.WeightLoading`.

This directory alone is put on the server's PYTHONPATH, so a server may live in an environment that knows no Rollyard.
"""

from typing import Any


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
