"""`%%remote`, which the lab's client carries out: it is imported when it is first used, and costs nothing before."""


class RemoteMagic:
    """Stands where the client's own magic will be."""

    def __init__(self, kernel):
        self._shell = kernel.shell

    def register(self):
        """Have the kernel know it."""
        self._shell.register_magic_function(self.cell, "cell", "remote")
        self._shell.register_magic_function(self.line, "line", "remote")

    def cell(self, line, cell):
        """Run the cell on a machine of the lab: %%remote [gpus=1] [cpus=2] [memory=8G] [time=2h] [as=result]."""
        return self._load().cell(line, cell)

    def line(self, line=""):
        """Say which pools are open; with options, what remote cells take from now on; with close, end the pools."""
        return self._load().line(line)

    def _load(self):
        try:
            from carrel.wire.needs import importing

            with importing("%%remote"):
                from carrel.client.remote.magic import register
        except ImportError as error:
            found = error
        else:
            return register(self._shell)
        raise _NotThere(
            "%%remote needs the lab's client, which cannot be imported here: {}. A session that is started anew has the "
            "client of the lab.".format(found)
        )


class _NotThere(RuntimeError):
    def _render_traceback_(self):
        return ["Carrel: {}".format(self)]
