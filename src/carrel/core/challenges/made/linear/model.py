"""A linear model: numbers are scaled, and each word of a text column becomes a column of its own."""

from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

METHOD = "predict"


def preprocess(rows):
    numbers = list(rows.select_dtypes("number"))
    return rows.assign(**{name: rows[name].fillna("").astype(str) for name in rows.columns if name not in numbers})


def fit(rows, answers):
    rows = preprocess(rows)
    numbers = list(rows.select_dtypes("number"))
    words = [name for name in rows.columns if name not in numbers]
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", max_categories=50), words),
    )
    last = Ridge() if answers.dtype.kind in "if" else LogisticRegression(max_iter=1000)
    return make_pipeline(columns, last).fit(rows, answers)


def predict(model, rows):
    return getattr(model, METHOD)(preprocess(rows))
