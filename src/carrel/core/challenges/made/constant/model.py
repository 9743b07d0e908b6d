"""Says the same of every row: the least that a model has to beat."""

from sklearn.dummy import DummyClassifier, DummyRegressor

METHOD = "predict"


def fit(rows, answers):
    model = DummyRegressor() if answers.dtype.kind in "if" else DummyClassifier()
    return model.fit(rows, answers)


def predict(model, rows):
    return getattr(model, METHOD)(rows)
