"""Process 1 of a Spark pod: a driver or an executor, as Spark asks for it, or whatever command is given. [A]

Spark on Kubernetes tells both by arguments and environment what they are to be, and leaves it to the image to start
them; this is what the entry point of the image apache/spark does.
"""

from __future__ import annotations

import os
import re
import sys


def executor(environ: dict[str, str]) -> list[str]:
    """The command line of an executor."""
    options = sorted(
        (int(found[1]), value)
        for name, value in environ.items()
        if (found := re.fullmatch(r"SPARK_JAVA_OPT_(\d+)", name))
    )
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    return [
        f"{environ['JAVA_HOME']}/bin/java",
        *(option for _, option in options),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        f"{environ.get('SPARK_CONF_DIR', '')}:{environ['SPARK_HOME']}/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        "--driver-url", environ["SPARK_DRIVER_URL"],
        "--executor-id", environ["SPARK_EXECUTOR_ID"],
        "--cores", environ["SPARK_EXECUTOR_CORES"],
        "--app-id", environ["SPARK_APPLICATION_ID"],
        "--hostname", environ["SPARK_EXECUTOR_POD_IP"],
        "--resourceProfileId", environ["SPARK_RESOURCE_PROFILE_ID"],
        "--podName", environ["SPARK_EXECUTOR_POD_NAME"],
    ]  # fmt: skip


def driver(environ: dict[str, str], arguments: list[str]) -> list[str]:
    """The command line of a driver: spark-submit again, in client mode."""
    bind = f"spark.driver.bindAddress={environ['SPARK_DRIVER_BIND_ADDRESS']}"
    return [
        f"{environ['SPARK_HOME']}/bin/spark-submit",
        "--conf",
        bind,
        "--deploy-mode",
        "client",
        *arguments,
    ]


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind == "executor":
        command = executor(dict(os.environ))
    elif kind == "driver":
        command = driver(dict(os.environ), arguments)
    else:
        command = [kind, *arguments]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
