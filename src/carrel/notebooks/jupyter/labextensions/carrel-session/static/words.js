// What lending looks like in words. Pure: a state of the broker in, texts out.

export const ordinal = n => {
  const tens = n % 100;
  const end = tens >= 11 && tens <= 13 ? 'th' : { 1: 'st', 2: 'nd', 3: 'rd' }[n % 10] || 'th';
  return `${n}${end}`;
};

export const duration = seconds => {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) {
    return `${s} s`;
  }
  if (s < 3600) {
    return `${Math.round(s / 60)} min`;
  }
  const hours = s / 3600;
  return hours < 10 ? `${hours.toFixed(1)} h` : `${Math.round(hours)} h`;
};

export const size = bytes => {
  let value = bytes;
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (value < 1024 || unit === 'GiB') {
      return `${value >= 10 || unit === 'B' ? Math.round(value) : value.toFixed(1)} ${unit}`;
    }
    value /= 1024;
  }
  return '';
};

export const counted = (number, what) => `${number} ${what}${number === 1 ? '' : 's'}`;

export const clock = moment =>
  moment.toLocaleString(undefined, {
    ...(moment.toDateString() === new Date().toDateString() ? {} : { day: 'numeric', month: 'short' }),
    hour: '2-digit',
    minute: '2-digit'
  });

const list = (status, name) => status[name] || [];

export const deviceName = (status, uuid) => {
  const device = list(status, 'devices').find(one => one.uuid === uuid);
  return device ? `GPU ${device.index}` : 'a GPU';
};

export const deviceNames = (status, uuids) => {
  const found = (uuids || []).map(uuid => list(status, 'devices').find(one => one.uuid === uuid));
  const indexes = found.map(one => (one ? one.index : '?')).sort((one, other) => one - other);
  return indexes.length === 1 ? `GPU ${indexes[0]}` : `GPUs ${indexes.join(', ')}`;
};

const RESIDENCY = {
  none: 'no GPU state',
  resident: 'on the GPU',
  suspending: 'being moved to host memory',
  suspended: 'suspended in host memory',
  resuming: 'being brought back',
  lost: 'lost: restart the kernel'
};

export const residency = tenant => RESIDENCY[tenant.state] || tenant.state;

// Those rows of ours that concern one kernel; all of ours when that kernel has none.
const ours = (status, kernel) => {
  const tenants = list(status, 'tenants').filter(one => one.mine);
  const wanted = tenants.filter(one => kernel && one.kernel === kernel);
  const ids = new Set((wanted.length ? wanted : tenants).map(one => one.id));
  const mine = row => row.mine && (!row.tenant || ids.has(row.tenant));
  return {
    tenants: tenants.filter(one => ids.has(one.id)),
    leases: list(status, 'leases').filter(mine),
    queue: list(status, 'queue').filter(mine)
  };
};

const inState = (rows, state) => rows.filter(row => row.state === state);

const words = (state, session, kernel, elapsed) => {
  if (session.reserved) {
    const many = (session.devices || []).length;
    return ['reserved', many === 1 ? '1 GPU reserved' : `${many} GPUs reserved`];
  }
  if (state.broker !== 'connected') {
    return state.broker === 'absent' ? ['absent', 'no broker'] : ['unreachable', 'broker does not answer'];
  }
  const status = state.status;
  const { tenants, leases, queue } = ours(status, kernel);
  if (queue.length) {
    const first = queue.reduce((one, other) => (other.position < one.position ? other : one));
    const known = first.estimate !== null && first.estimate !== undefined;
    return [`waiting-${first.position}`, `waiting: ${ordinal(first.position)}${known ? `, ~${duration(first.estimate - elapsed)}` : ''}`];
  }
  const [active] = inState(leases, 'active');
  if (active) {
    return ['running', `${deviceNames(status, active.devices)} · running`];
  }
  const [paused] = inState(leases, 'paused');
  if (paused) {
    return ['paused', `${deviceNames(status, paused.devices)} · suspended while others run`];
  }
  const [held] = inState(leases, 'held');
  if (held) {
    const until = held.held_until ? ` until ${clock(new Date(held.held_until * 1000))}` : '';
    return ['held', `${deviceNames(status, held.devices)} · held${until}`];
  }
  if (tenants.some(one => one.state === 'lost')) {
    return ['lost', 'GPU state lost'];
  }
  if (tenants.some(one => ['suspended', 'suspending', 'spilling', 'spilled'].includes(one.state))) {
    return ['suspended', 'suspended'];
  }
  const resident = tenants.find(one => ['resident', 'resuming'].includes(one.state));
  if (resident) {
    return ['resident', `no GPU held · state on ${deviceNames(status, resident.home)}`];
  }
  return ['none', 'no GPU held'];
};

// One line for the status bar. `kind` changes when something happened, not when a second passed.
export const summary = (state, session, kernel, elapsed) => {
  if (!state) {
    return { kind: 'connecting', text: 'GPU: connecting', title: 'Asking the session about its GPUs' };
  }
  const [kind, said] = words(state, session, kernel, elapsed);
  const text = state.simulated && state.broker === 'connected' ? `${said} (simulated)` : said;
  const waits = (state.status && list(state.status, 'queue').find(row => row.mine)) || null;
  const stays = kind === 'held' ? ours(state.status, kernel).tenants.find(one => one.suspendable === false && one.why_not) : null;
  const why = (waits && waits.message) || (stays && `The GPU stays with this kernel: its state cannot be moved (${stays.why_not})`);
  return { kind, text, title: why || state.why || 'Show who has which GPU' };
};
