"""The sender of a request: the identity that authorisation, quotas, audit and logs go by. [P]

Made by the edges, one per connection and client id; services are called through it (`Services.of`).
"""

from __future__ import annotations

from dataclasses import dataclass

#: Kafka's principal of a client that did not authenticate.
ANONYMOUS = "User:ANONYMOUS"


@dataclass(frozen=True, slots=True)
class Caller:
    #: Kafka's form, `<type>:<name>`.
    principal: str
    #: The name that the client gave itself; not authenticated. Empty if it gave none.
    client_id: str
    #: IP address without a port; empty if unknown.
    address: str
    #: Name of the listener that it connected to.
    listener: str


#: The broker itself: work that no client asked for.
BROKER = Caller("User:broker", "", "", "")
