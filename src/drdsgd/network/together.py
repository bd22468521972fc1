"""All devices of a deployment on this machine, a process each: for trials."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from drdsgd.errors import Died, InputError, Interrupted
from drdsgd.experiments.run import stop_requests
from drdsgd.network import deployment

__all__ = ["run"]


def run(folder: Path, watch: Callable[[float, str], None] = lambda done, note: None) -> None:
    """Start a process per device and wait for all; `watch` gets the sum of all devices' rounds, and a note."""
    paths = deployment.devices(folder)
    found = [deployment.load(path) for path in paths]
    for path, device in zip(paths, found, strict=True):
        deployment.experiment_of(device, path.parent)
    outputs = [path.parent / "output.txt" for path in paths]
    processes = []
    with stop_requests() as asked:
        try:
            for path, output in zip(paths, outputs, strict=True):
                command = [sys.executable, "-P", "-m", "drdsgd", "node", str(path), "--threads", "1"]
                with output.open("w") as file:
                    # in sessions of their own: Ctrl-C reaches only this process, which terminates the others
                    processes.append(
                        subprocess.Popen(
                            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    )  # fmt: skip
            told = False
            while any(process.poll() is None for process in processes):
                # if one refuses to start, the others would continue without it
                if (asked() or any(process.returncode == 2 for process in processes)) and not told:
                    told = True
                    for process in processes:
                        process.terminate()
                rounds = [_round(path.parent / device.out) for path, device in zip(paths, found, strict=True)]
                watch(sum(rounds), f"rounds {min(rounds)} to {max(rounds)}")
                time.sleep(0.2)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if asked():
            raise Interrupted("stopped")
    ended = sorted(zip(found, processes, outputs, strict=True), key=lambda one: one[1].returncode != 2)
    for device, process, output in ended:
        if process.returncode:
            said = (output.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]
            kind = InputError if process.returncode == 2 else Died
            how = signal.Signals(-process.returncode).name if process.returncode < 0 else f"status {process.returncode}"
            raise kind(f"{device.name} ended with {how}: {said.removeprefix('drdsgd: ')}")


def _round(path: Path) -> int:
    try:
        return int(json.loads((path / "status.json").read_bytes())["round"])
    except FileNotFoundError:
        return 0
