"""From the name of a module to the name of the package that brings it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass

#: Where they differ by more than ``_`` and ``-``. The longest name that fits counts.
_PACKAGES = {
    "attr": "attrs", "Bio": "biopython", "bs4": "beautifulsoup4", "community": "python-louvain", "Crypto": "pycryptodome",
    "cv2": "opencv-python", "dateutil": "python-dateutil", "docx": "python-docx", "dotenv": "python-dotenv", "faiss": "faiss-cpu",
    "fitz": "pymupdf", "git": "gitpython", "google.cloud.storage": "google-cloud-storage", "google.protobuf": "protobuf",
    "graphviz": "graphviz", "hydra": "hydra-core", "igraph": "python-igraph", "IPython": "ipython", "jwt": "pyjwt",
    "Levenshtein": "levenshtein", "lightning_fabric": "lightning-fabric", "magic": "python-magic", "MDAnalysis": "mdanalysis",
    "mpl_toolkits": "matplotlib", "MySQLdb": "mysqlclient", "netCDF4": "netcdf4", "OpenSSL": "pyopenssl", "osgeo": "gdal",
    "PIL": "pillow", "pkg_resources": "setuptools", "pptx": "python-pptx", "psycopg2": "psycopg2-binary", "pylab": "matplotlib",
    "pynvml": "nvidia-ml-py", "ruamel.yaml": "ruamel.yaml", "serial": "pyserial", "shapefile": "pyshp", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "slugify": "python-slugify", "snappy": "python-snappy", "talib": "ta-lib", "umap": "umap-learn",
    "usb": "pyusb", "wx": "wxpython", "yaml": "pyyaml", "zmq": "pyzmq",
}  # fmt: skip
#: Modules that no package index has, with what to say.
_NOWHERE = {"google.colab": "exists on Colab only", "kaggle_secrets": "exists on Kaggle only"}
#: What pandas wants besides itself for some of its methods.
_WITH_PANDAS = {
    "plot": "matplotlib", "hist": "matplotlib", "boxplot": "matplotlib", "read_parquet": "pyarrow", "to_parquet": "pyarrow",
    "read_feather": "pyarrow", "to_feather": "pyarrow", "read_excel": "openpyxl", "to_excel": "openpyxl", "read_hdf": "tables",
    "to_hdf": "tables", "read_html": "lxml", "to_markdown": "tabulate",
}  # fmt: skip
_VARIANT = re.compile(r"(?:-(?:headless|cpu|gpu|binary|contrib|nightly|cu\d+|cuda\d*x?|rocm))+$")
_CATCHES = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One module that code imports."""

    #: With dots.
    module: str
    line: int
    #: True when the code goes on without it (``try: import x / except ImportError``).
    optional: bool = False

    @property
    def top(self) -> str:
        """Its first part."""
        return self.module.partition(".")[0]


def find_imports(tree: ast.AST) -> list[Import]:
    """Return what code imports by absolute name, anywhere in it."""
    found: list[Import] = []
    _walk(tree, found, optional=False)
    return found


def package_of(module: str) -> str:
    """Return the name of the package that most likely brings a module."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        package = _PACKAGES.get(".".join(parts[:length]))
        if package is not None:
            return package
    return normal(parts[0])


def nowhere(module: str) -> str | None:
    """Return what to say of a module that cannot be installed, or None."""
    return next((text for name, text in _NOWHERE.items() if module == name or module.startswith(f"{name}.")), None)


def companions(tree: ast.AST) -> list[Import]:
    """Return what pandas imports for the methods that code uses; for code that uses pandas."""
    names = ((node.attr, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return [Import(module=_WITH_PANDAS[name], line=line) for name, line in names if name in _WITH_PANDAS]


def is_standard(module: str) -> bool:
    """Tell whether a module comes with Python."""
    return module.partition(".")[0] in sys.stdlib_module_names


def normal(name: str) -> str:
    """Return a package's name as indexes compare it (PyPA, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", name).lower()


def matching(module: str, names: Collection[str]) -> str | None:
    """Return the package among `names` (normal ones) that brings a module, as far as names tell."""
    likely = package_of(module)
    if normal(likely) in names:
        return normal(likely)
    # opencv-python-headless, tensorflow-cpu, psycopg2: variants of a package bring the same module.
    top = normal(module.partition(".")[0])
    if top in names:
        return top
    plain = _VARIANT.sub("", normal(likely))
    return next((name for name in sorted(names) if _VARIANT.sub("", name) in (plain, top)), None)


def _walk(node: ast.AST, found: list[Import], *, optional: bool) -> None:
    if isinstance(node, ast.Try):
        forgiven = any(_catches(handler) for handler in node.handlers)
        for statement in node.body:
            _walk(statement, found, optional=optional or forgiven)
        # What a handler imports instead is an alternative as well.
        for handler in node.handlers:
            _walk(handler, found, optional=optional or forgiven)
        for statement in [*node.orelse, *node.finalbody]:
            _walk(statement, found, optional=optional)
        return
    match node:
        case ast.Import(names=names, lineno=line):
            found += [Import(module=alias.name, line=line, optional=optional) for alias in names]
        case ast.ImportFrom(module=str(module), level=0, names=names, lineno=line):
            # `from google import protobuf`: the second part may tell the package.
            full = f"{module}.{names[0].name}" if "." not in module and names[0].name != "*" else module
            found.append(Import(module=full if full in {**_PACKAGES, **_NOWHERE} else module, line=line, optional=optional))
        case ast.Call(func=function, args=[ast.Constant(value=str(module)), *_], lineno=line):
            name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
            if name in ("import_module", "__import__") and not module.startswith("."):
                found.append(Import(module=module, line=line, optional=optional))
    for child in ast.iter_child_nodes(node):
        _walk(child, found, optional=optional)


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(one, ast.Name) and one.id in _CATCHES for one in types)
