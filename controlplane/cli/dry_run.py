"""`rollyard launch --dry-run`: print the config as it would be stored, and the commands that would be started.

Needs no database and no server: what only a launch decides stands in capitals, in the commands and in the variables.
The name of a model stays one.
"""

import os
import shlex
from pathlib import Path

from controlplane.cli.terminal import config_line, print_json, say
from controlplane.home import Home
from environments.client.address import SCHEME
from trainers.config import Resolved
from workers.fleet import accelerators, commands

RUN, PROJECT, SOCKET, SECRET = "RUN", "PROJECT", "SOCKET", "SECRET"


def list_commands(resolved: Resolved) -> dict[str, commands.Command]:
    """Every process of the run, by its name. On this machine: which GPUs a process gets depends on what there is."""
    config = resolved.config
    found: dict[str, commands.Command] = {}
    if config.kind == "external":
        return found
    gpus = accelerators.list_gpus()[: commands.gpus_wanted(config)]
    held = accelerators.list_cores()[: commands.cores_wanted(config)]
    if config.is_played:
        for slot in commands.slots(config):
            found[slot.name] = commands.server(
                config,
                slot,
                weights=commands.start_weights(config, slot.policy),
                directory=Home.from_environ().runs / RUN / "replicas" / slot.name,
                socket=Path(SOCKET),
                caches=Home.from_environ().caches / PROJECT,
                api_key=SECRET,
                gpus=gpus,
                held=held,
            )
    url = os.environ.get("ROLLYARD_RUNS_URL") or f"{SCHEME}{Home.from_environ().runs_socket}"
    if config.is_trained:
        directory = Home.from_environ().runs / RUN
        found["trainer-0"] = commands.trainer(
            config, run=RUN, directory=directory, url=url, token=SECRET, gpus=gpus, held=held
        )
    return found


def show(resolved: Resolved, *, as_json: bool) -> None:
    """Print config and commands, for a person or as one line of JSON."""
    config = resolved.config.model_dump(mode="json")
    found = list_commands(resolved)
    if as_json:
        origins = {key: str(origin) for key, origin in resolved.origins.items()}
        processes = [
            {"name": name, "argv": command.argv, "environ": command.environ} for name, command in found.items()
        ]
        print_json({"config": config, "origins": origins, "commands": processes})
        return
    for key, origin in resolved.origins.items():
        say(config_line(config, key, str(origin)))
    for name, command in found.items():
        say()
        say(f"{name}:")
        for variable, value in command.environ.items():
            say(f"  {variable}={shlex.quote(value)} \\")
        say(f"  {shlex.join(command.argv)}")
    decided = (
        f"{RUN}, {PROJECT}, {SOCKET} and {SECRET} are decided by a launch, as is the path of a model that has a name"
    )
    say()
    if found:
        say(f"Nothing was started; {decided}.")
