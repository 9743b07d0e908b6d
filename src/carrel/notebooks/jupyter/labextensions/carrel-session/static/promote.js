// "Promote to task": saves the notebook and asks the session to make a task directory of it.

const COMMAND = 'carrel:promote';

const promote = async (panel, lab, link) => {
  const asked = await lab.showDialog({
    title: 'Promote to task',
    body: 'Makes a directory beside the notebook that runs it from its first cell to its last, with the packages of this session.',
    buttons: [lab.Dialog.cancelButton(), lab.Dialog.okButton({ label: 'Promote' })]
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
      body: JSON.stringify({ path })
    });
    lab.Notification.update({
      id: note,
      type: 'success',
      message: [`The task is in ${made.directory}. Run it: carrel run ${made.directory}`, ...made.notes].join(' '),
      autoClose: false
    });
  } catch (error) {
    lab.Notification.update({ id: note, type: 'error', message: `No task was made. ${error.message}`, autoClose: false });
  }
};

export const addPromote = (app, tracker, palette, lab, link) => {
  app.commands.addCommand(COMMAND, {
    label: 'Promote Notebook to Task…',
    caption: 'Make a task directory of this notebook, with its parameters and the packages of this session',
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
