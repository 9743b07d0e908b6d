// What cells put out while no page was there: the kernel went on, Jupyter's own buffer is for a page that comes back, and this is
// for one that is opened anew. Shown are the last runs that are newer than the file.

const SETTLE = 1000;
const LONGEST_PAUSE = 60000;

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

// Follow a run that goes on: the page has not asked for it, so JupyterLab itself does not know where its outputs belong. The
// session says how it goes on, because a page that was opened a moment ago may not hear the kernel yet.
const follow = (panel, kernel, run, link) => {
  const end = link.follow(`outputs/${kernel.id}/${encodeURIComponent(run.request)}`, now => {
    const cell = panel.isDisposed || !now ? null : find(panel, now);
    if (cell) {
      show(cell, now);
    }
    return Boolean(cell) && now.running;
  });
  panel.disposed.connect(end);
  kernel.disposed.connect(end);
};

const plain = outputs =>
  JSON.stringify(outputs.map(output => (output.output_type === 'stream' ? [output.name, [output.text].flat().join('')] : [output.data, output.evalue])));

// Put right the outputs of one of this page's own runs, when it is over. Returns false when the cell has been run again.
const mend = async (panel, kernel, run, link) => {
  const { cells } = await link.request(`outputs/${kernel.id}?request=${encodeURIComponent(run.request)}`);
  const cell = panel.isDisposed || !cells.length ? null : find(panel, cells[0]);
  if (cell && cells[0].complete && !cells[0].running) {
    const same = plain(cell.model.outputs.toJSON()) === plain(cells[0].outputs);
    if (!same || cell.model.executionCount !== cells[0].execution_count) {
      show(cell, cells[0]);
    }
  }
  return Boolean(cell);
};

// Watch a run of this page's own: what Jupyter kept for the page comes when it likes, also after the outputs were put right, and
// then some of it stands there twice. So it is looked at whenever nothing more has come for a while.
const watch = (panel, kernel, run, link, watched) => {
  let timer = null;
  const end = () => {
    clearTimeout(timer);
    kernel.iopubMessage.disconnect(heard);
    panel.disposed.disconnect(end);
    watched.delete(run.request);
  };
  const look = async () => {
    if (!(await patiently(panel, () => mend(panel, kernel, run, link)))) {
      end();
    }
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(() => look().catch(complain), SETTLE);
  };
  const heard = (_sender, message) => {
    if (message.parent_header.msg_id === run.request) {
      soon();
    }
  };
  watched.set(run.request, soon);
  kernel.iopubMessage.connect(heard);
  panel.disposed.connect(end);
  soon();
};

// A page came back to a kernel that it was connected with at `lost` (Unix seconds).
const comeBack = async (panel, kernel, lost, link, watched) => {
  const { cells } = await patiently(panel, () => link.request(`outputs/${kernel.id}`));
  for (const run of cells.filter(one => one.client === kernel.clientId && (one.running || one.changed > lost - 60))) {
    if (watched.has(run.request)) {
      watched.get(run.request)();
    } else {
      watch(panel, kernel, run, link, watched);
    }
  }
};

// Ask again for a while: a lab that has just come back does not know all of its sessions in the first moment.
const patiently = async (panel, ask) => {
  for (let pause = SETTLE; ; pause *= 2) {
    try {
      return await ask();
    } catch (error) {
      if (panel.isDisposed || pause > LONGEST_PAUSE) {
        throw error;
      }
      await new Promise(resolve => setTimeout(resolve, pause));
    }
  }
};

const complain = error => console.warn('Carrel: earlier outputs could not be asked for.', error);

const mendGaps = (panel, link) => {
  let lost = null;
  const watched = new Map();
  panel.sessionContext.connectionStatusChanged.connect((context, status) => {
    const kernel = context.session && context.session.kernel;
    if (status !== 'connected') {
      lost = lost || Date.now() / 1000;
    } else if (lost && kernel) {
      comeBack(panel, kernel, lost, link, watched).catch(complain);
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
