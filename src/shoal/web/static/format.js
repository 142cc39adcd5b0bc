// Times and amounts as people read them.

export function age(from, to = Date.now()) {
  const seconds = Math.max(0, Math.round((to - new Date(from).getTime()) / 1000));
  return span(seconds);
}

export function span(seconds) {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${Math.round(seconds / 86400)} d`;
}

export function clock(at) {
  return new Date(at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
}

export function moment(at) {
  return new Date(at).toLocaleString([], { dateStyle: 'short', timeStyle: 'medium' });
}

// An amount as the API server counts it: thousandths of a cpu, bytes, pieces.
export function amount(resource, n) {
  if (resource === 'cpu') return `${+(n / 1000).toFixed(n < 10000 ? 2 : 0)}`;
  if (/memory|storage|hugepages/.test(resource)) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let at = 0;
    let value = n;
    while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
    return `${+value.toFixed(value < 10 ? 1 : 0)} ${units[at]}`;
  }
  return String(n);
}

export function unit(resource) {
  const short = resource.split('/').pop();
  return short === 'cpu' ? 'CPU' : short === 'gpu' ? 'GPU' : short;
}

export function count(n, one, many = `${one}s`) {
  return `${n} ${n === 1 ? one : many}`;
}
