"""`make e2e`: choose a cluster, build images, run the scenario or the commands of the docs, clean up. [A]

`make images` stops after the archive; `make node` stops after a local node that has the images.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

from ottla_e2e import doc_commands, docker_images, oci
from ottla_e2e.images import TAG, Images, reference
from ottla_e2e.places import OwnNode, Place, cache, choose
from ottla_e2e.say import Fault, say, step
from ottla_e2e.scenario import Scenario


def main() -> int:
    # Background jobs of a shell ignore Ctrl-C, and service managers send TERM: handle both, so that the run cleans up.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="ottla_e2e")
    parser.add_argument("what", nargs="?", choices=["run", "docs", "images", "node"], default="run")
    parser.add_argument(
        "--with", dest="builder", choices=["docker"], help="who builds `images`; else this program"
    )
    given = parser.parse_args()
    what = given.what
    try:
        if what in ("run", "docs"):
            place = choose()
            say(f"Kubernetes is {place.name}")
            run(place, only_docs=what == "docs")
            say("all steps passed, and nothing is left running")
        elif what == "images":
            # Progress goes to standard error, so that a command can use the path.
            with redirect_stdout(sys.stderr):
                archive = make_images(given.builder)
            print(archive)
        else:
            make_node()
    except Fault as fault:
        say(f"FAILED: {fault}")
        return 1
    except subprocess.SubprocessError as failed:
        say(f"FAILED: {failed}")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    return 0


def make_images(builder: str | None = None) -> Path:
    if builder == "docker":
        archive = docker_images.build(cache() / "images/archives/docker.tar")
    else:
        archive = Images(cache() / "images").of_the_run()
    if copy := os.environ.get("E2E_ARCHIVE"):
        archive = Path(shutil.copy(archive, copy))
    say(f"{archive} holds {', '.join(oci.names(archive))}")
    return archive


def make_node() -> None:
    """A node that stays, to try things out."""
    place = OwnNode()
    place.prepare()
    archive = make_images()
    place.open(Images(cache() / "images"))
    place.load(archive)
    images = f"images.operator.tag={TAG},images.broker.tag={TAG},images.etcd={reference('etcd')}"
    print(
        f"""
    export KUBECONFIG={place.kubeconfig} PATH={place.programs}:$PATH
    .venv/bin/helm install ottla charts/ottla --namespace ottla --create-namespace \\
        --set images.registry={reference("").rpartition("/")[0]},{images},cluster.enabled=true
    e2e/node/down.sh     # removes the node
"""
    )


def run(place: Place, *, only_docs: bool = False) -> None:
    if only_docs and not place.is_new:
        raise Fault("the commands of the docs install Ottla for good: they need kind, or a local node")
    images = Images(cache() / "images")
    with step("prepare the cluster and the images"), ThreadPoolExecutor() as beside:
        preparing = beside.submit(place.prepare)
        archive = images.of_the_run()
        preparing.result()
    try:
        with step(f"open {place.name}"):
            kube = place.open(images)
        try:
            with step("load the images"):
                place.load(archive)
            if not only_docs:
                Scenario(place, kube).run()
            if place.is_new:
                kube = kube.within(doc_commands.NAMESPACE)
                with step("run the commands of docs/kubernetes.md"):
                    doc_commands.run(kube.environ)
            else:
                say("    the commands of docs/kubernetes.md are not run: they install Ottla for good")
        except (Fault, subprocess.SubprocessError) as fault:
            say(f"FAILED: {fault}")
            if not isinstance(fault, Fault):
                traceback.print_exc()
            kube.tell_all()
            place.explain()
            raise
    finally:
        if os.environ.get("E2E_KEEP"):
            say("E2E_KEEP is set: everything stays in place")
        else:
            place.close()


if __name__ == "__main__":
    sys.exit(main())
