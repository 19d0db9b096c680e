"""One file per API key: `k<key>_<name>.py`, with key and name as in `versions.APIS`.

The contract of a handler file:

* Its docstring says which versions it serves, how it behaves, what it leaves out on purpose, and what
  changed from version to version.
* It defines `def handle(context: Context, request: Request) -> Maybe[Reply]`, a plain function. It is
  called in the order in which the requests of a connection came.
* `request.fields()` gives the body as plain values: a dict whose keys are Kafka's field names in snake case
  as kio spells them (`timeoutMs` is `timeout`, `throttleTimeMs` is `throttle_time`), lists, `int` (also for
  times in ms and error codes), `str`, `bytes`, `UUID` (all zero for none), None where the schema allows
  null. A field that the version does not have is not there: `fields.get("validate_only", False)`.
* It returns a dict of the same kind. Fields that the version does not have are left out, those that are
  missing get the schema's default (zero, empty, null), so one dict serves all versions. Or it returns
  `Encoded(buffers)` with a body it wrote itself, or None for no answer at all.
* If it can answer at once it does so: no coroutine, no task. Else it returns an awaitable of the same; then
  it must have read all it needs of the request before it returned, because the buffer under `request.body`
  is used again. The next request of the connection is handled when the answer is there, unless the module
  says `OVERLAPS = True`: then what the request does is done when `handle` returns, and only the answer
  waits. With `READ_ONLY = True` waiting is cancelled when the client disconnects.
* `RequestError` from a service belongs into the error field of the item it concerns
  (`error_fields(error)`). One that leaves `handle` becomes the top-level `error_code` if the answer has
  one. `Malformed` closes the connection. Any other exception is a bug: logged, answered with
  UNKNOWN_SERVER_ERROR where there is a field for it, else the connection is closed.
* No clock, no tasks, no state: what lasts belongs to a service, or to `context` if it is about the
  connection.

`k18_api_versions.py` is the shortest example; `k10_find_coordinator.py` one with several shapes by version.
"""
