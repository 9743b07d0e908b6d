"""One process per job: prepares, runs, watches, stores, reports. It outlives the server, and its spool is the truth."""
