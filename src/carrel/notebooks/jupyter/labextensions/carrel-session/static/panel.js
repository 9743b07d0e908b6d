// The side panel: devices, queue, own kernels, what this session has waited and used.

import { clock, counted, deviceNames, duration, ordinal, residency, size } from './words.js';

const make = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined && child !== ''));
  return node;
};

const section = (title, ...children) => make('section', {}, make('h3', {}, title), ...children);
const none = text => make('p', { class: 'carrel-none' }, text);

const table = (caption, heads, rows) =>
  make(
    'table',
    {},
    make('caption', { class: 'carrel-unseen' }, caption),
    make('thead', {}, make('tr', {}, ...heads.map(head => make('th', { scope: 'col' }, head)))),
    make('tbody', {}, ...rows.map(row => make('tr', {}, ...row.map(cell => make('td', {}, cell)))))
  );

const people = row => (row.mine ? 'you' : row.owner || 'somebody else');
// A notebook by its name; of another session, with the session's.
const named = (tenant, session) => {
  const label = tenant.label || (tenant.mine ? 'a kernel of yours' : people(tenant));
  const elsewhere = tenant.mine && tenant.job !== session.job && (session.sessions || {})[tenant.job];
  return elsewhere ? `${elsewhere}: ${label}` : label;
};

const device = (one, status, session) => {
  const tenants = status.tenants || [];
  const lease = (status.leases || []).find(row => row.id === one.lease || (row.devices || []).includes(one.uuid));
  const residents = (one.residents || []).map(id => tenants.find(row => row.id === id)).filter(Boolean);
  const strangers = one.strangers || [];
  const share = one.memory ? Math.min(1, one.used / one.memory) : 0;
  const memory = `${size(one.used || 0)} of ${size(one.memory || 0)} used`;
  const name = `GPU ${one.index}${one.simulated ? ' (simulated)' : ''}`;
  let use = one.withheld ? 'not lent' : 'free';
  if (lease) {
    use = lease.state === 'active' ? `computes for ${people(lease)}` : `${lease.state} for ${people(lease)}`;
  }
  return make(
    'li',
    { class: lease && lease.mine ? 'carrel-mine' : '' },
    make('div', { class: 'carrel-head' }, make('strong', {}, name), make('span', {}, use)),
    make('div', { class: 'carrel-note' }, one.name || ''),
    make('div', { class: 'carrel-bar', role: 'meter', 'aria-label': `Memory of ${name}`, 'aria-valuemin': '0', 'aria-valuemax': '100',
      'aria-valuenow': String(Math.round(share * 100)), 'aria-valuetext': memory },
      make('span', { style: `width: ${(share * 100).toFixed(1)}%` })),
    make('div', { class: 'carrel-note' }, memory),
    residents.length ? make('div', { class: 'carrel-note' }, `State of: ${residents.map(row => named(row, session)).join(', ')}`) : null,
    strangers.length
      ? make('div', { class: 'carrel-warning' },
        `${strangers.length === 1 ? 'A process' : `${strangers.length} processes`} without a lease: ` +
        strangers.map(row => `${row.name || 'process'} ${row.pid} (${size(row.bytes || 0)})`).join(', '))
      : null,
    one.withheld ? make('div', { class: 'carrel-warning' }, `Not lent: ${one.withheld}`) : null
  );
};

const kernels = (status, session) => {
  const mine = (status.tenants || []).filter(row => row.mine);
  if (!mine.length) {
    return none('No kernel of yours has used a GPU.');
  }
  return make('ul', {}, ...mine.map(row => make(
    'li',
    {},
    make('div', { class: 'carrel-head' }, make('strong', {}, named(row, session)), make('span', {}, residency(row))),
    make('div', { class: 'carrel-note' },
      [row.bytes ? size(row.bytes) : '', (row.home || []).length ? deviceNames(status, row.home) : '', counted(row.cells || 0, 'cell'),
        `${duration(row.gpu_seconds || 0)} of GPU`, `waited ${duration(row.waited_seconds || 0)}`].filter(Boolean).join(' · ')),
    row.suspendable === false && row.why_not ? make('div', { class: 'carrel-warning' }, `Cannot be moved: ${row.why_not}`) : null
  )));
};

const queue = status => {
  const rows = [...(status.queue || [])].sort((one, other) => one.position - other.position);
  if (!rows.length) {
    return none('No cell waits.');
  }
  return make('ol', { class: 'carrel-queue' }, ...rows.map(row => make(
    'li',
    { class: row.mine ? 'carrel-mine' : '' },
    make('div', { class: 'carrel-head' },
      make('strong', {}, `${ordinal(row.position)}: ${people(row)}`),
      make('span', {}, row.estimate === null || row.estimate === undefined ? '' : `about ${duration(row.estimate)}`)),
    make('div', { class: 'carrel-note' }, row.message || `wants ${row.gpus}`)
  )));
};

const used = status => {
  const mine = (status.tenants || []).filter(row => row.mine);
  const sum = name => mine.reduce((total, row) => total + (row[name] || 0), 0);
  const history = status.history || [];
  return section(
    'This session',
    make('p', {}, `${duration(sum('gpu_seconds'))} of GPU in ${counted(sum('cells'), 'cell')}, ${duration(sum('waited_seconds'))} waited.`),
    history.length
      ? table('The last cells that had a GPU', ['When', 'Waited', 'Had it', 'Where', 'End'], history.map(row => [
        clock(new Date(row.at * 1000)), duration(row.waited || 0), duration(row.held || 0), deviceNames(status, row.devices), row.outcome || ''
      ]))
      : none('No cell has had a GPU yet.')
  );
};

const facts = session => {
  const rows = [
    ['Job', session.page ? make('a', { href: session.page, target: '_blank', rel: 'noopener' }, `${session.job}`) : `${session.job || ''}`],
    ['Name', session.name || ''],
    ['Environment', session.environment || ''],
    ['Ends', session.ends_at ? clock(new Date(session.ends_at)) : 'not known']
  ];
  return section('Session', make('dl', {}, ...rows.flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, value)])));
};

const told = session => (session.announcements || []).map(one =>
  make('p', { class: one.level === 'warning' ? 'carrel-warning' : 'carrel-none', role: 'note' },
    one.level === 'warning' ? make('strong', {}, 'Warning. ') : null, one.text));

const WHY = {
  absent: 'This lab lends no GPUs to cells (no broker).',
  unreachable: 'The broker, which lends the GPUs of this node, does not answer. Cells that run go on.'
};

// Everything that the panel shows, as new nodes.
export const content = (state, session) => [...told(session), ...parts(state, session)];

const parts = (state, session) => {
  if (session.reserved) {
    const many = (session.devices || []).length;
    return [section('GPUs', make('p', {}, `${many === 1 ? 'A GPU is' : `${many} GPUs are`} reserved for this session from start to end.`)), facts(session)];
  }
  if (!state || state.broker !== 'connected') {
    return [section('GPUs', none(state ? state.why || WHY[state.broker] : 'Asking …')), facts(session)];
  }
  const status = state.status;
  return [
    section(
      'GPUs of this node',
      state.simulated ? make('p', { class: 'carrel-simulated' }, 'These GPUs are simulated: there is no hardware behind them.') : null,
      (status.devices || []).length ? make('ul', {}, ...status.devices.map(one => device(one, status, session))) : none('There are none.')
    ),
    section('Who waits', queue(status)),
    section('Your kernels', kernels(status, session)),
    used(status),
    facts(session)
  ];
};
