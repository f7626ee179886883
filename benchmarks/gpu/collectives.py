"""NCCL beside gloo in a world of one: every kind of collective that a trainer uses, on tensors of both devices."""

import time

import torch
import torch.distributed as dist

from benchmarks.gpu.setting import finish, options, sole_rank, synchronise

_ELEMENTS = 2**24


def main() -> None:
    asked = options()
    begin = time.perf_counter()
    world = sole_rank(asked.device)
    faults = []
    mesh, tensor = world.layer_mesh, torch.arange(8.0, device=world.device)
    dist.all_reduce(tensor)
    joined_s = time.perf_counter() - begin
    gathered = torch.empty_like(tensor)
    dist.all_gather_into_tensor(gathered, tensor, group=mesh.get_group())
    scattered = torch.empty_like(tensor)
    dist.reduce_scatter_tensor(scattered, tensor, group=mesh.get_group())
    for name, found in (("all_reduce", tensor), ("all_gather", gathered), ("reduce_scatter", scattered)):
        if found.tolist() != list(range(8)):
            faults.append(f"{name} on {world.device} gave {found.tolist()}")
    number = torch.tensor([7])  # a CPU tensor: another backend
    dist.broadcast(number, src=0)
    shares: list[object] = [None]
    dist.all_gather_object(shares, {"step": int(number)})
    dist.barrier()
    if shares != [{"step": 7}]:
        faults.append(f"objects came back as {shares}")
    large = torch.ones(_ELEMENTS if not asked.small else 8, device=world.device)
    dist.all_reduce(large)
    synchronise(world.device)
    begin = time.perf_counter()
    for _ in range(10):
        dist.all_reduce(large)
    synchronise(world.device)
    figures = {
        "backend": dist.get_backend_config(),
        "join_s": joined_s,
        "all_reduce_64_mib_ms": (time.perf_counter() - begin) * 100,
    }
    dist.destroy_process_group()
    finish(figures, "; ".join(faults))


if __name__ == "__main__":
    main()
