"""Finds nothing: the least that every model has to beat."""


def predict(signal, rate):  # noqa: ARG001 - the challenge calls it so
    return []
