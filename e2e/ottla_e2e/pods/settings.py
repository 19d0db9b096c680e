"""Prints one setting of a topic, as the brokers tell a stock client. [A]

Runs in a pod; standard library and confluent-kafka only. The last line it prints is JSON.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka.admin import AdminClient, ConfigResource


def main() -> None:
    bootstrap, topic, name = sys.argv[1:]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # held until the answer is there
    (asked,) = admin.describe_configs([resource]).values()
    print(json.dumps(asked.result(timeout=30)[name].value), flush=True)


if __name__ == "__main__":
    main()
