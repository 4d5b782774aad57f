// The recording: columns of numbers become arrays, and lives become levels at every moment.
// Moment 0 is before the first event, moment m after event m - 1.

const startedAt = performance.now();

const recording = (() => {
  const file = JSON.parse(document.getElementById('recording').textContent);
  const ALLOCATE = 0, RESERVE = 3, RELEASE = 4, CHARGE = 5, DISCHARGE = 6, OOM = 7;

  function bytes(name) {
    const text = atob(file[name]);
    const out = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
    return out;
  }

  // Seven bits a byte, low ones first.
  function numbers(name, into) {
    const from = bytes(name);
    for (let i = 0, at = 0; at < from.length; i++) {
      let value = 0, unit = 1;
      while (from[at] >= 128) {
        value += (from[at++] - 128) * unit;
        unit *= 128;
      }
      into[i] = value + from[at++] * unit;
    }
    return into;
  }

  // Signed steps modulo 2^64: addresses can be larger than a double holds.
  function addresses(name, count) {
    const from = bytes(name), out = new BigUint64Array(count);
    let address = 0n;
    for (let i = 0, at = 0; i < count; i++) {
      let low = 0, unit = 1, used = 0, high = 0n, shift = 42n;
      for (;;) {
        const byte = from[at++];
        if (used++ < 6) {
          low += (byte & 127) * unit;
          unit *= 128;
        } else {
          high |= BigInt(byte & 127) << shift;
          shift += 7n;
        }
        if (byte < 128) break;
      }
      const step = high | BigInt(low);
      address = BigInt.asUintN(64, address + (step & 1n ? -((step + 1n) >> 1n) : step >> 1n));
      out[i] = address;
    }
    return out;
  }

  const eventCount = file.events, blockCount = file.blocks, moments = eventCount + 1;
  const kind = numbers('kind', new Uint8Array(eventCount));
  // When each moment begins, in microseconds since the first event.
  const times = new Float64Array(moments);
  numbers('time', times.subarray(1));
  for (let m = 2; m < moments; m++) times[m] += times[m - 1];
  const duration = times[eventCount];
  times[0] = -Math.max(1, duration / 200);

  let otherCount = 0;
  const otherOf = new Int32Array(eventCount).fill(-1);
  const ooms = [];
  for (let i = 0; i < eventCount; i++) {
    if (kind[i] >= RESERVE) otherOf[i] = otherCount++;
    if (kind[i] === OOM) ooms.push({ event: i, moment: i + 1 });
  }
  const otherSize = numbers('otherSize', new Float64Array(otherCount));
  const otherBand = numbers('otherBand', new Uint8Array(otherCount));
  const otherSite = numbers('otherSite', new Float64Array(otherCount));
  const free = numbers('oomFree', new Float64Array(ooms.length));
  const siteName = index => index === 0 ? 'unknown site' : file.sites[index - 1];
  ooms.forEach((oom, i) => {
    const other = otherOf[oom.event], asked = formatBytes(otherSize[other]);
    Object.assign(oom, { labels: [`out of memory: ${asked}`, asked], lines: [
      `Out of memory: ${asked} asked for`,
      `${file.bands[otherBand[other]]}, with ${formatBytes(free[i])} not reserved`,
      siteName(otherSite[other]), `event ${count(oom.event)}`] });
  });
  // What the program says of a moment. A failed request has one flag, whoever speaks of it.
  const flags = ooms.slice();
  for (const [event, label, text] of file.marks) {
    const oom = ooms.find(other => other.event === event);
    if (oom) {
      oom.labels.unshift(`${oom.labels[0]}, ${label}`);
      oom.lines.push(text);
    } else {
      flags.push({ event, moment: event + 1, labels: [label], lines: [label, text] });
    }
  }
  flags.sort((a, b) => a.moment - b.moment);

  const from = numbers('from', new Float64Array(blockCount));
  const to = numbers('age', new Float64Array(blockCount));
  const waits = numbers('wait', new Float64Array(blockCount));
  const size = numbers('size', new Float64Array(blockCount));
  const requested = numbers('requested', new Float64Array(blockCount));
  const stream = numbers('stream', new Uint32Array(blockCount));
  const band = numbers('band', new Uint8Array(blockCount));
  const site = numbers('site', new Float64Array(blockCount));
  const address = addresses('address', blockCount);
  // The block that begins or ends at a moment; -1 if none does.
  const born = new Int32Array(moments).fill(-1), gone = new Int32Array(moments).fill(-1);
  let startCount = 0;
  for (let b = 0; b < blockCount; b++) {
    if (b > 0) from[b] += from[b - 1];
    to[b] = to[b] === 0 ? Infinity : from[b] + to[b];
    waits[b] = waits[b] === 0 ? Infinity : from[b] + waits[b] - 1;
    requested[b] = requested[b] === 0 ? size[b] : requested[b] - 1;
    if (from[b] > 0) born[from[b]] = b; else startCount++;
    if (to[b] < moments) gone[to[b]] = b;
  }

  const bandCount = file.bands.length;
  const charged = new Float64Array(moments), reserved = new Float64Array(moments);
  const total = new Float64Array(moments), liveCount = new Float64Array(moments);
  const charges = new Float64Array(bandCount);
  let live = startCount, used = 0, charge = 0, held = file.startReserved;
  let peak = 0, liveMax = startCount;
  for (let b = 0; b < startCount; b++) used += size[b];
  for (const [k, amount] of file.startCharges) {
    charges[k] += amount;
    charge += amount;
  }
  for (let m = 0; m < moments; m++) {
    if (m > 0) {
      if (gone[m] >= 0) { used -= size[gone[m]]; live--; }
      if (born[m] >= 0) { used += size[born[m]]; live++; }
      const what = kind[m - 1], other = otherOf[m - 1];
      const amount = other < 0 ? 0 : otherSize[other];
      if (what === CHARGE || what === DISCHARGE) {
        // No more goes than the category has.
        const k = otherBand[other];
        const change = what === CHARGE ? amount : -Math.min(amount, charges[k]);
        charges[k] += change;
        charge += change;
      }
      if (what === RESERVE || what === CHARGE) held += amount;
      if (what === RELEASE || what === DISCHARGE) held = Math.max(0, held - amount);
    }
    const sum = used + charge;
    charged[m] = charge;
    reserved[m] = held;
    total[m] = sum;
    liveCount[m] = live;
    if (live > liveMax) liveMax = live;
    if (sum > total[peak]) peak = m;
  }

  // Blocks in groups, each a colour of the stack: `of` says of every block which one is its.
  function grouping(names, of, unknown, colour) {
    const levels = names.map(() => new Float64Array(moments)), now = new Float64Array(names.length);
    for (let b = 0; b < startCount; b++) now[of[b]] += size[b];
    for (let m = 0; m < moments; m++) {
      if (m > 0 && gone[m] >= 0) now[of[gone[m]]] -= size[gone[m]];
      if (m > 0 && born[m] >= 0) now[of[born[m]]] += size[born[m]];
      for (let k = 0; k < names.length; k++) levels[k][m] = now[k];
    }
    // A recording that knows every category has nothing of the unknown one.
    const isUsed = levels.map(level => level.some(bytes => bytes > 0));
    return { names, of, levels, isUsed, count: names.length, unknown, colour };
  }

  // By category; what has none is coloured by its site.
  const byCategory = () =>
    grouping(file.bands, band, bandCount - 1, k => ({ name: `band-${k}` }));

  // By module: those with the most at the peak, the largest lowest, then the others as one, then
  // what is no module's.
  const MODULES_MAX = 12;
  function byModule() {
    const most = new Float64Array(file.modules.length);
    const moduleOf = b => site[b] === 0 ? 0 : file.siteModules[site[b] - 1];
    for (let b = 0; b < blockCount && from[b] <= peak; b++) {
      if (to[b] > peak) most[moduleOf(b)] += size[b];
    }
    const order = Array.from(file.modules.keys()).slice(1);
    order.sort((a, b) => most[b] - most[a] || a - b);
    const shown = order.slice(0, order.length > MODULES_MAX + 1 ? MODULES_MAX : order.length);
    const names = shown.map(index => file.modules[index]), place = new Map();
    shown.forEach((index, k) => place.set(index, k));
    if (shown.length < order.length) {
      for (const index of order.slice(shown.length)) place.set(index, names.length);
      names.push(`${count(order.length - shown.length)} other modules`);
    }
    place.set(0, names.length);
    names.push('no module');
    const of = new Uint8Array(blockCount);
    for (let b = 0; b < blockCount; b++) of[b] = place.get(moduleOf(b));
    const colour = k => k < shown.length ? { site: k + 1 }
      : { name: `band-${k === names.length - 1 ? bandCount - 1 : bandCount - 2}` };
    return grouping(names, of, -1, colour);
  }

  const made = {}, makers = { category: byCategory, module: byModule };
  const groups = name => made[name] ||= makers[name]();

  // Charged bytes by category are asked for rarely, so they are counted again each time.
  function chargesAt(moment) {
    const by = new Float64Array(bandCount);
    for (const [k, amount] of file.startCharges) by[k] += amount;
    for (let i = 0; i < moment; i++) {
      const other = otherOf[i];
      if (kind[i] === CHARGE) by[otherBand[other]] += otherSize[other];
      if (kind[i] === DISCHARGE) {
        by[otherBand[other]] = Math.max(0, by[otherBand[other]] - otherSize[other]);
      }
    }
    return by;
  }

  const verbs = ['allocated', 'given back', 'freed', 'reserved', 'released', 'charged',
    'discharged', 'out of memory: asked for'];
  function phaseAt(moment) {
    const begun = file.phases.filter(([event]) => event < moment);
    return begun.length > 0 ? begun[begun.length - 1][1] : '';
  }
  function describe(moment) {
    if (moment === 0) return 'before the first event';
    const phase = phaseAt(moment);
    return describeEvent(moment) + (phase && `, ${phase}`);
  }
  function describeEvent(moment) {
    const event = moment - 1, other = otherOf[event];
    const where = `after event ${count(event)} of ${count(eventCount)}`;
    const b = kind[event] === ALLOCATE ? born[moment] : gone[moment];
    if (other < 0 && b < 0) return where;
    const bytes = other < 0 ? size[b] : otherSize[other];
    return `${where} (${verbs[kind[event]]} ${formatBytes(bytes)})`;
  }

  return {
    file, eventCount, blockCount, moments, kind, times, duration, flags, from, to, waits, size,
    requested, stream, band, site, address, born, gone, charged, reserved, total, liveCount,
    liveMax, peak, chargesAt, describe, phaseAt, siteName, group: groups('category'),
    setGroup(name) { this.group = groups(name); },
  };
})();
