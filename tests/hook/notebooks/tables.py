# %%
import pandas as pd
frame = pd.DataFrame({"city": ["Bergen", "Ulm", "Ulm", "Graz"], "n": [3, 1, 4, 1]})
frame
# %%
frame.groupby("city", as_index=False)["n"].sum().sort_values("n", ascending=False)
# %%
frame.describe().loc[["mean", "max"]]
