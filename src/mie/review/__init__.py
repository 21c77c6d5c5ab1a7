"""The server where people inspect samples, choose masks and rank outputs; exports and reviewed datasets.

`database` holds the tables, `plan` creates the items and `assignments` leases them. `service` is what a rater
does, `views` what a rater sees, `events` the log of answers. `server` and `routes` add HTTP, `auth` the
accounts. `export` writes answers to files, `apply` makes the reviewed dataset.
"""
