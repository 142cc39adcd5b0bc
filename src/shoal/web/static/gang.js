// One gang: how it stands and why, its pods, its log, its events and conditions, and the way to Ray's dashboard.

import { get, post, request } from './api.js';
import { badge, fill, h, say } from './dom.js';
import { count, moment } from './format.js';
import { since, stateBadge, turned, when } from './gangs.js';
import { address, state, store } from './store.js';

const AGAIN = 5000;
const MOST_TEXT = 400000;

export function title() {
  return state().name || 'Gang';
}

export function mount(main) {
  const { kind, namespace, name } = state();
  const asked = { kind, namespace, name };
  const head = h('div', { class: 'head' });
  const why = h('section', { class: 'card', 'aria-labelledby': 'why' });
  const pods = h('section', { class: 'card', 'aria-labelledby': 'pods' });
  const log = makeLog(namespace, asked);
  const events = h('section', { class: 'card', 'aria-labelledby': 'events' });
  const conditions = h('section', { class: 'card', 'aria-labelledby': 'conditions' });
  const trouble = h('p', { class: 'trouble', role: 'alert' });
  fill(main, h('h1', {}, name || 'Gang'), trouble, head, why, pods, log.element, events, conditions);
  let alive = true;
  let seen = null;
  let due = 0;
  let shownWhy = '';

  async function look() {
    try {
      const told = await get('/data/gang', asked);
      if (!alive) return;
      say(trouble, '');
      showHead(head, told, asked);
      showPods(pods, told);
      log.offer(told.pods);
      showEvents(events, told.events);
      showConditions(conditions, told.conditions);
      const key = `${told.row.state}/${told.row.reason}/${told.row.stage}`;
      if (key !== shownWhy) { shownWhy = key; explain(told.row); }
    } catch (error) {
      if (!alive) return;
      say(trouble, error.message);
      log.offer([]); // it may be gone, and its log kept
    }
  }

  async function explain(row) {
    fill(why, h('h2', { id: 'why' }, row.stage === 'waiting' ? 'Why it waits' : 'How it stands'), h('p', { class: 'quiet' }, 'The controller is asked …'));
    try {
      const told = await get('/data/why', asked);
      if (alive) showWhy(why, told, row);
    } catch (error) {
      if (alive) fill(why, h('h2', { id: 'why' }, 'How it stands'), h('p', { class: 'trouble' }, error.message));
    }
  }

  const changed = () => { // its row changed: look again, at most once a second
    const row = store.list('gangs').find((one) => one.name === name && one.namespace === namespace && one.resource === kind);
    if (row === seen) return;
    seen = row;
    if (!due) due = setTimeout(() => { due = 0; look(); }, 300);
  };
  store.addEventListener('rows', changed);
  look();
  const again = setInterval(() => { if (document.visibilityState === 'visible') look(); }, AGAIN);
  return { unmount() { alive = false; clearInterval(again); clearTimeout(due); log.stop(); store.removeEventListener('rows', changed); } };
}

function showHead(head, { row, dashboard, asks }, asked) {
  const facts = [['Kind', row.kind], ['Namespace', row.namespace], ['Queue', row.queue], ['Priority', row.priority], ['Cluster', row.cluster],
    ...Object.entries(asks).map(([name, value]) => [name[0].toUpperCase() + name.slice(1), value])].filter(([, value]) => value);
  const trouble = h('span', { class: 'trouble', role: 'alert' });
  const buttons = dashboard.map((cluster) => h('button', {
    type: 'button',
    onclick: async () => {
      const tab = window.open('about:blank', '_blank');
      try {
        const { path } = await post('/data/dashboard', { namespace: asked.namespace, name: cluster });
        if (tab) { tab.opener = null; tab.location = path; } else location.assign(path);
      } catch (error) { tab?.close(); say(trouble, error.message); }
    },
  }, 'Ray dashboard'));
  const key = JSON.stringify([row, dashboard, asks]);
  if (head.dataset.key === key) return;
  head.dataset.key = key;
  fill(head, h('p', {}, stateBadge(row), ' for ', since(turned(row)), row.reason ? `: ${row.reason}` : ''),
    h('dl', { class: 'facts' }, facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value)))),
    h('p', { class: 'buttons' }, buttons, trouble));
}

function showWhy(why, told, row) {
  const lines = [];
  const gangs = (label, listed, hidden, more) => {
    const parts = [(told[listed] || []).join(', '), told[hidden] ? `${count(told[hidden], 'gang')} that you may not read` : '', told[more] ? `${told[more]} more` : ''].filter(Boolean);
    if (parts.length) lines.push(`${label} ${parts.join(' and ')}`);
  };
  const amounts = (one) => Object.entries(one.amounts || {}).map(([name, value]) => `${value} ${name}`).join(', ');
  const nodes = (one) => `${one.count > 1 ? `${one.count} more nodes that each have` : 'one more node that has'} free: ${amounts(one)}`;
  for (const one of told.shortfalls || []) lines.push(`Short: ${one.missing ? `${one.missing} ${one.resource}: ` : ''}${one.message || one.kind}${one.place ? ` at ${one.place}` : ''}`);
  for (const one of told.pendingPods || []) lines.push(`Pod ${one.name}: ${one.message}`);
  if (told.position) lines.push(`Position ${told.position} of ${told.queueLength}${told.clusterQueue ? ` in ClusterQueue ${told.clusterQueue}` : ''}`);
  if (told.estimate) lines.push(when(told.estimate));
  gangs('Held by', 'holders', 'holdersNotShown', 'moreHolders');
  gangs('Would start if these ended:', 'release', 'releaseNotShown', 'moreRelease');
  if (told.leastIncrease && told.leastIncrease.place !== 'nodes') lines.push(`Would start with more quota at ${told.leastIncrease.place}: ${amounts(told.leastIncrease)}`);
  if (told.newNodes) lines.push(`Would start with ${nodes(told.newNodes)}`);
  if (told.together) {
    const parts = [...(told.together.quotas || []).map((one) => `more quota at ${one.place}: ${amounts(one)}`), ...(told.together.nodes ? [nodes(told.together.nodes)] : [])];
    lines.push(`Would start with ${parts.join(' and ')}`);
  }
  if (told.startsByItself) lines.push('Starts by itself: all that it waits for is on its way');
  if (told.clusterTooSmall) lines.push('Cannot start even on an empty cluster: its nodes are too small or too few');
  if (told.pods) for (const [what, n] of Object.entries(told.pods)) lines.push(`Pods ${what}: ${n}`);
  const stored = told.notAnswered ? `This is what is stored; ${told.notAnswered}.` : '';
  fill(why, h('h2', { id: 'why' }, row.stage === 'waiting' ? 'Why it waits' : 'How it stands'),
    told.message && !(told.shortfalls || []).length ? h('p', {}, told.message) : null,
    lines.length ? h('ul', {}, lines.map((one) => h('li', {}, one))) : told.message ? null : h('p', { class: 'quiet' }, `It is ${told.state}.`),
    (told.lastLines || []).map((one) => [h('h3', {}, `Last lines of ${one.of}`), h('pre', { tabindex: '0' }, one.lines.join('\n'))]),
    stored ? h('p', { class: 'quiet' }, stored) : null);
}

function showPods(pods, told) {
  table(pods, 'pods', 'Pods', told.readsPods ? 'None.' : 'You may not list its pods.', ['Name', 'Role', 'Phase', 'Ready', 'Restarts', 'Node', 'Age'],
    told.pods, (one) => [one.name, one.role || '–', badge(one.phase === 'Running' ? 'running' : one.phase === 'Failed' ? 'failed' : 'waiting', one.reason || one.phase), one.ready, String(one.restarts),
      one.node ? h('a', { href: address('/nodes', { node: one.node, namespace: '' }), 'data-view': true }, one.node) : '–', since(one.created)]);
}

function showEvents(events, rows) {
  table(events, 'events', 'Events', 'None.', ['When', 'Reason', 'Object', 'Message'], rows,
    (one) => [since(one.at), badge(one.type === 'Warning' ? 'failed' : 'plain', one.reason), one.object, one.count > 1 ? `${one.message} (${one.count} times)` : one.message]);
}

function showConditions(conditions, rows) {
  table(conditions, 'conditions', 'Conditions', 'None.', ['When', 'Condition', 'Status', 'Reason', 'Message'], rows,
    (one) => [one.at ? h('time', { datetime: one.at }, moment(one.at)) : '–', `${one.type} of ${one.of}`, one.status, one.reason || '–', one.message || '–']);
}

function table(section, id, name, none, columns, rows, cells) {
  const key = JSON.stringify(rows);
  if (section.dataset.key === key) return;
  section.dataset.key = key;
  fill(section, h('h2', { id }, name, ' ', h('span', { class: 'n' }, rows.length ? String(rows.length) : '')),
    rows.length ? h('div', { class: 'scroll' }, h('table', { class: 'gangs' }, h('caption', { class: 'hidden' }, name),
      h('thead', {}, h('tr', {}, columns.map((one) => h('th', { scope: 'col' }, one)))),
      h('tbody', {}, rows.map((row) => h('tr', {}, cells(row).map((cell, at) => h(at ? 'td' : 'th', { scope: at ? null : 'row', 'data-label': columns[at] }, cell)))))))
      : h('p', { class: 'quiet' }, none));
}

// Without colours and cursor movements of terminals.
function plain(words) {
  // eslint-disable-next-line no-control-regex
  return words.replace(/\u001b\[[0-9;]*[A-Za-z]/g, '');
}

// The log of the chosen container: its end, then what comes.
function makeLog(namespace, asked) {
  const choice = h('select', { id: 'container' });
  const text = h('pre', { class: 'log', tabindex: '0', role: 'log', 'aria-label': 'Log' });
  const note = h('p', { class: 'quiet', role: 'status' }, 'No pods, so no log.');
  const element = h('section', { class: 'card', 'aria-labelledby': 'log' }, h('h2', { id: 'log' }, 'Log'),
    h('p', {}, h('label', { for: 'container' }, 'Container '), choice), note, text);
  let reading = null;
  let offered = '';

  async function read(value) {
    reading?.abort();
    const mine = (reading = new AbortController());
    fill(text);
    say(note, '');
    const [pod, container] = value.split(' ');
    try {
      const answer = await request(`/data/log?${new URLSearchParams({ namespace, pod, container, follow: '1' })}`, { signal: mine.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value: more, done } = await reader.read();
        if (done || mine !== reading) break;
        const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
        text.append(plain(more));
        if (text.textContent.length > MOST_TEXT) text.textContent = text.textContent.slice(-MOST_TEXT / 2);
        if (atEnd) text.scrollTop = text.scrollHeight;
      }
      if (mine === reading && !text.textContent) say(note, 'Nothing was printed.');
    } catch (error) { if (mine === reading && !mine.signal.aborted) say(note, error.message); }
  }

  // Of pods that are gone: what the controller kept.
  async function readKept() {
    try {
      const told = await get('/data/kept-log', asked);
      if (offered !== '[]' || !(told.logs || []).length) return;
      const last = told.logs.at(-1);
      fill(text, `${last.cut ? `… ${last.cut} bytes before this were not kept\n` : ''}${plain(last.text || '')}`);
      text.hidden = false;
      say(note, `Kept of pod ${last.pod}, which is gone.`);
    } catch (error) { if (offered === '[]') say(note, error.message); }
  }

  choice.addEventListener('change', () => read(choice.value));
  return {
    element,
    offer(pods) {
      const first = (one) => (one.role ? (one.role === 'head' ? 1 : 2) : 0); // the submitter's log is the driver's
      const found = [...pods].sort((a, b) => first(a) - first(b)).flatMap((pod) => pod.containers.map((container) => [`${pod.name} ${container}`, `${pod.name} · ${container}`]));
      const key = JSON.stringify(found);
      choice.hidden = !found.length;
      choice.parentElement.hidden = !found.length;
      text.hidden = !found.length && !text.textContent;
      if (key === offered) return;
      offered = key;
      const before = choice.value;
      fill(choice, found.map(([value, name]) => h('option', { value }, name)));
      if (!found.length) {
        if (!text.textContent) { say(note, 'No pods, so no log.'); readKept(); }
        return;
      }
      if (found.some(([value]) => value === before)) choice.value = before;
      else read(choice.value);
    },
    stop() { reading?.abort(); },
  };
}

