# %%
from __future__ import annotations
import dataclasses, enum, functools, inspect, pickle, typing
@dataclasses.dataclass(order=True)
class Item:
    price: float
    name: str = dataclasses.field(compare=False, default="?")
    tags: list[str] = dataclasses.field(default_factory=list)
sorted([Item(2.5, "b"), Item(1.0, "a", ["x"])])
# %%
class Colour(enum.Flag):
    RED = enum.auto()
    BLUE = enum.auto()
Colour.RED | Colour.BLUE
# %%
pickle.loads(pickle.dumps(Item(1.0))) == Item(1.0), Item.__module__
# %%
def countdown(n):
    """Down to one."""
    while n:
        got = yield n
        n = n - 1 if got is None else got
numbers = countdown(3)
next(numbers), numbers.send(2), list(numbers)
# %%
print(inspect.getsource(countdown))
# %%
@functools.lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
fibonacci(80), fibonacci.cache_info()
# %%
class Sized(typing.Protocol):
    def __len__(self) -> int: ...
class Meta(type):
    def __new__(cls, name, bases, space):
        space["made"] = True
        return super().__new__(cls, name, bases, space)
class Made(metaclass=Meta):
    pass
Made.made
# %%
import doctest
def twice(n):
    """
    >>> twice(2)
    4
    >>> twice(3)
    7
    """
    return 2 * n
doctest.run_docstring_examples(twice, {"twice": twice})
# %%
import unittest
class Tests(unittest.TestCase):
    def test_it(self):
        self.assertEqual(twice(1), 2)
unittest.main(argv=[""], exit=False, verbosity=0).result.wasSuccessful()
# %%
inspect.signature(twice), inspect.getfile(twice).endswith(".py")
# %%
Item("wrong").price / 2
