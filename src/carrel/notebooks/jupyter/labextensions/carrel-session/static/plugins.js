// Status-bar item, side panel, warnings. `lab` holds what JupyterLab's shared modules export.

import { makeLink } from './link.js';
import { content } from './panel.js';
import { addPromote } from './promote.js';
import { recallOutputs } from './recall.js';
import { summary } from './words.js';

const ICON = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="16"><g class="jp-icon3" fill="#616161">
<path d="M3 6h18v10H3zm2 2v6h14V8zm-2 10h4v2H3zm6 0h6v2H9zM8 9h3v4H8zm5 0h3v4h-3z"/></g></svg>`;
// No notification: what shows one is loaded when the first is shown, and now there is nobody to load it from.
const LOST = {
  kind: 'lost-lab',
  text: 'The lab does not answer',
  title: 'Kernels and cells go on. This page connects again by itself.'
};
const EVERY_MINUTE = 60000;
// Minutes before an end at which people are warned.
const WARN_AT = [30, 5];

class Shown {
  constructor(app, lab, tracker) {
    this.app = app;
    this.tracker = tracker;
    this.state = null;
    this.reached = false;
    this.session = {};
    this.since = Date.now();
    this.timer = null;

    this.panel = new lab.Widget();
    this.panel.id = 'carrel-panel';
    this.panel.addClass('carrel-panel');
    this.panel.title.icon = new lab.LabIcon({ name: 'carrel:gpu', svgstr: ICON });
    this.panel.title.caption = 'GPUs';
    this.panel.node.setAttribute('role', 'region');
    this.panel.node.setAttribute('aria-label', 'GPUs');

    this.item = new lab.Widget();
    this.item.addClass('carrel-item');
    this.button = document.createElement('button');
    this.button.className = 'carrel-status';
    this.button.type = 'button';
    // While JupyterLab restores its layout it closes panels that were not open when the page was left.
    this.button.onclick = () => app.restored.then(() => app.shell.activateById(this.panel.id));
    // Read out when something happened, not every second while the estimate runs down.
    this.spoken = document.createElement('span');
    this.spoken.className = 'carrel-unseen';
    this.spoken.setAttribute('role', 'status');
    this.item.node.append(this.button, this.spoken);
  }

  heard(state) {
    this.state = state;
    this.reached = this.reached || Boolean(state);
    this.since = Date.now();
    this.draw();
  }

  knows(session) {
    this.session = session;
    this.draw();
  }

  draw() {
    const widget = this.tracker && this.tracker.currentWidget;
    const kernel = widget && widget.sessionContext.session && widget.sessionContext.session.kernel;
    const { kind, text, title } = this.reached && !this.state ? LOST : summary(this.state, this.session, kernel ? kernel.id : '', (Date.now() - this.since) / 1000);
    this.button.textContent = text;
    this.button.title = title;
    if (this.button.dataset.kind !== kind) {
      this.button.dataset.kind = kind;
      this.spoken.textContent = text;
    }
    if (this.panel.isVisible) {
      this.panel.node.replaceChildren(...content(this.state, this.session));
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.draw(), kind.startsWith('waiting') ? 1000 : 10000);
  }
}

const warnOfEnds = (session, warned, lab) => {
  for (const [what, end] of [['The session ends', session.ends_at], ['Nobody uses this session: it ends', session.idle_end]]) {
    const minutes = end ? (Date.parse(end) - Date.now()) / 60000 : Infinity;
    for (const limit of WARN_AT) {
      const key = `${what} ${end} ${limit}`;
      if (minutes <= limit && !warned.has(key)) {
        WARN_AT.filter(other => other >= limit).forEach(other => warned.add(`${what} ${end} ${other}`));
        lab.Notification.warning(`${what} in ${Math.max(0, Math.ceil(minutes))} min. Files stay; variables do not.`, { autoClose: false });
        break;
      }
    }
  }
};

// A session of kind terminal is opened to work in one.
const openTerminal = async app => {
  await app.restored;
  const shown = [...app.shell.widgets('main')].some(widget => widget.hasClass('jp-MainAreaWidget') && widget.id.includes('terminal'));
  const running = [...app.serviceManager.terminals.running()];
  if (!shown) {
    await app.commands.execute(running.length ? 'terminal:open' : 'terminal:create-new', running.length ? { name: running[0].name } : {});
  }
};

// JupyterLab itself waits longer and longer, up to two minutes, and gives up after seven attempts; a lab may be away for longer.
const reconnect = app => {
  for (const widget of app.shell.widgets('main')) {
    const context = widget.sessionContext;
    const one = context ? context.session && context.session.kernel : widget.content && widget.content.session;
    if (one && one.reconnect && one.connectionStatus !== 'connected') {
      one.reconnect().catch(error => console.warn('Carrel: not connected again.', error));
    }
  }
};

const NOTICES = { info: 'info', warning: 'warning', error: 'error' };

const activate = (app, statusBar, tracker, palette, lab) => {
  const sheet = document.createElement('link');
  sheet.rel = 'stylesheet';
  sheet.href = new URL('style.css', import.meta.url).href;
  document.head.append(sheet);

  const link = makeLink(lab);
  const shown = new Shown(app, lab, tracker);
  app.shell.add(shown.panel, 'right', { rank: 900 });
  if (statusBar) {
    statusBar.registerStatusItem('carrel:gpu', { item: shown.item, align: 'left', rank: 2, isActive: () => true });
  }
  // Lumino tells a widget that it is shown by a message; looking at the shell's own signal is the public way.
  const shellChanged = app.shell.layoutModified || app.shell.currentChanged;
  shellChanged.connect(() => shown.draw());

  const warned = new Set();
  const ask = () =>
    link.request('session').then(session => {
      shown.knows(session);
      warnOfEnds(session, warned, lab);
    }).catch(() => {});
  ask().then(() => shown.session.kind === 'terminal' && openTerminal(app)).catch(error => console.warn('Carrel: no terminal.', error));
  setInterval(ask, EVERY_MINUTE);

  let last = '';
  const heard = news => {
    if (news && news.type === 'notice') {
      if (news.message && news.message !== last) {
        last = news.message;
        lab.Notification.emit(news.message, NOTICES[news.level] || 'info', { autoClose: news.level === 'info' ? 8000 : false });
      }
    } else {
      shown.heard(news);
    }
  };
  link.events(heard, () => reconnect(app));

  if (tracker) {
    tracker.currentChanged.connect(() => shown.draw());
    recallOutputs(tracker, link);
    addPromote(app, tracker, palette, lab, link);
  }
  shown.draw();
};

export const plugins = lab => [
  {
    id: 'carrel-session:plugin',
    description: 'Shows who has which GPU, and makes tasks of notebooks.',
    autoStart: true,
    optional: [lab.IStatusBar, lab.INotebookTracker, lab.ICommandPalette],
    activate: (app, statusBar, tracker, palette) => activate(app, statusBar, tracker, palette, lab)
  },
  ...(lab.PageConfig.getOption('hubPrefix') ? [] : [{
    id: 'carrel-session:connection-lost',
    description: 'Has the status bar say that the lab does not answer, in the place of a dialog that a person has to close.',
    autoStart: true,
    provides: lab.IConnectionLost,
    activate: () => async () => {}
  }])
];
