// "Promote to task": saves the notebook and asks the session to make a task directory of it.

const COMMAND = 'carrel:promote';

const promote = async (panel, lab, link) => {
  const asked = await lab.InputDialog.getText({
    title: 'Promote to task',
    label: 'Cells (for example 3-9; empty: all)',
    okLabel: 'Promote'
  });
  if (!asked.button.accept) {
    return;
  }
  const path = panel.context.path;
  const note = lab.Notification.emit(`Making a task of ${path} …`, 'in-progress', { autoClose: false });
  try {
    await panel.context.save();
    const made = await link.request('promote', {
      method: 'POST',
      body: JSON.stringify({ path, cells: (asked.value || '').trim() || null })
    });
    lab.Notification.update({
      id: note,
      type: 'success',
      message: `The task is in ${made.directory}. Run it: carrel run ${made.directory}`,
      autoClose: false
    });
  } catch (error) {
    lab.Notification.update({ id: note, type: 'error', message: `No task was made. ${error.message}`, autoClose: false });
  }
};

export const addPromote = (app, tracker, palette, lab, link) => {
  app.commands.addCommand(COMMAND, {
    label: 'Promote Notebook to Task…',
    caption: 'Make a task directory of this notebook: script, locked environment, inputs, parameters',
    isEnabled: () => tracker.currentWidget !== null,
    execute: () => tracker.currentWidget && promote(tracker.currentWidget, lab, link)
  });
  if (palette) {
    palette.addItem({ command: COMMAND, category: 'Carrel' });
  }
  app.docRegistry.addWidgetExtension('Notebook', {
    createNew: panel => {
      const button = new lab.ToolbarButton({
        className: 'carrel-promote',
        label: 'Promote to task',
        tooltip: 'Make a task directory of this notebook',
        onClick: () => promote(panel, lab, link)
      });
      panel.toolbar.insertBefore('spacer', 'carrel-promote', button);
      return button;
    }
  });
};
