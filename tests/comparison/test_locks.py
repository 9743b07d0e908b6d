from __future__ import annotations

from carrel.core.comparison.packages import image_of, mix_locks, packages_of

HASH = "sha256:" + "0" * 64


def test_requirements_with_hashes_extras_markers_and_addresses() -> None:
    lock = 'Foo_Bar[x]==1.0 ; python_version < "3.12" \\\n    --hash=sha256:aa\n# via x\n--index-url https://x\nbaz @ https://x/baz.whl\n'
    assert packages_of(lock) == {"foo-bar": "1.0", "baz": "https://x/baz.whl"}
    assert packages_of("") == {}
    assert packages_of("-e ./pkg\nidna==1\n") is None


def test_conda_uv_and_images() -> None:
    urls = "https://c/linux-64/ca-certificates-2024.1-h5_0.conda#aa\nhttps://c/noarch/idna-3.7-py_0.tar.bz2\n"
    conda = f"@EXPLICIT\n{urls}# pip Foo==1\n"
    assert packages_of(conda) == {"ca-certificates": "2024.1 (h5_0)", "idna": "3.7 (py_0)", "foo": "1"}
    uv = 'version = 1\n\n[[package]]\nname = "idna"\nversion = "3.7"\nsource = {}\n'
    assert packages_of(uv) == {"idna": "3.7"}
    assert packages_of(f"docker.io/python@{HASH}\n") is None
    assert (image_of(f"docker.io/python@{HASH}\n"), image_of("idna==1\n")) == (HASH, None)


def test_packages_of_another_lock_take_the_place_of_ones_own() -> None:
    mine = "--index-url https://x\nFoo_Bar[x]==1.0 ; python_version < '3.12' \\\n    --hash=sha256:aa\nbaz @ https://x/baz.whl\n"
    theirs = "foo-bar==2.0 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\nnew==1\n"
    taken = mix_locks(mine, theirs, {"foo-bar", "new"})
    assert taken.splitlines() == [
        "--index-url https://x",
        "baz @ https://x/baz.whl",
        "foo-bar==2.0 --hash=sha256:bb --hash=sha256:cc",
        "new==1",
    ]
    assert packages_of(taken) == {"foo-bar": "2.0", "baz": "https://x/baz.whl", "new": "1"}
    assert packages_of(mix_locks(mine, theirs, {"baz"}) or "") == {"foo-bar": "1.0"}
    assert mix_locks(mine, "-e ./pkg\nwhat is this\n", set()) is None
    assert mix_locks("@EXPLICIT\nhttps://c/idna-3.7-py_0.conda\n", mine, set()) is None
