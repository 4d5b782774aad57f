// What held the bytes at a moment. Everything is set as text, never as markup.

const tables = (() => {
  const r = recording, ROWS = 12;
  const element = id => document.getElementById(id);

  function row(cells) {
    const tr = document.createElement('tr');
    for (const { text, kind, swatch } of cells) {
      const td = document.createElement('td');
      if (kind) td.className = kind;
      if (swatch) {
        const mark = document.createElement('span');
        mark.className = swatch.line ? 'swatch line' : 'swatch';
        const colour = swatch.value || `var(--${swatch.colour})`;
        mark.style[swatch.line ? 'borderColor' : 'background'] = colour;
        if (swatch.dash) mark.style.borderTopStyle = 'dashed';
        td.append(mark);
      }
      td.append(text);
      tr.append(td);
    }
    return tr;
  }

  const number = text => ({ text, kind: 'number' });
  const group = k => ({ text: r.group.names[k], kind: 'band',
    swatch: { value: chart.groupColour(k) } });
  const band = k => ({ text: r.file.bands[k], kind: 'band', swatch: { colour: `band-${k}` } });

  // A site has a colour where blocks have no category.
  const siteCell = (site, isColoured) => ({ text: r.siteName(site), kind: 'site',
    swatch: isColoured && site > 0 && { value: chart.siteColour(site) } });
  const UNKNOWN = r.file.bands.length - 1;

  function legend(moment, isHovered) {
    const total = r.total[moment], rows = [], phase = r.phaseAt(moment);
    const where = isHovered ? 'At the pointer' : 'At the chosen moment';
    element('legend-title').textContent = where + (phase && `, ${phase}`);
    rows.push(row([
      { text: 'reserved', swatch: { line: true, colour: 'reserved' } },
      number(formatBytes(r.reserved[moment])), number('')]));
    if (r.charged[moment] > 0) {
      rows.push(row([{ text: 'charged', swatch: { colour: 'charged' } },
        number(formatBytes(r.charged[moment])), number(percent(r.charged[moment], total))]));
    }
    for (let k = r.group.count - 1; k >= 0; k--) {
      const bytes = r.group.levels[k][moment];
      if (!r.group.isUsed[k]) continue;
      rows.push(row([group(k), number(formatBytes(bytes)), number(percent(bytes, total))]));
    }
    const sum = row([{ text: 'in use' }, number(formatBytes(total)), number('')]);
    sum.className = 'total';
    rows.push(sum);
    const cached = Math.max(0, r.reserved[moment] - total);
    rows.push(row([{ text: 'cached' }, number(formatBytes(cached)), number('')]));
    for (const [text, bytes, colour] of [["plan's peak", r.file.planned, 'planned'],
      ['budget', r.file.capacity, 'capacity']]) {
      if (bytes > 0) {
        rows.push(row([{ text, swatch: { line: true, dash: true, colour } },
          number(formatBytes(bytes)), number('')]));
      }
    }
    rows.push(row([{ text: 'blocks' }, number(count(r.liveCount[moment])), number('')]));
    if (r.charged[moment] > 0) {
      r.chargesAt(moment).forEach((bytes, k) => {
        if (bytes > 0) {
          const text = `of the charges: ${r.file.bands[k]}`;
          rows.push(row([{ text, kind: 'none' }, number(formatBytes(bytes)), number('')]));
        }
      });
    }
    element('legend-rows').replaceChildren(...rows);
  }

  function span(b) {
    const from = r.from[b] === 0 ? 'start' : count(r.from[b] - 1);
    return `${from}–${r.to[b] === Infinity ? 'end' : count(r.to[b] - 1)}`;
  }

  function show(moment) {
    const time = moment > 0 ? `, ${formatTime(r.times[moment])}` : '';
    const peak = moment === r.peak ? 'The peak: ' : '';
    const text = `${peak}${r.describe(moment)}${time}`;
    element('moment-title').textContent = text[0].toUpperCase() + text.slice(1);
    const live = [], sites = new Map();
    for (let b = 0; b < r.blockCount && r.from[b] <= moment; b++) {
      if (r.to[b] <= moment) continue;
      live.push(b);
      const sum = sites.get(r.site[b]) || { bytes: 0, blocks: 0 };
      sum.bytes += r.size[b];
      sum.blocks++;
      sites.set(r.site[b], sum);
    }
    const isUnknown = live.some(b => r.band[b] === UNKNOWN);
    live.sort((a, b) => r.size[b] - r.size[a] || a - b);
    const blocks = live.slice(0, ROWS).map(b => [
      number(formatBytes(r.size[b])), band(r.band[b]), { text: span(b), kind: 'span' },
      siteCell(r.site[b], r.band[b] === UNKNOWN),
    ]);
    fill('block-rows', blocks, live.length, 'blocks');
    const order = [...sites].sort((a, b) => b[1].bytes - a[1].bytes || a[0] - b[0]);
    fill('site-rows', order.slice(0, ROWS).map(([site, { bytes, blocks }]) => [
      number(formatBytes(bytes)), number(count(blocks)),
      number(percent(bytes, r.total[moment])), siteCell(site, isUnknown),
    ]), order.length, 'sites');
  }

  function fill(id, lines, all, what) {
    const rows = lines.map(row);
    if (all > lines.length || all === 0) {
      const text = all === 0 ? `no ${what}` : `and ${count(all - lines.length)} more ${what}`;
      const tr = row([{ text, kind: 'none' }]);
      tr.firstChild.colSpan = 4;
      rows.push(tr);
    }
    element(id).replaceChildren(...rows);
  }

  // What is said of the block under the pointer.
  function blockLines(b, moment) {
    const lines = [`${formatBytes(r.size[b])} ${r.file.bands[r.band[b]]}`];
    if (r.requested[b] < r.size[b]) {
      const more = formatBytes(r.size[b] - r.requested[b]);
      lines.push(`${formatBytes(r.requested[b])} requested, ${more} more by rounding`);
    }
    lines.push(r.siteName(r.site[b]));
    const end = Math.min(r.to[b], r.moments - 1), { from } = r;
    const age = formatTime(r.times[end] - Math.max(0, r.times[from[b]]));
    const born = from[b] === 0 ? 'there from the start'
      : `allocated by event ${count(from[b] - 1)}`;
    const gone = r.to[b] === Infinity ? 'never freed' : `freed by event ${count(r.to[b] - 1)}`;
    const more = from[b] === 0 || r.to[b] === Infinity ? 'at least ' : '';
    lines.push(`${born}, ${gone}`, `lives ${more}${count(end - from[b])} events, ${age}`);
    if (moment >= r.waits[b]) lines.push('given back, waits for other streams');
    lines.push(`stream ${r.file.streams[r.stream[b]]}, at 0x${r.address[b].toString(16)}`);
    return lines;
  }

  return { legend, show, blockLines };
})();
