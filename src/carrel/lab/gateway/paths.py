"""Names of files in addresses: outputs with any name can be asked for."""

from __future__ import annotations

from starlette.convertors import PathConvertor, register_url_convertor


class FilePathConvertor(PathConvertor):
    """Starlette's `path`, but for the characters that it leaves out: a dot of an expression is no newline."""

    regex = r"[\s\S]*"


#: What stands behind the colon in a route: "/outputs/{path:file}".
register_url_convertor("file", FilePathConvertor())
