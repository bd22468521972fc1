"""Several runs at the same time, each in its own process with its own threads.

A worker is `python -m drdsgd.experiments.workers`. The process that starts the workers also does runs itself. Pairs of
sockets connect them, because a model may print to standard output. Both sides send lines of JSON:

    ["ready", null]                                                          from it: its modules are loaded
    {"path": "out/dsgd/seed-0", "experiment": {...}, "log": ["mlflow"]}      to it: begin or continue this run
    ["round", 17]                                                            from it: the round reached
    ["say", "the mlflow log: ..."]                                           from it: a line for the user
    ["over", null]                                                           from it: finished, or diverged
    ["interrupted", null], ["input", "p=0.1: ..."], ["system", [28, "No space left on device", "/x"]],
    ["memory", "..."]                                                        from it: other reasons for the end of a run

A worker whose socket is closed finishes its round, saves a checkpoint and ends. This is how it is asked to stop, and
how it notices that the other process has died.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from drdsgd.environment import for_torch
from drdsgd.errors import Died, Diverged, InputError, Interrupted, named, out_of_memory
from drdsgd.experiments import loggers
from drdsgd.experiments.build import reusing_data
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Folder
from drdsgd.experiments.run import run, stop_requests

__all__ = ["Job", "Team", "carry_out", "main", "serve", "team"]

Job = tuple[Experiment, Path]

# seconds between two progress messages of a worker, and at most until a Ctrl-C is noticed
SAY_EVERY, LOOK_EVERY = 0.1, 0.2
# seconds that a process may take to end after its last message
END_WITHIN = 20.0


def carry_out(
    e: Experiment,
    path: Path,
    watch: Callable[[int], None],
    stop: Callable[[], bool] = lambda: False,
    log: loggers.Make = loggers.no_log,
) -> None:
    """Begin or continue a run. `watch` sees the round reached; a run that diverges counts as at its last round.

    >>> import tempfile
    >>> reached = []
    >>> e = Experiment(dataset="synthetic", devices=4, rounds=3, graph="ring", threads=1)
    >>> carry_out(e, Path(tempfile.mkdtemp()) / "run", reached.append)
    >>> reached
    [0, 1, 2, 3]
    """
    try:
        again = Folder(path).config.exists()
        run(e, path, resume=again, watch=lambda progress: watch(progress.state.t), stop=stop, log=log)
    except Diverged:  # its summary says so
        watch(e.rounds)


# ------------------------------------------------------------------- the side that starts them


class Worker:
    """A process and the job that it works on."""

    def __init__(self, threads: int) -> None:
        self.job: int | None = None
        self.ready = self.stopped = self.silent = False
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = _start(theirs.fileno(), threads)
        self._unread = b""

    def give(self, e: Experiment, path: Path, log: Sequence[str] = ()) -> None:
        """Let it begin or continue a run."""
        about = {"path": str(path), "experiment": e.model_dump(exclude_none=True), "log": list(log)}
        line = json.dumps(about) + "\n"
        with suppress(ConnectionError):  # it has died, which `_listen` will notice
            self.channel.sendall(line.encode())

    def stop(self) -> None:
        """Ask it to end, after its current round."""
        self.stopped = True
        if not self.ready:
            self.process.kill()  # it would first load all its modules
        with suppress(OSError):  # it has already ended
            self.channel.shutdown(socket.SHUT_WR)

    def hear(self) -> list[tuple[str, Any]]:
        """Its messages; waits until there are some, or until the socket is closed."""
        heard = b""
        with suppress(ConnectionError):  # it has died
            heard = self.channel.recv(2**16)
        self.silent = not heard
        *lines, self._unread = (self._unread + heard).split(b"\n")
        return [(kind, value) for kind, value in map(json.loads, lines)]

    def end(self) -> int:
        """Wait for the end of the process, and return its status."""
        self.channel.close()
        try:
            return self.process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:  # a model has left a thread that does not end
            self.process.kill()
            return self.process.wait()


class Team:
    """Runs that this process and its workers share."""

    _selector: selectors.BaseSelector

    def __init__(
        self,
        jobs: Sequence[Job],
        watch: Callable[[int, int], None],
        workers: Sequence[Worker],
        log: Sequence[str] = (),
    ) -> None:
        self._jobs, self._watch, self._workers, self._log = jobs, watch, workers, log
        self._waiting, self._done = iter(range(len(jobs))), 0
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Do all runs, each as soon as a process is free.

        After an error in one run, the others finish and save their round before the error is raised. The same happens
        on a first Ctrl-C or SIGTERM; a second Ctrl-C is a `KeyboardInterrupt` at once.
        """
        with reusing_data(), selectors.DefaultSelector() as self._selector:
            with stop_requests() as asked_to_stop:

                def stopping() -> bool:
                    if asked_to_stop() and self._failure is None:
                        self._failure = Interrupted()
                    return self._failure is not None

                for worker in self._workers:
                    self._selector.register(worker.channel, selectors.EVENT_READ, worker)
                while not stopping() and (job := next(self._waiting, None)) is not None:
                    self._run_here(job, stopping)
                for worker in self._workers:
                    if not worker.ready:  # no run is left for it
                        worker.stop()
                while not stopping() and self._selector.get_map():
                    self._listen(LOOK_EVERY)
            # from here on a Ctrl-C is the second one
            for worker in self._workers:
                worker.stop()
            while self._selector.get_map():
                self._listen(LOOK_EVERY)
        if isinstance(self._failure, Interrupted):
            left = len(self._jobs) - self._done
            raise Interrupted(f"stopped with {left} {'run' if left == 1 else 'runs'} unfinished")
        if self._failure is not None:
            raise self._failure

    def _run_here(self, job: int, stopping: Callable[[], bool]) -> None:
        """Do a run in this process, and read the workers' messages from time to time."""
        listen = _seldom(lambda t: self._listen(0))

        def watch(t: int) -> None:
            self._watch(job, t)
            listen(t)

        try:
            carry_out(*self._jobs[job], watch, stopping, loggers.of(self._log))
            self._done += 1
        except (Exception, Interrupted) as error:
            self._failure = self._failure or error

    def _listen(self, timeout: float) -> None:
        """Read the workers' messages, and give free workers their next run."""
        for key, _ in self._selector.select(timeout):
            worker: Worker = key.data
            for kind, value in worker.hear():
                if kind == "ready":  # until then, short runs are done in this process
                    worker.ready = True
                    self._next(worker)
                    continue
                assert worker.job is not None
                if kind == "round":
                    self._watch(worker.job, value)
                elif kind == "say":
                    loggers.complain(value)
                elif kind == "over":
                    self._watch(worker.job, self._jobs[worker.job][0].rounds)
                    self._done += 1
                    self._next(worker)
                else:
                    self._failure, worker.job = self._failure or _failure(kind, value), None
            if worker.silent:
                self._selector.unregister(worker.channel)
                status = worker.end()
                if worker.job is not None:
                    self._failure = self._failure or _death(status, f"of the run in {self._jobs[worker.job][1]}")
                elif not worker.stopped:
                    self._failure = self._failure or _death(status, "of a worker")

    def _next(self, worker: Worker) -> None:
        """Give a worker the next run, or stop it if there is none."""
        worker.job = next(self._waiting, None) if self._failure is None else None
        if worker.job is None:
            worker.stop()
        else:
            worker.give(*self._jobs[worker.job], self._log)


@contextmanager
def team(
    jobs: Sequence[Job], at_once: int, watch: Callable[[int, int], None], log: Sequence[str] = ()
) -> Iterator[Team]:
    """This process and workers for `at_once` runs at the same time; the workers end with the block.

    They start now, to be ready when `Team.run` is called. `watch` sees the index of a run and the round it reached.
    `log` names the logs that get a copy of the metrics.
    """
    workers: list[Worker] = []
    try:
        for _ in range(at_once - 1):
            workers.append(Worker(threads=jobs[0][0].threads))
        yield Team(jobs, watch, workers, log)
    except BaseException:
        for worker in workers:
            worker.process.kill()  # those that `run` asked to stop have ended by now
        raise
    finally:
        for worker in workers:
            worker.end()


def _start(number: int, threads: int) -> subprocess.Popen[bytes]:
    """Start a worker for runs on `threads` threads; `number` is its socket's file descriptor."""
    return subprocess.Popen(
        # -P: modules in the working directory must not shadow others
        [sys.executable, "-P", "-m", "drdsgd.experiments.workers", str(number)],
        stdin=subprocess.DEVNULL,
        pass_fds=[number],
        start_new_session=True,  # a Ctrl-C in the terminal reaches this process only, which asks the workers to stop
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads),
            **for_torch(),
            "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path),
        },
    )


def _failure(kind: str, value: Any) -> BaseException:
    """The exception that ended a worker's run."""
    if kind == "system":
        return OSError(*value)
    return {"input": InputError, "memory": MemoryError, "interrupted": Interrupted}[kind](value)


def _death(status: int, whose: str) -> Died:
    """The error for a worker that ended unexpectedly."""
    if status < 0:
        reason = f"signal {-status}, {signal.strsignal(-status)}"
        how = f"was killed ({reason}); if memory was short, use fewer {named('threads')}"
    else:
        how = f"ended with status {status}; see its output above"
    return Died(f"the process {whose} {how}")


# ------------------------------------------------------------------------------ a worker's side


def main() -> None:
    """The program `python -m drdsgd.experiments.workers NUMBER`; NUMBER is the file descriptor of an open socket."""
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        channel.set_inheritable(False)  # processes that a model starts must not keep it open
        serve(channel)


def serve(channel: socket.socket) -> None:
    """Do the runs that the other side asks for, one after the other, until it closes the socket."""
    jobs: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    stop = threading.Event()

    def listen() -> None:
        with suppress(ConnectionError), channel.makefile("rb") as lines:
            for line in lines:
                jobs.put(json.loads(line))
        stop.set()
        jobs.put(None)

    def say(kind: str, value: Any = None) -> None:
        with suppress(ConnectionError):  # the other side has gone: `listen` notices that and stops
            channel.sendall(json.dumps([kind, value]).encode() + b"\n")

    threading.Thread(target=listen, daemon=True).start()
    say("ready")
    with reusing_data():
        while (job := jobs.get()) is not None and not stop.is_set():
            watch = _seldom(partial(say, "round"))
            log = loggers.of(job["log"], partial(say, "say"))
            say(*_outcome(Experiment(**job["experiment"]), Path(job["path"]), watch, stop.is_set, log))


def _outcome(
    e: Experiment, path: Path, watch: Callable[[int], None], stop: Callable[[], bool], log: loggers.Make
) -> tuple[str, Any]:
    """Do a run and return how it ended; a bug is not caught, so that its traceback is shown."""
    try:
        carry_out(e, path, watch, stop, log)
        return "over", None
    except InputError as error:
        return "input", error.marked
    except KeyboardInterrupt:
        return "interrupted", None
    except OSError as error:
        if error.errno is None:
            return "system", [str(error)]
        return "system", [error.errno, error.strerror, str(error.filename) if error.filename else None]
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return "memory", str(error)


def _seldom(watch: Callable[[int], None]) -> Callable[[int], None]:
    """The same function, called at most once per `SAY_EVERY` seconds."""
    last = float("-inf")

    def seldom(t: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= SAY_EVERY:
            last = now
            watch(t)

    return seldom


if __name__ == "__main__":
    main()
