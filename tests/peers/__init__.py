"""Agents on other people's A2A 1.0 servers, for the tests to delegate to. They share no code with the product.

What an agent does is in the text of the goal, steps divided by semicolons, the same in all of them:

- ``say TEXT``: a Message and no task (where the server can)
- ``hold``: WORKING until somebody POSTs to ``/_go/<contextId>``
- ``make TEXT``: an artifact with a text, a data, a bytes and a URL part
- ``ask TEXT``: INPUT_REQUIRED; the next message is the answer, and the rest goes on
- ``deaf``: from now on its code does nothing when a cancel is asked for
- ``fail TEXT``, ``reject TEXT``: the end; a task that is not told otherwise completes, with its answers in an artifact

``GET /_seen`` lists every request: ``method path headers body status stream ended``; ``ended`` is null while the answer
lasts, then who ended it: ``agent``, or ``client`` who left first. A JSON line ``{"ready": url}`` says when it listens.
"""
