"""`make e2e`: choose a place, make images, run the scenario, leave nothing behind. [A]"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

from ottla_e2e.images import Images
from ottla_e2e.places import Place, cache, choose
from ottla_e2e.say import Fault, say, step
from ottla_e2e.scenario import Scenario


def main() -> int:
    # Jobs that a shell starts in the background ignore Ctrl-C, and a service manager says TERM: both end it properly.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        place = choose()
        say(f"Kubernetes is {place.name}")
        run(place)
    except Fault as fault:
        say(f"FAILED: {fault}")
        return 1
    except subprocess.CalledProcessError as failed:
        say(f"FAILED: {failed}")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    say("everything was as it must be, and nothing is left running")
    return 0


def run(place: Place) -> None:
    images = Images(cache() / "images")
    with step("prepare the place and the images"), ThreadPoolExecutor() as beside:
        preparing = beside.submit(place.prepare)
        archive = images.of_the_run()
        preparing.result()
    try:
        with step(f"open {place.name}"):
            kube = place.open(images)
        try:
            with step("load the images"):
                place.load(archive)
            Scenario(place, kube).run()
        except (Fault, subprocess.SubprocessError) as fault:
            say(f"FAILED: {fault}")
            if not isinstance(fault, Fault):
                traceback.print_exc()
            kube.tell_all()
            place.explain()
            raise
    finally:
        if os.environ.get("E2E_KEEP"):
            say("E2E_KEEP is set: everything is left as it is")
        else:
            place.close()


if __name__ == "__main__":
    sys.exit(main())
