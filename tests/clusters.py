"""Clusters on this machine for tests and benchmarks: Ray with a head and two nodes, Spark with a master and two
workers. Only loopback addresses; whatever they start is ended with them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LOCAL = "127.0.0.1"
START = 120  # seconds
# before Ray is imported; the last makes it use loopback addresses, as it does by itself on systems other than Linux
os.environ.update(RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": LOCAL,
    "spark.driver.bindAddress": LOCAL,
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.executor.cores": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
    "spark.executorEnv.OMP_NUM_THREADS": "1",
}


def children(pid: int) -> list[int]:
    """Returns the processes that a process started, and those that they started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return [p for child in found for p in (child, *children(child))]


def command(pid: int) -> str:
    """Returns the command line of a process; "" if it is over."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = START) -> Any:
    """Waits until the condition is true and returns it. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {seconds} s")
        time.sleep(0.1)
    return found


def end(pids: list[int]) -> None:
    """Kills these processes, and whatever they started until now."""
    for pid in [p for first in pids for p in (first, *children(first))]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def own_children() -> Iterator[None]:
    """Kills at the end all processes that were started meanwhile."""
    before = set(children(os.getpid()))
    try:
        yield
    finally:
        end([p for p in children(os.getpid()) if p not in before])


@contextlib.contextmanager
def ray_cluster() -> Iterator[Any]:
    """Starts a head with one CPU and two nodes with two each, and connects to it."""
    import ray
    from ray.cluster_utils import Cluster

    with own_children():
        node = {"node_ip_address": LOCAL, "include_dashboard": False, "object_store_memory": 100 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 1})
        try:
            for _ in range(2):
                cluster.add_node(**{k: v for k, v in node.items() if k != "include_dashboard"}, num_cpus=2)
            cluster.wait_for_nodes(timeout=START)
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            ray.data.DataContext.get_current().enable_progress_bars = False
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[tuple[Any, list[subprocess.Popen[bytes]]]]:
    """Starts a master and two workers of one core, and connects to them; gives the session and the workers."""
    import pyspark
    from pyspark.sql import SparkSession

    home = Path(pyspark.__file__).parent
    env = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": LOCAL, "PYSPARK_PYTHON": sys.executable}
    env["SPARK_NO_DAEMONIZE"] = "1"
    os.environ.update(SPARK_LOCAL_IP=LOCAL, SPARK_HOME=str(home), PYSPARK_PYTHON=sys.executable)

    def start(kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = open(folder / f"{kind}.log", "ab")
        name = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        port = ["--host", LOCAL, "--port", "0", "--webui-port", "0"]
        with log:
            return subprocess.Popen(
                [home / "bin" / "spark-class", name, *port, *arguments], env=env, stdout=log, stderr=log, cwd=folder
            )

    def address() -> str | None:
        found = re.search(r"Starting Spark master at (spark://\S+)", (folder / "Master.log").read_text())
        return found[1] if found else None

    with own_children():
        start("Master")
        master = wait_for(address, "the start of Spark's master")
        workers = []
        for i in range(2):
            (folder / f"work{i}").mkdir()
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{i}"))
            workers.append(start("Worker", *options, master))
        log = folder / "Worker.log"
        wait_for(lambda: log.read_text().count("Successfully registered with master") == 2, "registering of workers")
        builder = SparkSession.builder.master(master).appName("pelton")
        for key, value in {**SPARK, "spark.local.dir": str(folder)}.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        try:
            session.sparkContext.setLogLevel("ERROR")
            yield session, workers
        finally:
            session.stop()
