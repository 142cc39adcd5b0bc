// The way to the page's server: every request carries the key that this browser keeps for this origin alone.

const KEY = 'shoal-key';
export class LoggedOut extends Error {}

export function hasKey() {
  return localStorage.getItem(KEY) !== null;
}

// A code behind the # logs in once. It leaves the address bar before anything else happens.
export async function loginByFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  const code = given.get('login');
  if (!code) return;
  const query = new URLSearchParams(location.search);
  if (given.get('namespace')) query.set('namespace', given.get('namespace'));
  const rest = query.toString();
  history.replaceState(null, '', location.pathname + (rest ? `?${rest}` : ''));
  await login(code);
}

export async function login(code) {
  const attempt = crypto.getRandomValues(new Uint32Array(8)).join('-');
  const answer = await sent('/login', {
    method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ code, attempt }),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  localStorage.setItem(KEY, told.key);
}

export async function logout() {
  await request('/logout', { method: 'POST' }).catch(() => {});
  localStorage.removeItem(KEY);
}

export async function request(path, options = {}) {
  const headers = { ...(options.headers || {}), 'X-Shoal-Key': localStorage.getItem(KEY) || '' };
  const answer = await sent(path, { ...options, headers });
  if (answer.status === 401) {
    localStorage.removeItem(KEY);
    throw new LoggedOut('you are not logged in');
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.error || `the server answered ${answer.status}`);
  }
  return answer;
}

// A browser gives up what is under way when the machine's networks change, which pods do all the time: every request is
// repeated. Each may be: a login names its attempt, the others read, or do the same when they are done twice.
async function sent(path, options) {
  for (let tries = 3; ; tries -= 1) {
    try {
      return await fetch(path, options);
    } catch (error) {
      if (tries <= 1 || options.signal?.aborted) throw error;
      await new Promise((done) => setTimeout(done, 200));
    }
  }
}

export async function get(path, query = {}) {
  return (await request(`${path}?${new URLSearchParams(query)}`)).json();
}

export async function post(path, body) {
  const options = { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) };
  return (await request(path, options)).json();
}

// Server-sent events, read by hand: the browser's own reader cannot send the key. Calls `tell` with each event's data.
export async function follow(path, query, tell, signal) {
  const answer = await request(`${path}?${new URLSearchParams(query)}`, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith('data: ')) tell(JSON.parse(event.slice(6)));
    }
  }
}
