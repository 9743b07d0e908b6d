"""MLflow in the lab: its one server process, the authenticated way in, and what the lab itself tells it.

Nothing here imports mlflow, except the project backend, which lives in the user's own ``mlflow run``, and the server's child.
"""
