"""Images in a store of environments: fetched once by what is here, and removed when there are too many."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from carrel.core.domain.task import EnvironmentRecipe
from carrel.core.submission.image import read_image
from carrel.node.environments import Environment, EnvironmentFailed, EnvironmentSettings, EnvironmentStore
from support.image_registry import Registry
from support.images import programs, write_layer


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    base = {**programs("sh"), "etc/motd": b"base\n", "etc/gone": b"", "usr/bin/env": "/bin/sh"}
    layers = [write_layer(base), write_layer({"etc/.wh.gone": b"", "etc/motd": b"an image\n"})]
    with Registry() as registry:
        for tag in ("1", "2", "3"):
            registry.publish(tag, layers, {"PATH": "/bin", "TAG": tag})
        yield registry


def having(directory: Path, *names: str) -> dict[str, str]:
    """Variables of a machine that has these programs alone."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found (Debian: apt-get install {' '.join(missing)})")
    directory.mkdir()
    for name in names:
        (directory / name).symlink_to(str(shutil.which(name)))
    return {**os.environ, "PATH": str(directory)}


def image(registry: Registry, tag: str) -> EnvironmentRecipe:
    return read_image(f"{registry.host}/lab/train:{tag}")


def prepare(store: EnvironmentStore, recipe: EnvironmentRecipe) -> Environment:
    return store.prepare(recipe, code=Path(), code_digest="", report=lambda _line: None)


@pytest.mark.parametrize("names", [("skopeo", "umoci"), ("podman", "tar", "rm")], ids=["skopeo", "podman"])
def test_an_image_is_fetched_once_with_what_the_machine_has(registry: Registry, tmp_path: Path, names: tuple[str, ...]) -> None:
    environ = having(tmp_path / "bin", *names)
    store = EnvironmentStore(tmp_path / "store", environ=environ)
    with ThreadPoolExecutor(2) as both:
        found = [*both.map(lambda _: prepare(EnvironmentStore(tmp_path / "store", environ=environ), image(registry, "1")), "ab")]
    assert sorted(one.built for one in found) == [False, True]
    assert {one.lock for one in found} == {f"{registry.host}/lab/train:1@{registry.tags['1']}\n"}
    root = found[0].path
    assert (root / "etc/motd").read_text() == "an image\n"
    assert not (root / "etc/gone").exists()
    assert (root / "usr/bin/env").readlink() == Path("/bin/sh")
    assert os.access(root / "bin/sh", os.X_OK)
    assert '"TAG": "1"' in (root.parent / "image.json").read_text()
    assert not list((tmp_path / "store/work").iterdir()), "nothing else stays"
    with pytest.raises(EnvironmentFailed, match="train:none"):
        prepare(store, image(registry, "none"))
    assert not list((tmp_path / "store/work").iterdir())


def test_images_used_longest_ago_go_when_there_are_too_many(registry: Registry, tmp_path: Path) -> None:
    environ = having(tmp_path / "bin", "skopeo", "umoci")
    one = prepare(EnvironmentStore(tmp_path / "store", environ=environ), image(registry, "1"))
    size = sum(info.size for info in EnvironmentStore(tmp_path / "store").list())
    store = EnvironmentStore(tmp_path / "store", environ=environ, settings=EnvironmentSettings(image_cache=size * 5 // 2))
    two = prepare(store, image(registry, "2"))
    assert one.path.exists(), "two find room"
    for number, used in enumerate((one, two), 1):
        os.utime(used.hold.fd, (number, number))
    two.hold.close()
    three = prepare(store, image(registry, "3"))
    assert (one.path.exists(), two.path.exists(), three.path.exists()) == (True, False, True), "the first is in use"
    one.hold.close()
    again = prepare(store, image(registry, "2"))
    assert (again.built, one.path.exists(), three.path.exists()) == (True, False, True)


def test_a_machine_without_the_programs_says_which(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    with pytest.raises(EnvironmentFailed, match="has no skopeo and no umoci and no podman.") as raised:
        prepare(EnvironmentStore(tmp_path / "store", environ={"PATH": str(tmp_path / "bin")}), image(registry, "1"))
    assert "apt-get install skopeo umoci" in raised.value.remedy
