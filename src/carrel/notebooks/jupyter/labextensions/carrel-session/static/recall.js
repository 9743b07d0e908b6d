// What cells put out while no page was there: the kernel went on, Jupyter's own buffer is for a page that comes back, and this is
// for one that is opened anew. Shown are the last runs that are newer than the file.

const REFRESH = 300;

const sourceOf = cell => cell.model.sharedModel.getSource();

const show = (cell, run) => {
  cell.model.outputs.fromJSON(run.outputs);
  if (run.running) {
    cell.setPrompt('*');
  } else {
    cell.model.executionCount = run.execution_count;
    cell.setPrompt(`${run.execution_count === null ? '' : run.execution_count}`);
  }
};

const find = (panel, run) =>
  panel.content.widgets.find(cell => cell.model.type === 'code' && cell.model.id === run.cell && sourceOf(cell) === run.code);

// Follow a run that goes on: the page has not asked for it, so JupyterLab itself does not know where its outputs belong.
const follow = (panel, kernel, run, link) => {
  let timer = null;
  const end = () => {
    kernel.iopubMessage.disconnect(heard);
    panel.disposed.disconnect(end);
  };
  const refresh = async () => {
    timer = null;
    const { cells } = await link.request(`outputs/${kernel.id}?request=${encodeURIComponent(run.request)}`);
    const cell = panel.isDisposed || !cells.length ? null : find(panel, cells[0]);
    if (!cell) {
      end();
      return;
    }
    show(cell, cells[0]);
    if (!cells[0].running) {
      end();
    }
  };
  const heard = (_sender, message) => {
    if (message.parent_header.msg_id === run.request && timer === null) {
      timer = setTimeout(() => refresh().catch(end), REFRESH);
    }
  };
  kernel.iopubMessage.connect(heard);
  panel.disposed.connect(end);
  refresh().catch(end);
};

const plain = outputs =>
  JSON.stringify(outputs.map(output => (output.output_type === 'stream' ? [output.name, [output.text].flat().join('')] : [output.data, output.evalue])));

// Put right the outputs of one of this page's own runs, when it is over.
const mend = async (panel, kernel, run, link) => {
  const { cells } = await link.request(`outputs/${kernel.id}?request=${encodeURIComponent(run.request)}`);
  const cell = panel.isDisposed || !cells.length ? null : find(panel, cells[0]);
  if (cell && cells[0].complete && !cells[0].running && plain(cell.model.outputs.toJSON()) !== plain(cells[0].outputs)) {
    show(cell, cells[0]);
  }
};

// A page came back to a kernel that it was connected with at `lost` (Unix seconds).
const comeBack = async (panel, kernel, lost, link) => {
  const { cells } = await link.request(`outputs/${kernel.id}`);
  for (const run of cells.filter(one => one.client === kernel.clientId && (one.running || one.changed > lost - 60))) {
    const end = () => {
      kernel.iopubMessage.disconnect(heard);
      panel.disposed.disconnect(end);
      setTimeout(() => mend(panel, kernel, run, link).catch(complain), SETTLE);
    };
    const heard = (_sender, { parent_header: parent, header, content }) => {
      if (parent.msg_id === run.request && header.msg_type === 'status' && content.execution_state === 'idle') {
        end();
      }
    };
    if (run.running) {
      kernel.iopubMessage.connect(heard);
      panel.disposed.connect(end);
    } else {
      end();
    }
  }
};

const complain = error => console.warn('Carrel: earlier outputs could not be asked for.', error);

const mendGaps = (panel, link) => {
  let lost = null;
  panel.sessionContext.connectionStatusChanged.connect((context, status) => {
    const kernel = context.session && context.session.kernel;
    if (status !== 'connected') {
      lost = lost || Date.now() / 1000;
    } else if (lost && kernel) {
      comeBack(panel, kernel, lost, link).catch(complain);
      lost = null;
    }
  });
};

const recall = async (panel, kernel, link) => {
  const saved = Date.parse((panel.context.contentsModel || {}).last_modified || '') || 0;
  const { cells } = await link.request(`outputs/${kernel.id}`);
  // What this page itself has asked for meanwhile is on its way to it.
  for (const run of cells.filter(one => one.client !== kernel.clientId)) {
    if (!run.running && run.changed * 1000 <= saved) {
      continue;
    }
    const cell = panel.isDisposed ? null : find(panel, run);
    if (cell) {
      show(cell, run);
      if (run.running) {
        follow(panel, kernel, run, link);
      }
    }
  }
};

export const recallOutputs = (tracker, link) => {
  tracker.widgetAdded.connect(async (_tracker, panel) => {
    try {
      await panel.context.ready;
      await panel.revealed;
      await panel.sessionContext.ready;
      const session = panel.sessionContext.session;
      if (session && session.kernel && !panel.isDisposed) {
        mendGaps(panel, link);
        await recall(panel, session.kernel, link);
      }
    } catch (error) {
      complain(error);
    }
  });
};
