"""Pipeline parallelism, experimental: micro-batches on their way through stages, each with a range of the layers.

    stage 0              stage 1            last stage
    embedding, layers -> layers -> ... ->   layers, norm, output layer, loss
                      <-        <- ... <-   gradients with respect to what came in

One forward, one backward (arXiv:2104.04473, section 2.2.1): stage s of S runs S - 1 - s forward passes ahead and then
one backward pass for each further forward pass, so it holds the activations of at most S - s micro-batches. With M
micro-batches a step, (S - 1) / (M + S - 1) of every stage's time is idle. One stage alone is the plain loop.

Micro-batches differ in length, which the schedules of torch.distributed.pipelining do not know. Here every stage has
the same list of them, so each knows the shape of what comes without being told.

Shapes: N tokens of a micro-batch, D width.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from trainers.distributed.mesh import World
from trainers.model.lm_head import TokenScores
from trainers.model.policy import hidden_states, score_tokens
from trainers.packing import MicroBatch

Use = Callable[[MicroBatch, TokenScores], torch.Tensor]
"""What the last stage does with the scores of each micro-batch, in their order: make a loss of them."""


def forward_backward(
    model: PreTrainedModel,
    micro_batches: Sequence[MicroBatch],
    temperature: float,
    loss: Use,
    world: World,
    dtype: torch.dtype,
) -> None:
    """Add the gradients of the micro-batches' losses to the parameters. Collective; `loss` is called on the last stage.

    `dtype` is the number format that the model computes in.
    """
    line = _Line(model, micro_batches, temperature, loss, world, dtype)
    count = len(micro_batches)
    ahead = min(world.stages - 1 - world.stage, count)
    for index in range(ahead):
        line.exchange(hidden_in=index)
        line.forward(index)
        line.exchange(hidden_out=index)
    if ahead < count:
        line.exchange(hidden_in=ahead)
    for index in range(ahead, count):
        line.forward(index)
        # A send and a receipt go together: alone, two neighbours that both send first would wait for each other.
        line.exchange(hidden_out=index, gradient_in=index - ahead)
        line.backward(index - ahead)
        line.exchange(gradient_out=index - ahead, hidden_in=index + 1 if index + 1 < count else None)
    for index in range(count - ahead, count):
        line.exchange(gradient_in=index)
        line.backward(index)
        line.exchange(gradient_out=index)


@torch.no_grad()
def forward_only(
    model: PreTrainedModel,
    micro_batches: Sequence[MicroBatch],
    temperature: float,
    world: World,
    dtype: torch.dtype,
) -> list[TokenScores]:
    """Scores of the micro-batches, in their order, on the last stage; nothing on the others. Collective."""
    found: list[TokenScores] = []

    def keep(_: MicroBatch, scores: TokenScores) -> torch.Tensor:
        found.append(scores)
        return scores.logprobs_K

    line = _Line(model, micro_batches, temperature, keep, world, dtype)
    for index in range(len(micro_batches)):
        line.exchange(hidden_in=index)
        line.forward(index)
        line.exchange(hidden_out=index)
        line.forget(index)
    return found


def share_gradient(model: PreTrainedModel, world: World) -> torch.nn.Parameter | None:
    """Where the embedding is the output layer too, both the first and the last stage have it: add its two gradients.

    The sums are equal to the last bit, so the copies stay equal. Returns the copy of the last stage there, which a norm
    over all stages must leave out, and None elsewhere. Collective.
    """
    ends = (0, world.stages - 1)
    if world.stages == 1 or world.stage not in ends or not model.config.get_text_config().tie_word_embeddings:
        return None
    shared = model.get_input_embeddings().weight
    assert isinstance(shared, torch.nn.Parameter)
    if not shared.requires_grad:
        return None
    assert isinstance(shared.grad, DTensor)
    ours = shared.grad.to_local()
    theirs = torch.empty_like(ours)
    other = ends[0] if world.is_last_stage else ends[1]
    _swap([(ours, other)], [(theirs, other)], world.stage_group)
    ours += theirs
    return shared if world.is_last_stage else None


class _Line:
    """What of the micro-batches is at this stage: what came in, what went out, and the gradients of both."""

    def __init__(
        self,
        model: PreTrainedModel,
        micro_batches: Sequence[MicroBatch],
        temperature: float,
        use: Use,
        world: World,
        dtype: torch.dtype,
    ) -> None:
        self._model, self._micro_batches, self._temperature, self._use = model, micro_batches, temperature, use
        self._world, self._dtype = world, dtype
        self._hidden_in: dict[int, torch.Tensor] = {}
        self._hidden_out: dict[int, torch.Tensor] = {}
        """On the last stage losses."""
        self._gradients_in: dict[int, torch.Tensor] = {}
        self._gradients_out: dict[int, torch.Tensor] = {}

    def forward(self, index: int) -> None:
        """This stage's part of a forward pass."""
        batch, received = self._micro_batches[index].to(self._world.device), self._hidden_in.get(index)
        if self._world.is_last_stage:
            self._hidden_out[index] = self._use(batch, score_tokens(self._model, batch, self._temperature, received))
        else:
            self._hidden_out[index] = hidden_states(self._model, batch, received)

    def backward(self, index: int) -> None:
        """This stage's part of a backward pass. Its activations are free afterwards."""
        torch.autograd.backward(self._hidden_out.pop(index), self._gradients_in.pop(index, None))
        if (received := self._hidden_in.pop(index, None)) is not None:
            assert received.grad is not None
            self._gradients_out[index] = received.grad

    def forget(self, index: int) -> None:
        """There will be no backward pass."""
        self._hidden_out.pop(index)
        self._hidden_in.pop(index, None)

    def exchange(
        self,
        *,
        hidden_out: int | None = None,
        gradient_in: int | None = None,
        gradient_out: int | None = None,
        hidden_in: int | None = None,
    ) -> None:
        """Send to and receive from the neighbours, for these micro-batches; there is nobody before the first stage and
        behind the last."""
        world = self._world
        sent, expected = [], []
        if not world.is_last_stage and hidden_out is not None:
            sent.append((self._hidden_out[hidden_out].detach(), world.stage + 1))
        if not world.is_last_stage and gradient_in is not None:
            self._gradients_in[gradient_in] = torch.empty_like(self._hidden_out[gradient_in])
            expected.append((self._gradients_in[gradient_in], world.stage + 1))
        if world.stage > 0 and gradient_out is not None:
            sent.append((self._gradients_out.pop(gradient_out), world.stage - 1))
        if world.stage > 0 and hidden_in is not None:
            self._hidden_in[hidden_in] = self._room_for(hidden_in)
            expected.append((self._hidden_in[hidden_in], world.stage - 1))
        _swap(sent, expected, world.stage_group)
        if hidden_in in self._hidden_in:
            self._hidden_in[hidden_in].requires_grad_(torch.is_grad_enabled())

    def _room_for(self, index: int) -> torch.Tensor:
        """[1, N, D]."""
        tokens, width = len(self._micro_batches[index].token_ids_N), self._model.config.get_text_config().hidden_size
        return torch.empty(1, tokens, width, dtype=self._dtype, device=self._world.device)


def _swap(
    sent: Sequence[tuple[torch.Tensor, int]],
    expected: Sequence[tuple[torch.Tensor, int]],
    group: dist.ProcessGroup,
) -> None:
    """Send each tensor to its stage and fill the expected ones from theirs, all at once."""
    ops = [dist.P2POp(dist.isend, tensor.contiguous(), group=group, group_peer=peer) for tensor, peer in sent]
    ops += [dist.P2POp(dist.irecv, tensor, group=group, group_peer=peer) for tensor, peer in expected]
    if ops:
        for work in dist.batch_isend_irecv(ops):
            work.wait()
