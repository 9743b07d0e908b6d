"""What a command sees of the lab's own environment."""

from __future__ import annotations

import urllib.request

import pytest

from carrel.node.runner.variables import base_variables

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("given", [{}, {"no_proxy": "example.org"}, {"NO_PROXY": "example.org"}])
def test_what_is_on_this_machine_is_asked_without_the_proxy(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = base_variables({"http_proxy": "http://proxy.example:3128", **given})
    assert found["http_proxy"] == "http://proxy.example:3128"
    for name in ("http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, found[name])
    assert urllib.request.proxy_bypass("127.0.0.1:5000")
    assert urllib.request.proxy_bypass("localhost:5000")
    assert urllib.request.proxy_bypass("example.org") == bool(given)
    assert not urllib.request.proxy_bypass("pypi.example")


def test_without_a_proxy_nothing_is_added() -> None:
    assert not [name for name in base_variables({"PATH": "/bin"}) if "proxy" in name.lower()]
