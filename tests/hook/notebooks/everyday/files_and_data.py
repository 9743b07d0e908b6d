# %%
import csv, json, pathlib, sqlite3, tempfile, zipfile
place = pathlib.Path(tempfile.mkdtemp())
with (place / "rows.csv").open("w", newline="") as file:
    csv.writer(file).writerows([["n", "square"], *[[n, n * n] for n in range(4)]])
print((place / "rows.csv").read_text())
# %%
with (place / "rows.csv").open() as file:
    rows = list(csv.DictReader(file))
rows[-1]
# %%
base = sqlite3.connect(":memory:")
base.execute("create table t (n integer, square integer)")
base.executemany("insert into t values (:n, :square)", rows)
base.execute("select sum(square) from t where n > 1").fetchone()
# %%
base.execute("select * from missing")
# %%
print(json.dumps({"b": [1, None, True], "a": "ü"}, indent=1, sort_keys=True, ensure_ascii=False))
# %%
with zipfile.ZipFile(place / "all.zip", "w") as archive:
    archive.write(place / "rows.csv", "rows.csv")
zipfile.ZipFile(place / "all.zip").namelist()
# %%
open("not there.txt")
# %%
import urllib.parse, re, textwrap
print(textwrap.fill(re.sub(r"\s+", " ", "a  lot   of\n words " * 5), 30))
# %%
import array, struct, hashlib
hashlib.sha256(array.array("i", range(10)).tobytes() + struct.pack("<d", 1.5)).hexdigest()
# %%
import os
os.chdir(place)
sorted(os.listdir())
