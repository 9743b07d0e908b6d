"""What a cell says below an import that failed: how the package gets into the session's environment."""

import json
import os
import re
from contextlib import suppress

#: The variable (JSON) with the names under which packages are installed, by what is imported, where these differ.
VARIABLE = "CARREL_INSTALLED_AS"
_MODULE = re.compile(r"No module named '([\w.]+)'")


class Advises:
    """A kernel that says what to do about a module that is not there; goes before ipykernel's class."""

    async def do_execute(self, *arguments, **options):
        """As ipykernel does it."""
        reply = await super().do_execute(*arguments, **options)
        if reply.get("ename") == "ModuleNotFoundError":
            found = _MODULE.search(str(reply.get("evalue")))
            if found:
                text = "[carrel] %s is not installed in this environment. Install it: %%pip install %s\n"
                content = {"name": "stderr", "text": text % (found[1], package_of(found[1]))}
                self.send_response(self.iopub_socket, "stream", content)
        return reply


def package_of(module):
    """Return the name of the package from which a module is imported: its own in most cases."""
    top = module.partition(".")[0]
    with suppress(ValueError):
        return json.loads(os.environ.get(VARIABLE, "{}")).get(top, top)
    return top
