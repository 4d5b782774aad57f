// The plot: what is seen of it, the lines over the paint, and what is under the mouse.

const chart = (() => {
  const r = recording;
  const plot = document.getElementById('plot'), tip = document.getElementById('tip');
  const paint = document.getElementById('paint'), over = document.getElementById('over');
  // Above the plot there are labels, and under them the phases, if there are any.
  const STRIP_HEIGHT = r.file.phases.length > 0 ? 18 : 0;
  const margin = { left: 70, right: 12, top: 22 + STRIP_HEIGHT, bottom: 24 };
  let axis = 'events', kind = 'stack', hover = null, chosen = r.peak, colours = null;
  let size = null, scaleMax = 1, shown = null;
  const view = { from: 0, to: 1, momentAt, momentBefore };

  // Of events, x is the index: the moment after event 7 goes from 7 to 8.
  const limits = () => axis === 'events' ? [-1, r.moments - 1]
    : [r.times[0], r.duration + Math.max(1, r.duration / 200)];
  const startOf = moment => axis === 'events' ? moment - 1 : r.times[moment];
  const endOf = moment => moment + 1 < r.moments ? startOf(moment + 1) : limits()[1];

  const middleOf = moment => (startOf(moment) + endOf(moment)) / 2;

  // The moment at x, and the last one that begins before x.
  function momentAt(x) {
    if (axis === 'events') return Math.max(0, Math.min(r.moments - 1, Math.floor(x) + 1));
    return bisect(time => time <= x);
  }
  function momentBefore(x) {
    if (axis === 'events') return Math.max(0, Math.min(r.moments - 1, Math.ceil(x)));
    return bisect(time => time < x);
  }
  function bisect(isBefore) {
    let low = 0, high = r.moments - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (isBefore(r.times[middle])) low = middle; else high = middle - 1;
    }
    return low;
  }

  function setView(from, to) {
    const [least, most] = limits();
    const narrowest = axis === 'events' ? Math.min(4, most - least) : Math.min(2, most - least);
    const width = Math.max(narrowest, Math.min(most - least, to - from));
    view.from = Math.max(least, Math.min(most - width, from));
    view.to = view.from + width;
    redraw();
  }

  // Around a share of the width: by default the chosen moment, or the middle if it is not seen.
  function zoom(factor, around) {
    const place = (middleOf(chosen) - view.from) / (view.to - view.from);
    const at = around ?? (place >= 0 && place <= 1 ? place : 0.5);
    const width = view.to - view.from, middle = view.from + width * at;
    setView(middle - width * factor * at, middle + width * factor * (1 - at));
  }

  function setAxis(name) {
    const least = momentAt(view.from), most = momentBefore(view.to);
    const [all0, all1] = limits(), isAll = view.from <= all0 && view.to >= all1;
    axis = name;
    if (isAll) setView(...limits()); else setView(startOf(least), endOf(most));
  }

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const value = name => style.getPropertyValue(`--${name}`).trim();
    colours = { charges: painter.shades(value('charged')),
      panelPixel: painter.shades(value('panel'))[0],
      siteLightness: Number(value('site-lightness')) };
    colours.sites = painter.siteShades(colours.siteLightness);
    colours.groups = r.group.names.map((_, k) => {
      const { name, site } = r.group.colour(k);
      return painter.shades(name ? value(name) : painter.siteColour(site, colours.siteLightness));
    });
    const names = ['ink', 'faint', 'grid', 'line', 'reserved', 'capacity', 'planned', 'alarm',
      'panel', 'focus'];
    for (const name of names) colours[name] = value(name);
  }

  function measure() {
    const box = plot.getBoundingClientRect(), ratio = Math.min(2, window.devicePixelRatio || 1);
    const width = Math.max(1, Math.floor(plot.clientWidth - margin.left - margin.right));
    const height = Math.max(1, Math.floor(plot.clientHeight - margin.top - margin.bottom));
    size = { box, ratio, width, height };
    for (const canvas of [paint, over]) {
      const pixels = [plot.clientWidth * ratio, plot.clientHeight * ratio].map(Math.round);
      if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
        [canvas.width, canvas.height] = pixels;
      }
    }
  }

  const xOf = value => margin.left + (value - view.from) / (view.to - view.from) * size.width;
  const yOf = bytes => margin.top + size.height * (1 - bytes / scaleMax);

  function drawPaint() {
    measure();
    const pixels = Math.max(1, Math.round(size.width * size.ratio));
    shown = painter.choose(view, pixels);
    if (kind === 'map') {
      scaleMax = painter.map().total;
    } else {
      let most = 1;
      const low = momentAt(view.from), high = momentBefore(view.to);
      for (let m = low; m <= high; m++) most = Math.max(most, r.total[m], r.reserved[m]);
      // A line far above everything would flatten the rest: it is left out, and the legend has it.
      const seen = most;
      for (const bytes of [r.file.planned, r.file.capacity]) {
        if (bytes > most && bytes <= 1.5 * seen) most = bytes;
      }
      scaleMax = most * 1.04;
    }
    const brush = paint.getContext('2d');
    const image = brush.createImageData(pixels, Math.max(1, Math.round(size.height * size.ratio)));
    if (kind === 'map') painter.addresses(image, shown.columns, colours);
    else painter.stack(image, shown, scaleMax, colours);
    brush.clearRect(0, 0, paint.width, paint.height);
    brush.putImageData(image, margin.left * size.ratio, margin.top * size.ratio);
  }

  function drawAxes(brush) {
    brush.font = '11px system-ui, "Liberation Sans", sans-serif';
    brush.lineWidth = 1;
    brush.strokeStyle = colours.grid;
    brush.fillStyle = colours.faint;
    brush.textAlign = 'right';
    brush.textBaseline = 'middle';
    if (kind === 'map') {
      for (const at of painter.map().breaks) line(brush, [[0, at], [1, at]], colours.faint, [2, 3]);
      brush.fillText('addresses', margin.left - 6, margin.top + 8);
    } else {
      const step = stepFor(scaleMax, size.height / 34, true);
      for (let bytes = 0; bytes <= scaleMax; bytes += step) {
        brush.globalAlpha = 0.35;
        line(brush, [[0, bytes], [1, bytes]], colours.grid);
        brush.globalAlpha = 1;
        brush.fillText(formatBytes(bytes), margin.left - 6, yOf(bytes));
      }
    }
    brush.textAlign = 'center';
    brush.textBaseline = 'top';
    const span = view.to - view.from, bottom = margin.top + size.height;
    const each = Math.max(axis === 'events' ? 1 : 0, stepFor(span, size.width / 95, false));
    for (let x = Math.ceil(view.from / each) * each; x <= view.to; x += each) {
      // Before event 0 there is no event to count.
      if (axis === 'events' && x < 0) continue;
      brush.fillRect(xOf(x), bottom, 1, 4);
      const text = axis === 'events' ? count(Math.round(x)) : formatTick(x, each);
      const half = brush.measureText(text).width / 2;
      const at = Math.max(half, Math.min(plot.clientWidth - half, xOf(x)));
      brush.fillText(text, at, bottom + 7);
    }
  }

  // Points are (share of the width, bytes).
  function line(brush, points, colour, dash = []) {
    brush.strokeStyle = colour;
    brush.setLineDash(dash);
    brush.beginPath();
    for (const [x, bytes] of points) {
      brush.lineTo(margin.left + x * size.width, Math.round(yOf(bytes)) + 0.5);
    }
    brush.stroke();
    brush.setLineDash([]);
  }

  function drawLevels(brush) {
    const { columns } = shown, last = columns.length, points = [];
    let top = 0;
    for (let x = 0; x < last; x++) {
      // The paint shows a column's fullest moment; the line the most reserved in it.
      const end = x + 1 < last ? columns[x + 1] : columns[x];
      top = r.reserved[columns[x]];
      for (let m = columns[x]; m < end; m++) top = Math.max(top, r.reserved[m]);
      points.push([x / last, top], [(x + 1) / last, top]);
    }
    brush.lineWidth = 1.5;
    line(brush, points, colours.reserved);
    const { capacity, planned } = r.file;
    // Of two lines that are close, the lower one has its label below.
    const isClose = Math.abs(yOf(planned) - yOf(capacity)) < 18 && capacity <= scaleMax;
    limit(brush, planned, "plan's peak", colours.planned, [2, 3], isClose ? 9 : -8);
    limit(brush, capacity, 'budget', colours.capacity, [7, 4], -8);
    brush.lineWidth = 1;
  }

  function limit(brush, bytes, text, colour, dash, below) {
    if (bytes <= 0 || bytes > scaleMax) return;
    line(brush, [[0, bytes], [1, bytes]], colour, dash);
    const y = Math.max(margin.top + 7, yOf(bytes) + below);
    label(brush, `${text} ${formatBytes(bytes)}`, margin.left + 4, y, colour);
  }

  // Phases as a strip above the plot, and where each begins as a line through it.
  function drawPhases(brush) {
    const top = margin.top - STRIP_HEIGHT, { phases } = r.file;
    const last = xOf(endOf(r.moments - 1));
    let lastX = -1;
    phases.forEach(([event, name], i) => {
      const x = Math.max(margin.left, xOf(startOf(event)));
      const next = i + 1 < phases.length ? xOf(startOf(phases[i + 1][0])) : last;
      const end = Math.min(margin.left + size.width, next);
      if (end - x < 0.5) return;
      brush.fillStyle = i % 2 === 0 ? colours.grid : colours.line;
      brush.fillRect(x, top, end - x, STRIP_HEIGHT - 4);
      // More lines than this would be a curtain.
      if (x - lastX > 6 && x > margin.left) {
        brush.globalAlpha = 0.35;
        brush.fillStyle = colours.ink;
        brush.fillRect(Math.round(x), margin.top - 4, 1, size.height + 4);
        brush.globalAlpha = 1;
        lastX = x;
      }
      brush.textAlign = 'center';
      brush.textBaseline = 'middle';
      brush.fillStyle = colours.ink;
      const text = [name, name.slice(0, 3)].find(t => brush.measureText(t).width + 6 < end - x);
      if (text) brush.fillText(text, (x + end) / 2, top + STRIP_HEIGHT / 2 - 1.5);
    });
  }

  function label(brush, text, x, y, colour) {
    brush.textAlign = 'left';
    brush.textBaseline = 'middle';
    brush.lineWidth = 4;
    brush.strokeStyle = colours.panel;
    brush.lineJoin = 'round';
    brush.strokeText(text, x, y);
    brush.lineWidth = 1;
    brush.fillStyle = colour;
    brush.fillText(text, x, y);
  }

  const isVisible = x => x >= margin.left - 0.5 && x <= margin.left + size.width + 0.5;

  function drawMarks(brush) {
    const bottom = margin.top + size.height, taken = [];
    // Beside its mark on the first side where there is room; none if there is none.
    const labelBeside = (texts, x, colour) => {
      for (const text of texts) {
        const width = brush.measureText(text).width;
        for (const left of [x + 8, x - 8 - width]) {
          const isFree = taken.every(([from, to]) => left > to + 2 || left + width < from - 2);
          if (!isFree || left < margin.left || left + width > margin.left + size.width) continue;
          taken.push([left, left + width]);
          label(brush, text, left, 9, colour);
          return;
        }
      }
    };
    let lastX = -1;
    for (const flag of r.flags) {
      const x = Math.round(xOf(startOf(flag.moment)));
      // Several in one pixel look like one.
      if (!isVisible(x) || x === lastX) continue;
      lastX = x;
      brush.fillStyle = colours.alarm;
      brush.fillRect(x, 16, 1, bottom - 16);
      brush.beginPath();
      brush.arc(x + 0.5, 14, 4, 0, 7);
      brush.fill();
      taken.push([x - 5, x + 5]);
      labelBeside(flag.labels, x, colours.alarm);
    }
    const peakX = xOf(middleOf(r.peak));
    if (isVisible(peakX)) {
      const y = kind === 'map' ? margin.top : yOf(r.total[r.peak]);
      brush.fillStyle = colours.ink;
      brush.beginPath();
      brush.moveTo(peakX, y);
      brush.lineTo(peakX - 5, y - 8);
      brush.lineTo(peakX + 5, y - 8);
      brush.fill();
      brush.globalAlpha = 0.6;
      brush.fillRect(Math.round(peakX), 14, 1, Math.max(0, y - 22));
      brush.globalAlpha = 1;
      labelBeside([`peak ${formatBytes(r.total[r.peak])}`], peakX, colours.ink);
    }
  }

  // A shade over a block for as much of its life as is seen. No outline: in a stack a block moves
  // up and down with what is under it, and many steps of that would be lines only.
  function drawBlock(brush, block) {
    const { ratio } = size, height = r.size[block];
    const low = Math.max(r.from[block], momentAt(view.from));
    const high = Math.min(r.to[block] - 1, momentBefore(view.to));
    const baseAt = kind === 'map' ? () => painter.map().low[block] : painter.baseOf(block);
    brush.beginPath();
    for (let x = 0; x < shown.columns.length; x++) {
      const m = shown.columns[x];
      if (m < low || m > high) continue;
      let end = x + 1;
      while (end < shown.columns.length && shown.columns[end] === m) end++;
      const top = yOf(baseAt(m) + height), rows = Math.max(2, height / scaleMax * size.height);
      brush.rect(margin.left + x / ratio, top, (end - x) / ratio, rows);
      x = end - 1;
    }
    brush.globalAlpha = 0.65;
    brush.fillStyle = colours.ink;
    brush.fill();
    brush.globalAlpha = 1;
  }

  function drawOver() {
    const brush = over.getContext('2d');
    brush.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    brush.clearRect(0, 0, plot.clientWidth, plot.clientHeight);
    drawAxes(brush);
    if (STRIP_HEIGHT > 0) drawPhases(brush);
    if (kind === 'stack') drawLevels(brush);
    brush.save();
    brush.beginPath();
    brush.rect(margin.left - 1, 0, size.width + 2, plot.clientHeight);
    brush.clip();
    drawMarks(brush);
    const chosenX = xOf(middleOf(chosen));
    brush.fillStyle = colours.focus;
    if (isVisible(chosenX)) brush.fillRect(Math.round(chosenX), margin.top, 1, size.height);
    const under = hover && blockUnder(hover);
    if (under && under.block >= 0) drawBlock(brush, under.block);
    brush.restore();
    if (hover) {
      brush.fillStyle = colours.faint;
      brush.fillRect(Math.round(hover.x), margin.top, 1, size.height);
    }
    showTip(under);
  }

  function blockUnder({ x, y }) {
    const column = Math.floor((x - margin.left) * size.ratio);
    const { columns } = shown;
    const moment = columns[Math.max(0, Math.min(columns.length - 1, column))];
    const bytes = (1 - (y - margin.top) / size.height) * scaleMax;
    const find = kind === 'map' ? painter.blockInMap : painter.blockInStack;
    return { moment, bytes, block: find(moment, bytes) };
  }

  function showTip(under) {
    const lines = under && tipLines(under);
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.map((text, i) => {
      const part = document.createElement(i === 0 ? 'b' : 'div');
      part.textContent = text;
      return part;
    }));
    const { offsetWidth, offsetHeight } = tip;
    const roomX = plot.clientWidth - offsetWidth - 2, roomY = plot.clientHeight - offsetHeight - 2;
    const x = hover.x + 14 > roomX ? hover.x - 14 - offsetWidth : hover.x + 14;
    const y = hover.y + 14 > roomY ? hover.y - 14 - offsetHeight : hover.y + 14;
    tip.style.left = `${Math.max(2, Math.min(roomX, x))}px`;
    tip.style.top = `${Math.max(2, Math.min(Math.max(2, roomY), y))}px`;
  }

  function tipLines({ moment, bytes, block }) {
    const near = r.flags.find(flag => Math.abs(xOf(startOf(flag.moment)) - hover.x) < 4);
    if (near) return near.lines;
    if (block >= 0) return tables.blockLines(block, moment);
    if (kind === 'map') return null;
    if (bytes < r.total[moment]) return [`${formatBytes(r.charged[moment])} charged`];
    if (bytes < r.reserved[moment]) {
      return [`${formatBytes(r.reserved[moment] - r.total[moment])} cached`,
        `reserved ${formatBytes(r.reserved[moment])}, in use ${formatBytes(r.total[moment])}`];
    }
    return null;
  }

  let asked = '';
  function request(what) {
    if (asked === '') {
      requestAnimationFrame(() => {
        const all = asked.includes('paint');
        asked = '';
        if (all) drawPaint();
        drawOver();
        tables.legend(hover ? blockUnder(hover).moment : chosen, Boolean(hover));
      });
    }
    asked += what;
  }
  const redraw = () => request('paint');

  return {
    margin, view, zoom, setView, setAxis, redraw,
    showAll: () => setView(...limits()),
    setKind(name, group) {
      kind = name;
      r.setGroup(group);
      readColours();
      redraw();
    },
    setHover(point) { hover = point; request('over'); },
    choose(moment) {
      chosen = Math.max(0, Math.min(r.moments - 1, moment));
      const middle = middleOf(chosen), width = view.to - view.from;
      if (middle < view.from || middle > view.to) setView(middle - width / 2, middle + width / 2);
      tables.show(chosen);
      request('over');
    },
    chosen: () => chosen,
    momentUnder: point => blockUnder(point).moment,
    step(columns) {
      const width = (view.to - view.from) / size.width * columns;
      const next = momentAt(middleOf(chosen) + width);
      return next === chosen ? chosen + Math.sign(columns) : next;
    },
    size: () => size,
    siteColour: site => painter.siteColour(site, colours.siteLightness),
    groupColour(k) {
      const { name, site } = r.group.colour(k);
      return name ? `var(--${name})` : painter.siteColour(site, colours.siteLightness);
    },
    refresh() { readColours(); redraw(); tables.show(chosen); },
    drawNow() { readColours(); drawPaint(); drawOver(); },
  };
})();
