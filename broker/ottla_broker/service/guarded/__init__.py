"""Services as one caller may use them: each checks the rights of its caller, and calls the service behind it.

A guarded service has the methods that edges call, with the same signatures, and nothing else: a method without its
check cannot be called by a handler. Rights are those of `edge/needs.py`, which are Kafka's. A refusal of one topic in a
request of many is the outcome of that topic only.
"""
