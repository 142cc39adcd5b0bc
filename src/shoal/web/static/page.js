// The shell: login, the views and which of them the URL names, the filters, and what screen readers are told.

import { hasKey, get, login, loginByFragment, logout } from './api.js';
import { fill, h, say } from './dom.js';
import { age } from './format.js';
import * as gang from './gang.js';
import * as nodes from './nodes.js';
import * as overview from './overview.js';
import * as queues from './queues.js';
import { address, setState, state, store } from './store.js';
import * as timeline from './timeline.js';
import * as waiting from './waiting.js';

const VIEWS = [
  ['/', 'Overview', overview],
  ['/waiting', 'Waiting', waiting],
  ['/nodes', 'Nodes', nodes],
  ['/queues', 'Queues', queues],
  ['/timeline', 'Timeline', timeline],
  ['/gang', '', gang],
];

const main = document.getElementById('main');
let shown = { unmount() {} };

function show({ focus = false } = {}) {
  const [path, title, view] = VIEWS.find(([one]) => one === location.pathname) || VIEWS[0];
  store.open(path === '/gang' ? state().in || '' : state().namespace || '');
  shown.unmount();
  fill(main);
  shown = view.mount(main);
  document.title = `${view.title?.() || title} · Shoal`;
  nav();
  filters();
  if (focus) { main.focus({ preventScroll: true }); window.scrollTo(0, 0); }
  performance.mark('shoal-shown');
}

function nav() {
  const links = VIEWS.filter(([, title]) => title).map(([path, title]) => h(
    'a', { href: address(path), 'data-view': true, 'aria-current': path === location.pathname ? 'page' : null }, title,
  ));
  fill(document.getElementById('views'), links);
}

function filters() {
  const form = document.getElementById('filters');
  form.hidden = location.pathname === '/gang';
  for (const name of ['namespace', 'q']) {
    const input = document.getElementById(name);
    if (document.activeElement !== input) input.value = state()[name] || '';
  }
}

// Links of the page stay in the page, unless the visitor wants another tab.
document.addEventListener('click', (event) => {
  const link = event.target.closest?.('a[data-view]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  if (link.href !== location.href) history.pushState(null, '', link.href);
  show({ focus: true });
});
window.addEventListener('popstate', () => show({ focus: true }));

document.getElementById('filters').addEventListener('submit', (event) => event.preventDefault());
document.getElementById('q').addEventListener('input', (event) => setState({ q: event.target.value.trim() }));
document.getElementById('namespace').addEventListener('change', (event) => {
  setState({ namespace: event.target.value.trim() });
  store.open(state().namespace || '');
  nav();
});
document.getElementById('logout').addEventListener('click', async () => { await logout(); out('You are logged out.'); });

store.addEventListener('link', (event) => {
  const link = document.getElementById('link');
  link.classList.toggle('broken', event.detail !== 'live');
  say(link, event.detail);
});
store.addEventListener('loggedout', () => out('Your login has ended.'));
store.addEventListener('rows', (event) => {
  if (!event.detail.has('gangs')) return;
  const names = [...new Set(store.list('gangs').map((row) => row.namespace))].sort();
  const list = document.getElementById('namespaces');
  if (names.join() !== [...list.children].map((one) => one.value).join()) {
    fill(list, names.map((name) => h('option', { value: name })));
  }
});

// Ages grow without a message.
setInterval(() => {
  for (const one of document.querySelectorAll('time[data-age]')) say(one, age(one.dateTime));
}, 5000);

function out(words) {
  store.close();
  shown.unmount();
  shown = { unmount() {} };
  for (const id of ['filters', 'me']) document.getElementById(id).hidden = true;
  fill(document.getElementById('views'));
  const code = h('input', { id: 'code', name: 'code', autocomplete: 'one-time-code', spellcheck: 'false', required: true });
  const trouble = h('p', { class: 'trouble', role: 'alert' });
  const form = h('form', { class: 'card login' },
    h('h1', {}, 'Log in'), h('p', {}, words), h('p', {}, 'In a terminal, run ', h('code', {}, 'shoal open'),
      '. It opens this page logged in, or prints an address to open; its code can be pasted here.'),
    h('label', { for: 'code' }, 'Code or address'), code, h('button', {}, 'Log in'), trouble);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const given = code.value.trim();
    try {
      await login(new URLSearchParams(given.split('#').pop()).get('login') || given);
      await begin();
    } catch (error) { say(trouble, error.message); }
  });
  fill(main, form);
}

async function begin() {
  const told = await get('/data/me');
  say(document.getElementById('user'), told.user);
  document.getElementById('me').hidden = false;
  show();
}

async function start() {
  try {
    await loginByFragment();
  } catch (error) {
    if (!hasKey()) return out(error.message);
  }
  if (!hasKey()) return out('You are not logged in.');
  try {
    await begin();
  } catch (error) { out(error.message); }
}

// All of it was loaded. A file that is missing for good does not load the page for ever: the count lasts a while.
setTimeout(() => sessionStorage.removeItem('shoal-again'), 10000);
start();
