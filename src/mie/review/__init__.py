"""The page where people accept, reject, choose masks and rank: a server on this machine, offline.

`serve.py` starts it, `app.py` puts the routes together, `events.py` keeps what people said.
"""
