# %% [markdown]
# # Monthly sales, the usual way
# %%
import numpy as np
import pandas as pd
pd.set_option("display.width", 100)
rng = np.random.default_rng(11)
sales = pd.DataFrame({
    "month": pd.date_range("2024-01-01", periods=12, freq="MS"),
    "shop": list("abc") * 4,
    "units": rng.integers(1, 50, 12),
})
sales.head()
# %%
sales.info()
# %%
pivot = sales.pivot_table(index="shop", columns=sales.month.dt.quarter, values="units", aggfunc="sum")
pivot
# %%
sales.merge(pd.DataFrame({"shop": ["a", "b"], "city": ["Ulm", "Graz"]}), how="left").tail(4)
# %%
sales.groupby("shop")["units"].agg(["mean", "max"]).round(2).style.format("{:.1f}").to_html(uuid="t")[:60]
# %%
sales["units"].rolling(3).mean().dropna().round(3).tolist()
# %%
sales.loc[sales.units > 1000, "units"].mean()
# %%
sales["nothing"]
# %%
with pd.option_context("display.max_rows", 4):
    display(sales)
sales.describe()
