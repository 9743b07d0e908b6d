# ruff: noqa: E501 - code of cells
"""Cells as notebooks of others have them, which a remote cell must show as the same cell at home does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell that runs at home and there, with plain cells before and after it."""

    code: str
    before: str = ""
    #: Runs at home on both sides, and must show the same.
    after: str = ""
    #: What the remote one says more than `%%remote`.
    line: str = ""
    #: Modules that it needs.
    needs: tuple[str, ...] = ()
    #: Numbers in it are times, so they differ from run to run.
    timed: bool = False


CELLS = {
    "last_expression": Cell("x = 20\nx + 1"),
    "no_value": Cell("[1, 2];"),
    "nested_value": Cell("{'rows': [list(range(30)), list(range(30))], 'name': 'a' * 60, 'type': int, 'set': {3, 1, 2}}"),
    "two_expressions": Cell("1\n2\nNone"),
    "stdout_and_stderr": Cell(
        "import sys\nfor n in range(5):\n    print('out', n)\n    print('err', n, file=sys.stderr)\nprint('end', end='')"
    ),
    "display_between_prints": Cell(
        "from IPython.display import HTML\nprint('before')\ndisplay(HTML('<b>rich</b>'))\nprint('between')\ndisplay('a', [1], {'b': 2})\nprint('after')"
    ),
    "dataframe": Cell(
        "import numpy as np, pandas as pd\nframe = pd.DataFrame(np.arange(12).reshape(4, 3), columns=list('abc'))\n"
        "display(frame.describe())\nframe",
        needs=("pandas",),
    ),
    "styled_frame": Cell(
        "import pandas as pd\npd.DataFrame({'a': [1, 2]}).style.set_uuid('one').highlight_max()", needs=("pandas", "jinja2")
    ),
    "array_and_its_return": Cell(
        "import numpy as np\nbig = np.arange(1_000_000, dtype='float32').reshape(1000, 1000) * scale\nbig",
        before="scale = 3",
        after="print(big.shape, big.dtype, float(big.sum()), big.flags.writeable)",
        line="as=big",
        needs=("numpy",),
    ),
    "rich_objects": Cell(
        "from IPython.display import JSON, Image, Latex, Markdown, SVG, Javascript, Math\nimport base64\n"
        "png = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')\n"
        "display(Markdown('# Title'), JSON({'a': [1, None]}), Image(png, width=10), Latex('$x$'), Math('x'))\n"
        "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>'), Javascript('1'))\nImage(png)"
    ),
    "own_representations": Cell(
        "class Rich:\n    def _repr_html_(self): return '<i>own</i>'\n    def _repr_png_(self): return b'png', {'width': 3}\n"
        "    def __repr__(self): return 'Rich()'\n"
        "class Broken:\n    def _repr_html_(self): raise ValueError('no html')\n    def __repr__(self): return 'Broken()'\n"
        "class Bundle:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'text/plain': 'bundle', 'application/x-own+json': {'a': 1}}, {'isolated': True}\n"
        "class Shows:\n    def _ipython_display_(self): print('shows itself')\n"
        "display(Rich(), Bundle(), Shows())\ndisplay(Broken())\nRich()"
    ),
    "repr_that_fails": Cell("class Bad:\n    def __repr__(self): return 1 / 0\nBad()"),
    "display_ids": Cell(
        "handle = display('first', display_id=True)\nhandle.update('second')\n"
        "from IPython.display import update_display\ndisplay('named', display_id='my-id')\nupdate_display('changed', display_id='my-id')\nhandle"
    ),
    "display_id_of_home": Cell("handle.update({'loss': 0.5})", before="handle = display('waits', display_id='of-home')"),
    "clear_output": Cell(
        "from IPython.display import clear_output\nfor n in range(3):\n    clear_output(wait=True)\n    print('step', n)"
    ),
    "figure": Cell(
        "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.title('loss')\nplt.show()\nprint('shown')",
        needs=("matplotlib",),
    ),
    "two_figures_at_the_end": Cell(
        "import matplotlib.pyplot as plt\nfor power in (1, 2):\n    plt.figure(figsize=(3, 2))\n    plt.plot([n**power for n in range(9)])\nprint('plotted')",
        needs=("matplotlib",),
    ),
    "figure_and_value": Cell("import matplotlib.pyplot as plt\nplt.plot([1, 2])\n'value'", needs=("matplotlib",)),
    "figure_as_value": Cell(
        "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots(figsize=(2, 2))\naxes.bar(['a', 'b'], [1, 2])\nplt.close(figure)\nfigure",
        needs=("matplotlib",),
    ),
    "matplotlib_inline": Cell(
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.scatter([1, 2], [3, 4])", needs=("matplotlib",)
    ),
    "svg_figures": Cell(
        "%config InlineBackend.figure_formats = ['svg']\nimport os, matplotlib as mpl, matplotlib.pyplot as plt\nos.environ['SOURCE_DATE_EPOCH'] = '0'\n"
        "with mpl.rc_context({'svg.hashsalt': 'a', 'svg.fonttype': 'none'}):\n    plt.figure(figsize=(1, 1))\n    plt.plot([1, 2])\n    plt.show()\n"
        "%config InlineBackend.figure_formats = ['png']",
        needs=("matplotlib",),
    ),
    "figure_before_an_error": Cell(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nraise RuntimeError('after the plot')", needs=("matplotlib",)
    ),
    "frame_plot": Cell("import pandas as pd\npd.Series([1, 4, 9]).plot(kind='bar')", needs=("pandas", "matplotlib")),
    "tqdm": Cell(
        "from tqdm import tqdm\nfor n in tqdm(range(3), desc='epoch', mininterval=0):\n    pass\nprint(n)",
        needs=("tqdm",),
        timed=True,
    ),
    "tqdm_auto": Cell(
        "from tqdm.auto import tqdm\ntotal = 0\nfor n in tqdm(range(4), desc='steps', leave=False, mininterval=0):\n    total += n\ntotal",
        needs=("tqdm",),
        timed=True,
    ),
    "tqdm_notebook": Cell(
        "from tqdm.notebook import tqdm, trange\nfor n in trange(2, desc='outer', mininterval=0):\n    for m in tqdm(range(2), desc='inner', leave=False, mininterval=0):\n        pass",
        needs=("tqdm", "ipywidgets"),
        timed=True,
    ),
    "widgets": Cell(
        "import ipywidgets as widgets\nbar = widgets.IntProgress(value=0, max=3, description='work')\nlabel = widgets.HTML('begins')\n"
        "display(widgets.VBox([bar, label]))\nfor n in range(4):\n    bar.value = n\n    label.value = f'<b>{n}</b>'\nbar.close()\nlabel",
        needs=("ipywidgets",),
    ),
    "output_widget": Cell(
        "import ipywidgets as widgets\nout = widgets.Output()\ndisplay(out)\nwith out:\n    print('inside')\n    display('shown inside')\n"
        "out.append_stdout('appended')\nprint('outside')",
        needs=("ipywidgets",),
    ),
    "comms": Cell(
        "import comm\none = comm.create_comm(target_name='own', data={'a': 1}, metadata={'version': '1'}, buffers=[b'bytes'])\n"
        "one.send({'b': 2}, buffers=[b'\\x00\\xff'])\none.close({'c': 3})"
    ),
    "exception": Cell(
        "def inner(numbers):\n    total = sum(numbers)\n    return total / len(numbers)\n\nprint('begins')\ninner([])\nprint('never')"
    ),
    "exception_through_home": Cell(
        "values = [3, 0]\nfor value in values:\n    outer(value)",
        before="def divided(x):\n    # a comment\n    return 6 / x\n\ndef outer(x):\n    y = x\n    return divided(y)",
    ),
    "own_exception": Cell(
        "raise TooLarge(3)",
        before="class TooLarge(Exception):\n    def __str__(self):\n        return f'{self.args[0]} is too large'",
    ),
    "exception_of_the_cell": Cell("class Local(ValueError):\n    pass\nraise Local('one', 2)"),
    "exception_that_cannot_travel": Cell(
        "import threading\nclass Holds(Exception):\n    def __init__(self, words):\n        super().__init__(words)\n        self.lock = threading.Lock()\n"
        "raise Holds('a lock')"
    ),
    "nested_exceptions": Cell(
        "def load():\n    try:\n        {}['key']\n    except KeyError as error:\n        raise ValueError('no such key') from error\n\n"
        "try:\n    load()\nexcept ValueError:\n    int('x')"
    ),
    "exception_with_notes": Cell("error = ValueError('words')\nerror.add_note('a note')\nraise error"),
    "displays_of_threads": Cell(
        "import threading\nthreads = [threading.Thread(target=display, args=('one',)) for _ in range(8)]\nfor one in threads: one.start()\nfor one in threads: one.join()"
    ),
    "exception_group": Cell("raise ExceptionGroup('several', [ValueError('one'), TypeError('two')])"),
    "exception_in_a_library": Cell("import json\njson.loads('{not json')"),
    "recursion": Cell("def again(n):\n    return again(n - 1) if n else 1 / n\nagain(50)"),
    "syntax_error": Cell("x = 1\nif x\n    print(x)"),
    "syntax_error_inside": Cell("exec('x = = 1')"),
    "indentation_error": Cell("def f():\nreturn 1"),
    "name_error": Cell("print('one')\nundefined_name"),
    "import_error": Cell("import there_is_no_such_module"),
    "assertion": Cell("numbers = [1, 2]\nassert len(numbers) == 3, f'{numbers} has {len(numbers)}'"),
    "sys_exit": Cell("import sys\nprint('leaves')\nsys.exit(3)"),
    "warnings": Cell(
        "import warnings\ndef old():\n    warnings.warn('old is deprecated', FutureWarning, stacklevel=2)\nold()\nwarnings.warn('plain')"
    ),
    "logging": Cell(
        "import logging\nlogging.warning('no config')\nlogger = logging.getLogger('train')\nlogger.error('loss is nan')\nlogger.info('not shown')"
    ),
    "shell_command": Cell("!echo out; echo err >&2\nlines = !printf 'a\\nb\\n'\nprint(lines, lines.n)\n!false\n_exit_code"),
    "shell_command_with_variables": Cell("!echo {name} $name {1 + 1}", before="name = 'run-7'"),
    "descriptors": Cell(
        "import os, subprocess\nos.write(1, b'to the descriptor\\n')\nsubprocess.run(['echo', 'child'])\nos.system('echo shell');"
    ),
    "bash_cell": Cell("%%bash\nfor n in 1 2; do echo line $n; done"),
    "capture": Cell("%%capture caught\nprint('hidden')\ndisplay('too')", after="caught.stdout", line="as=caught"),
    "time_cell": Cell("%%time\ntotal = sum(range(1000))\nprint(total)\ntotal", timed=True, after="total", line="as=total"),
    "time_line": Cell("%time scale * 2", before="scale = 21", timed=True),
    "timeit": Cell("%timeit -n 2 -r 1 len(word)", before="word = 'word'", timed=True),
    "timeit_cell": Cell("%%timeit -n 1 -r 1\nn = 5\nn * 2", timed=True),
    "writefile": Cell("%%writefile words.txt\nwords"),
    "unknown_magic": Cell("%there_is_no_such_magic 1"),
    "unknown_cell_magic": Cell("%%there_is_no_such_magic\n1"),
    "help": Cell("shown = get_ipython().inspector.info(len)['string_form']\nprint(shown)\nget_ipython().__class__.__name__"),
    "who_am_i": Cell(
        "import sys\n__name__, get_ipython().config.get('IPKernelApp') is not None, sys.stdout.isatty(), __builtins__ is not None"
    ),
    "await_at_the_top": Cell(
        "import asyncio\nasync def fetched(n):\n    await asyncio.sleep(0)\n    return n * 2\nprint(await asyncio.gather(fetched(1), fetched(2)))\nawait fetched(4)"
    ),
    "await_that_fails": Cell(
        "import asyncio\nasync def fails():\n    await asyncio.sleep(0)\n    raise OSError('no answer')\nawait fails()"
    ),
    "loop_that_runs": Cell(
        "import asyncio\nasync def one():\n    return 1\nwork = one()\ntry:\n    asyncio.run(work)\nfinally:\n    work.close()"
    ),
    "input": Cell("input('name? ')"),
    "dataclass": Cell(
        "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n    y: int = 2\npoint = Point(1)\npoint",
        after="print(point, Point(5, 6), type(point).__module__)",
        line="as=Point,point",
    ),
    "class_used_later": Cell(
        "class Net:\n    def __init__(self, n): self.n = n\n    def forward(self, x): return self.n * x\nnet = Net(3)",
        after="import inspect\nprint(net.forward(2), type(net).__name__)\nprint(inspect.getsource(Net.forward))",
        line="as=net,Net",
    ),
    "function_with_source": Cell(
        "import inspect\ndef local(a, b=1):\n    'Doc.'\n    return a + b\nprint(inspect.getsource(local))\nprint(inspect.getsource(of_home))",
        before="def of_home(x):\n    # counted\n    return x",
    ),
    "wrapped_functions": Cell(
        "print(fact(5), fact.cache_info().misses, once.twice, once.twice, said(1), said('x'))",
        before="import functools\n@functools.lru_cache(maxsize=8)\ndef fact(n):\n    return n * fact(n - 1) if n else 1\n"
        "class Once:\n    @functools.cached_property\n    def twice(self):\n        print('counts')\n        return 2\nonce = Once()\n"
        "@functools.singledispatch\ndef said(x):\n    return 'any'\n@said.register\ndef _(x: int):\n    return 'int'",
    ),
    "modules_of_packages": Cell(
        "print(xml.dom.minidom.parseString('<a/>').documentElement.tagName)\n[concurrent.futures.Future]",
        before="import xml.dom.minidom, concurrent.futures",
    ),
    "names_of_a_with_and_a_for": Cell(
        "with open('two.txt', 'w') as file:\n    file.write('2')\nfor one in [1]:\n    print(one)",
        before="with open('one.txt', 'w') as file:\n    file.write('1')\none = (one for one in 'a')",
    ),
    "files_beside_the_notebook": Cell(
        "import beside\nwith open('values.txt') as values, open('made.txt', 'w') as made:\n"
        "    print(made.write(values.read()), beside.value)",
        before="from pathlib import Path\nPath('values.txt').write_text('1 2')\nPath('beside.py').write_text('value = 3')",
        after="Path('made.txt').read_text()",
    ),
    "lines_before_it": Cell("\n\n1 / 0"),
    "generator": Cell(
        "def count():\n    n = 0\n    while True:\n        yield n\n        n += 1\nit = count()\nnext(it), next(it), it",
        timed=False,
    ),
    "unicode": Cell("print('äöü ← 漢字 🎉')\n'Ωμέγα', '\\x00', '\\u2028'"),
    "carriage_returns": Cell(
        "for n in range(4):\n    print(f'\\rstep {n}/3', end='', flush=True)\nprint()\nprint('a\\b\\x1b[31mred\\x1b[0m')"
    ),
    "long_output": Cell("for n in range(10_000):\n    print('line', n, 'of ten thousand lines that a loop prints')"),
    "long_output_at_once": Cell("print('x' * 3_000_000)"),
    "long_display": Cell("from IPython.display import HTML\ndisplay(HTML('x' * 2_000_000))\ndisplay('after')"),
    "deleted": Cell("x = 5\ndel x\nx"),
    "variables_come_back": Cell("a = [n]\nb = {'of': a}\nn += 1", before="n = 3", after="b['of'] is a, n", line="as=a,b,n"),
    "future_flags": Cell("def f(x: Undefined): ...\nf.__annotations__", before="from __future__ import annotations"),
    "pool_of_processes": Cell(
        "from concurrent.futures import ProcessPoolExecutor\nimport multiprocessing as mp\n"
        "with ProcessPoolExecutor(2, mp_context=mp.get_context('fork')) as pool:\n    print(list(pool.map(squared, range(4))))",
        before="def squared(n):\n    return n * n",
    ),
    "threads": Cell(
        "import threading\ndef says():\n    print('from a thread')\nthread = threading.Thread(target=says)\nthread.start()\nthread.join()"
    ),
    "thread_that_fails": Cell(
        "import threading\ndef fails():\n    raise ValueError('in a thread')\nthread = threading.Thread(target=fails, name='worker')\nthread.start()\nthread.join()\nprint('goes on')"
    ),
    "rich_console": Cell(
        "import rich\nfrom rich.table import Table\ntable = Table('a', 'b')\ntable.add_row('1', '2')\nrich.print(table)",
        needs=("rich",),
    ),
    "interactivity_of_home": Cell(
        "1\n2\n'three'",
        before="get_ipython().ast_node_interactivity = 'all'",
        after="get_ipython().ast_node_interactivity = 'last_expr'",
    ),
    "minimal_tracebacks_of_home": Cell("1 / 0", before="%xmode Minimal", after="%xmode Context"),
    "data_loader": Cell(
        "import torch\nfrom torch.utils.data import DataLoader, Dataset\nclass Squares(Dataset):\n    def __len__(self): return 8\n"
        "    def __getitem__(self, n): return torch.tensor([n * n])\n"
        "for batch in DataLoader(Squares(), batch_size=3, num_workers=2):\n    print(batch.flatten().tolist())\nbatch",
        needs=("torch",),
    ),
    "training": Cell(
        "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nx = torch.linspace(0, 1, 32).reshape(8, 4)\nfor step in range(5):\n"
        "    loss = model(x).pow(2).mean()\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n    print(step, loss.item())\nmodel",
        after="print(sum(p.numel() for p in model.parameters()), model(torch.ones(1, 4)).shape)",
        before="import torch",
        line="as=model",
        needs=("torch",),
    ),
    "error_in_a_data_loader": Cell(
        "import torch\nfrom torch.utils.data import DataLoader\nclass Bad:\n    def __len__(self): return 2\n    def __getitem__(self, n): raise IndexError('row %d' % n)\n"
        "list(DataLoader(Bad(), num_workers=1))",
        needs=("torch",),
    ),
    "trainer": Cell(
        "import os, tempfile, torch\nos.environ['HF_HUB_OFFLINE'] = '1'\nfrom transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments\n"
        "torch.manual_seed(0)\nmodel = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8))\n"
        "rows = [{'input_ids': torch.arange(8) % 16, 'labels': torch.arange(8) % 16} for _ in range(8)]\n"
        "arguments = TrainingArguments(tempfile.mkdtemp(), max_steps=4, logging_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy='no',\n"
        "    dataloader_num_workers=1)\n"
        "print(Trainer(model, arguments, train_dataset=rows).train().global_step)",
        needs=("torch", "transformers", "accelerate"),
        timed=True,
    ),
    "accelerate": Cell(
        "import torch\nfrom accelerate import Accelerator\naccelerator = Accelerator(cpu=True)\nmodel = torch.nn.Linear(2, 1)\n"
        "model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))\naccelerator.backward(model(torch.ones(1, 2)).sum())\n"
        "optimizer.step()\naccelerator.print('process', accelerator.process_index, 'of', accelerator.num_processes)",
        needs=("torch", "accelerate"),
    ),
    "lightning": Cell(
        "import warnings, tempfile, torch, lightning as L\nfrom torch.utils.data import DataLoader\nwarnings.filterwarnings('ignore')\nclass Net(L.LightningModule):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(2, 1)\n    def training_step(self, batch, _):\n        return self.layer(batch).pow(2).mean()\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n"
        "trainer = L.Trainer(max_epochs=1, accelerator='cpu', logger=False, enable_checkpointing=False, default_root_dir=tempfile.mkdtemp())\n"
        "trainer.fit(Net(), DataLoader(torch.ones(8, 2), batch_size=2))",
        needs=("torch", "lightning"),
        timed=True,
    ),
}
