// Fills the plot, one column of pixels after the other. A column that covers many moments shows the
// one with the most bytes, so that no peak is lost; what is above the least of them is paler.

const painter = (() => {
  const r = recording;
  const next = new Int32Array(r.blockCount), before = new Int32Array(r.blockCount);
  let first, last;

  function append(b) {
    const k = r.group.of[b], tail = last[k];
    before[b] = tail;
    next[b] = -1;
    if (tail < 0) first[k] = b; else next[tail] = b;
    last[k] = b;
  }

  function unlink(b) {
    const k = r.group.of[b];
    if (before[b] < 0) first[k] = next[b]; else next[before[b]] = next[b];
    if (next[b] < 0) last[k] = before[b]; else before[next[b]] = before[b];
  }

  // Lists of the live blocks of every group by birth, at one moment after the other.
  function sweep() {
    let at = -1;
    first = new Int32Array(r.group.count);
    last = new Int32Array(r.group.count);
    return moment => {
      if (at < 0) {
        first.fill(-1);
        last.fill(-1);
        for (let b = 0; b < r.blockCount && r.from[b] <= moment; b++) {
          if (r.to[b] > moment) append(b);
        }
      } else {
        for (let m = at + 1; m <= moment; m++) {
          if (r.gone[m] >= 0) unlink(r.gone[m]);
          if (r.born[m] >= 0) append(r.born[m]);
        }
      }
      at = moment;
    };
  }

  // The moment that each column shows, and its least bytes.
  function choose(view, width) {
    const columns = new Int32Array(width), lows = new Float64Array(width);
    for (let x = 0; x < width; x++) {
      const low = view.momentAt(view.from + (view.to - view.from) * x / width);
      const high = view.momentBefore(view.from + (view.to - view.from) * (x + 1) / width);
      let most = low, least = r.total[low];
      for (let m = low + 1; m <= high; m++) {
        if (r.total[m] > r.total[most]) most = m;
        if (r.total[m] < least) least = r.total[m];
      }
      columns[x] = most;
      lows[x] = least;
    }
    return { columns, lows };
  }

  // A colour as the 32 bits of a pixel, and what is a little darker than it.
  function shades(colour) {
    const [red, green, blue] = colour.match(/[0-9a-f]{2}/gi).map(part => parseInt(part, 16));
    const pixel = f => (255 << 24 | blue * f << 16 | green * f << 8 | red * f) >>> 0;
    return [pixel(1), pixel(0.9), pixel(0.68)];
  }

  // Blocks of no known category have a colour of their site's, if that is known.
  const SITE_COLOURS = 48;
  // Hues by the golden angle, so that neighbours differ.
  function siteColour(site, lightness) {
    const hue = site % SITE_COLOURS * 137.508 % 360 / 30;
    const chroma = 0.45 * Math.min(lightness, 1 - lightness);
    const part = n => {
      const k = (n + hue) % 12;
      const value = lightness - chroma * Math.max(-1, Math.min(k - 3, 9 - k, 1));
      return Math.round(255 * value).toString(16).padStart(2, '0');
    };
    return `#${part(0)}${part(8)}${part(4)}`;
  }
  const siteShades = lightness => Array.from({ length: SITE_COLOURS },
    (_, site) => shades(siteColour(site, lightness)));
  const shadesOf = (b, k, { groups, sites }) =>
    k === r.group.unknown && r.site[b] > 0 ? sites[r.site[b] % SITE_COLOURS] : groups[k];

  // Halfway between two colours.
  const mixed = (a, b) => (0xff000000 | ((a & 0xfefefe) >>> 1) + ((b & 0xfefefe) >>> 1)) >>> 0;

  // Steps through lists are cheap but not free: beyond this many, only whole groups are drawn.
  const STEPS_MAX = 2e7;

  function stack(image, { columns, lows }, scaleMax, colours) {
    const { width, height } = image, pixels = new Uint32Array(image.data.buffer);
    const isFine = r.liveMax * width < STEPS_MAX, go = sweep();
    for (let x = 0; x < width; x++) {
      const m = columns[x];
      if (isFine) go(m);
      let bytes = 0, y = 0;
      const rise = to => Math.min(height, Math.round(to / scaleMax * height));
      const fill = (end, colour) => {
        for (; y < end; y++) pixels[(height - 1 - y) * width + x] = colour;
      };
      for (let k = 0; k < r.group.count; k++) {
        const ceiling = bytes + r.group.levels[k][m];
        if (isFine) {
          for (let b = first[k]; b >= 0; b = next[b]) {
            bytes += r.size[b];
            const end = rise(bytes), rows = end - y;
            if (rows === 0) continue;
            const shade = shadesOf(b, k, colours), body = shade[rows < 2 ? 0 : b & 1];
            if (rows >= 5) fill(end - 1, body);
            fill(end, rows >= 5 ? shade[2] : body);
          }
        }
        bytes = ceiling;
        fill(rise(bytes), colours.groups[k][0]);
      }
      const end = rise(bytes + r.charged[m]);
      for (; y < end; y++) {
        if ((x + y) % 8 < 4) pixels[(height - 1 - y) * width + x] = colours.charges[0];
      }
      for (let row = rise(lows[x]); row < end; row++) {
        const at = (height - 1 - row) * width + x;
        if (pixels[at] !== 0) pixels[at] = mixed(pixels[at], colours.panelPixel);
      }
    }
  }

  // Addresses without the long stretches where no block ever lies.
  const map = (() => {
    let cached;
    return () => {
      if (cached) return cached;
      const order = Array.from(r.size.keys());
      order.sort((a, b) => r.address[a] < r.address[b] ? -1 : r.address[a] > r.address[b] ? 1 : 0);
      let used = 0;
      for (let b = 0; b < r.blockCount; b++) used = Math.max(used, r.size[b]);
      const gapMax = BigInt(Math.min(Number.MAX_SAFE_INTEGER, Math.max(1 << 21, used)));
      const low = new Float64Array(r.blockCount), breaks = [];
      let base = 0n, end = 0n, offset = 0, reach = 0;
      order.forEach((b, i) => {
        const at = r.address[b];
        if (i === 0 || at > end + gapMax) {
          if (i > 0) breaks.push(reach);
          offset = reach;
          base = at;
        }
        low[b] = offset + Number(at - base);
        reach = Math.max(reach, low[b] + r.size[b]);
        const blockEnd = at + BigInt(r.size[b]);
        if (blockEnd > end) end = blockEnd;
      });
      cached = { low, breaks, total: Math.max(1, reach) };
      return cached;
    };
  })();

  function addresses(image, columns, colours) {
    const { width, height } = image, pixels = new Uint32Array(image.data.buffer);
    const { low, total } = map(), go = sweep();
    const row = bytes => Math.min(height, Math.round(bytes / total * height));
    // Too many blocks for every column are drawn in wider ones.
    const each = Math.max(1, Math.ceil(r.liveMax * width / (STEPS_MAX / 5)));
    for (let x = 0; x < width; x += each) {
      go(columns[x]);
      const wide = Math.min(each, width - x);
      for (let k = 0; k < r.group.count; k++) {
        for (let b = first[k]; b >= 0; b = next[b]) {
          const shade = shadesOf(b, k, colours), body = shade[b & 1];
          const y = row(low[b]), end = Math.max(y + 1, row(low[b] + r.size[b]));
          const isEdged = end - y >= 5;
          for (let at = y; at < Math.min(end, height); at++) {
            const colour = isEdged && at === end - 1 ? shade[2] : body;
            const pixel = (height - 1 - at) * width + x;
            if (wide === 1) pixels[pixel] = colour;
            else pixels.fill(colour, pixel, pixel + wide);
          }
        }
      }
    }
  }

  // The block at so many bytes from the bottom; -1 if there is none.
  function blockInStack(moment, bytes) {
    let base = 0;
    for (let k = 0; k < r.group.count; k++) {
      const level = r.group.levels[k][moment];
      if (bytes >= base + level) { base += level; continue; }
      for (let b = 0; b < r.blockCount && r.from[b] <= moment; b++) {
        if (r.group.of[b] !== k || r.to[b] <= moment) continue;
        base += r.size[b];
        if (bytes < base) return b;
      }
      return -1;
    }
    return -1;
  }

  function blockInMap(moment, bytes) {
    const { low, total } = map(), slack = total / 1000;
    let best = -1, bestMiss = slack;
    for (let b = 0; b < r.blockCount && r.from[b] <= moment; b++) {
      if (r.to[b] <= moment) continue;
      const miss = Math.max(low[b] - bytes, bytes - low[b] - r.size[b] + 1, 0);
      if (miss < bestMiss) { best = b; bestMiss = miss; }
    }
    return best;
  }

  // Where a block lies in the stack at moments that rise: on the lower groups, and on what is older
  // than it in its own.
  function baseOf(block) {
    const { of, levels } = r.group, k = of[block], older = [];
    for (let b = 0; b < block; b++) {
      if (of[b] === k && r.to[b] > r.from[block]) older.push(b);
    }
    older.sort((a, b) => r.to[a] - r.to[b]);
    let under = 0, passed = 0;
    for (const b of older) under += r.size[b];
    return moment => {
      for (; passed < older.length && r.to[older[passed]] <= moment; passed++) {
        under -= r.size[older[passed]];
      }
      let base = under;
      for (let lower = 0; lower < k; lower++) base += levels[lower][moment];
      return base;
    };
  }

  return {
    choose, shades, siteColour, siteShades, stack, addresses, map, blockInStack, blockInMap, baseOf,
  };
})();
