# %%
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
# %%
model = LogisticRegression(max_iter=200).fit(X_train, y_train)
round(model.score(X_test, y_test), 3)
# %%
from sklearn.model_selection import GridSearchCV
search = GridSearchCV(LogisticRegression(max_iter=50), {"C": [0.01, 0.1]}, cv=2, n_jobs=2)
import warnings; warnings.simplefilter("ignore")
search.fit(X_train[:400], y_train[:400]).best_params_
