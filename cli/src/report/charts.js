'use strict';
// Curves over steps. All charts share the steps they show and the cursor; what was chosen is kept
// for the next time the page is loaded.

(() => {
  const data = JSON.parse(document.getElementById('curves').textContent);
  const grid = document.getElementById('grid');
  if (!grid) return;
  const STORE = `lowtide ${location.pathname}`;
  const state = { from: null, to: null, smoothing: 0.6, logs: {} };
  try {
    Object.assign(state, JSON.parse(sessionStorage.getItem(STORE)));
  } catch { /* Without a store nothing is kept. */ }
  function keep() {
    try { sessionStorage.setItem(STORE, JSON.stringify(state)); } catch { /* As above. */ }
  }

  const limits = [data.charts.length > 0
    ? Math.min(...data.charts.flatMap(chart => chart.curves.map(curve => curve.x[0]))) : 0,
  data.lastStep];
  // A single step has some room around it.
  const whole = () => limits[1] > limits[0] ? limits : [limits[0] - 1, limits[1] + 1];
  const shown = () => state.from === null ? whole() : [state.from, state.to];
  let cursor = null;

  function make(name, parent, properties = {}) {
    const element = Object.assign(document.createElement(name), properties);
    parent.append(element);
    return element;
  }

  const number = value => {
    const size = Math.abs(value);
    if (size >= 1e4 && size < 1e15) return count(Math.round(value));
    if (value === 0 || size >= 1e-4 && size < 1e4) return String(Number(value.toPrecision(6)));
    return value.toExponential(3);
  };
  const formats = {
    number,
    bytes: value => formatBytes(Math.round(value)),
    seconds: value => formatTime(value * 1e6),
    fraction: value => `${(100 * value).toFixed(2)} %`,
  };
  // A tick has as many digits as tell it from the next one.
  function tick(value, step, unit) {
    if (unit === 'bytes') return formatBytes(value);
    if (unit === 'seconds') return value === 0 ? '0' : formatTick(value * 1e6, step * 1e6);
    if (unit === 'fraction') {
      return `${(100 * value).toFixed(Math.max(0, Math.ceil(-Math.log10(100 * step) - 1e-9)))} %`;
    }
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(1);
    const digits = Math.max(0, Math.min(8, Math.ceil(-Math.log10(step) - 1e-9)));
    return digits === 0 ? count(Math.round(value)) : value.toFixed(digits);
  }

  const css = name =>
    getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const isOneRun = data.runs.length === 0;
  const colourOf = curve => css(`band-${(isOneRun ? curve.colour : curve.run) % 8}`);

  // Means that forget older points, each weighing so much less than the next: no debt to the first
  // point, which would pull the curve.
  function smoothed(curve) {
    if (!curve.isNoisy || state.smoothing === 0) return curve.mean;
    let sum = 0, weight = 0;
    return curve.mean.map(value => {
      if (value === null) return null;
      sum = sum * state.smoothing + value * (1 - state.smoothing);
      weight = weight * state.smoothing + 1 - state.smoothing;
      return sum / weight;
    });
  }

  const charts = data.charts.map(spec => {
    const figure = make('figure', grid, { className: spec.isLarge ? 'curve large' : 'curve' });
    const head = make('figcaption', figure);
    make('h3', head, { textContent: spec.title });
    const log = make('button', make('span', head, { className: 'group' }),
      { type: 'button', textContent: 'Log' });
    log.setAttribute('aria-label', `Logarithmic axis of ${spec.title}`);
    const readout = make('p', figure, { className: 'readout' });
    const plot = make('div', figure, { className: 'plot', tabIndex: 0 });
    plot.setAttribute('role', 'img');
    plot.setAttribute('aria-label', `${spec.title} over steps`);
    const chart = { spec, plot, log, readout, canvas: make('canvas', plot), range: null };
    const isLog = () => Boolean(state.logs[spec.title]);
    const press = () => log.setAttribute('aria-pressed', String(isLog()));
    press();
    log.addEventListener('click', () => {
      state.logs[spec.title] = !isLog();
      press();
      keep();
      draw();
    });
    listen(chart);
    return chart;
  });

  const MARGIN = { left: 66, right: 10, top: 8, bottom: 22 };
  const inner = chart => ({ width: Math.max(1, chart.plot.clientWidth - MARGIN.left - MARGIN.right),
    height: Math.max(1, chart.plot.clientHeight - MARGIN.top - MARGIN.bottom) });

  // Indices of the points that are seen, and one more on either side.
  function visible(curve) {
    const [from, to] = shown(), { x } = curve;
    let low = 0, high = x.length - 1;
    while (low < x.length - 1 && x[low + 1] <= from) low++;
    while (high > 0 && x[high - 1] >= to) high--;
    return [low, high];
  }

  function rangeOf(chart, lines) {
    const isLog = Boolean(state.logs[chart.spec.title]);
    let low = Infinity, high = -Infinity, hidden = 0;
    const see = value => {
      if (value === null || value === undefined) return;
      if (isLog && value <= 0) { hidden++; return; }
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    chart.spec.curves.forEach((curve, i) => {
      const [first, last] = visible(curve);
      for (let p = first; p <= last; p++) {
        see(lines[i][p]);
        see(curve.mean[p]);
        see(curve.low[p]);
        see(curve.high[p]);
      }
    });
    if (low > high) [low, high] = isLog ? [0.1, 1] : [0, 1];
    if (isLog) {
      const room = high > low ? (high / low) ** 0.04 : 1.5;
      return { isLog, hidden, low: low / room, high: high * room };
    }
    const room = high > low ? 0.04 * (high - low) : Math.max(Math.abs(high) * 0.1, 1e-9);
    // From zero where that costs less than half of the height. Of bytes the whole is what counts.
    const isFromZero = low >= 0 && (low < 0.5 * high || chart.spec.unit === 'bytes');
    return { isLog, hidden, low: isFromZero ? 0 : low - room, high: high + room };
  }

  const xOf = (chart, step) => {
    const [from, to] = shown();
    return MARGIN.left + (step - from) / (to - from) * inner(chart).width;
  };
  const yOf = (chart, value) => {
    const { isLog, low, high } = chart.range, { height } = inner(chart);
    const share = isLog ? Math.log(value / low) / Math.log(high / low)
      : (value - low) / (high - low);
    return MARGIN.top + height * (1 - share);
  };

  function ticksOf({ isLog, low, high }, height, unit) {
    const countMax = Math.max(2, height / 32);
    if (!isLog) {
      const step = stepFor(high - low, countMax, unit === 'bytes'), ticks = [];
      for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push([i * step, step]);
      return ticks;
    }
    const decades = Math.log10(high / low), ticks = [];
    // Within one decade a few values of a usual axis say more than its ends.
    if (decades < 1) return ticksOf({ isLog: false, low, high }, height, unit);
    const factors = decades < countMax / 3 ? [1, 2, 5] : [1];
    const each = Math.max(1, Math.ceil(decades / countMax));
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += each) {
      for (const factor of factors) {
        const value = factor * 10 ** power;
        if (value >= low && value <= high) ticks.push([value, value]);
      }
    }
    return ticks;
  }

  function drawAxes(chart, brush) {
    const { width, height } = inner(chart), bottom = MARGIN.top + height;
    brush.font = '11px system-ui, "Liberation Sans", sans-serif';
    brush.textBaseline = 'middle';
    brush.textAlign = 'right';
    for (const [value, step] of ticksOf(chart.range, height, chart.spec.unit)) {
      const y = Math.round(yOf(chart, value));
      brush.fillStyle = css('grid');
      brush.fillRect(MARGIN.left, y, width, 1);
      brush.fillStyle = css('faint');
      brush.fillText(tick(value, step, chart.spec.unit), MARGIN.left - 6, y);
    }
    const [from, to] = shown();
    const step = Math.max(1, stepFor(to - from, width / 80, false));
    brush.textAlign = 'center';
    brush.textBaseline = 'top';
    for (let x = Math.ceil(from / step) * step; x <= to; x += step) {
      if (x < 0) continue;
      brush.fillRect(Math.round(xOf(chart, x)), bottom, 1, 4);
      const half = brush.measureText(count(x)).width / 2;
      const at = Math.min(chart.plot.clientWidth - half - 2, xOf(chart, x));
      brush.fillText(count(x), at, bottom + 7);
    }
  }

  // A line of a value for each point; nothing where there is none. A point alone is a dot.
  function drawLine(chart, brush, curve, values) {
    const [first, last] = visible(curve);
    const dots = new Path2D(), line = new Path2D();
    let isOpen = false;
    const isDrawn = p => p >= 0 && p < values.length && values[p] !== null
      && !(chart.range.isLog && values[p] <= 0);
    for (let p = first; p <= last; p++) {
      if (!isDrawn(p)) { isOpen = false; continue; }
      const x = xOf(chart, curve.x[p]), y = yOf(chart, values[p]);
      if (isOpen) line.lineTo(x, y); else line.moveTo(x, y);
      isOpen = true;
      const isAlone = !isDrawn(p - 1) && !isDrawn(p + 1);
      if (isAlone || curve.isTest && last - first < inner(chart).width / 12) {
        dots.moveTo(x + 2.5, y);
        dots.arc(x, y, 2.5, 0, 7);
      }
    }
    brush.stroke(line);
    brush.setLineDash([]);
    brush.fill(dots);
  }

  function drawBand(chart, brush, curve) {
    const [first, last] = visible(curve);
    const floor = value => chart.range.isLog && value <= 0 ? chart.range.low : value;
    for (let p = first; p < last; p++) {
      if ([curve.low[p], curve.low[p + 1]].some(value => value === null || value === undefined)) {
        continue;
      }
      brush.beginPath();
      brush.moveTo(xOf(chart, curve.x[p]), yOf(chart, floor(curve.low[p])));
      brush.lineTo(xOf(chart, curve.x[p]), yOf(chart, floor(curve.high[p])));
      brush.lineTo(xOf(chart, curve.x[p + 1]), yOf(chart, floor(curve.high[p + 1])));
      brush.lineTo(xOf(chart, curve.x[p + 1]), yOf(chart, floor(curve.low[p + 1])));
      brush.fill();
    }
  }

  function drawChart(chart) {
    const ratio = Math.min(2, window.devicePixelRatio || 1), { plot, canvas, spec } = chart;
    [canvas.width, canvas.height] = [plot.clientWidth * ratio, plot.clientHeight * ratio]
      .map(Math.round);
    const brush = canvas.getContext('2d'), { width, height } = inner(chart);
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    const lines = spec.curves.map(smoothed);
    chart.range = rangeOf(chart, lines);
    drawAxes(chart, brush);
    brush.save();
    brush.beginPath();
    brush.rect(MARGIN.left, MARGIN.top - 4, width + 4, height + 8);
    brush.clip();
    brush.lineJoin = 'round';
    brush.lineWidth = 1;
    brush.strokeStyle = css('alarm');
    brush.setLineDash([3, 3]);
    for (const step of data.retried) {
      const x = Math.round(xOf(chart, step)) + 0.5;
      brush.beginPath();
      brush.moveTo(x, MARGIN.top);
      brush.lineTo(x, MARGIN.top + height);
      brush.stroke();
    }
    brush.setLineDash([]);
    spec.curves.forEach((curve, i) => {
      brush.strokeStyle = brush.fillStyle = colourOf(curve);
      brush.globalAlpha = 0.2;
      drawBand(chart, brush, curve);
      brush.globalAlpha = 0.4;
      brush.lineWidth = 1;
      if (lines[i] !== curve.mean) drawLine(chart, brush, curve, curve.mean);
      brush.globalAlpha = 1;
      brush.lineWidth = 2;
      if (curve.isTest && !isOneRun) brush.setLineDash([6, 3]);
      drawLine(chart, brush, curve, lines[i]);
      brush.setLineDash([]);
    });
    brush.restore();
    if (chart.drag && Math.abs(chart.drag.now - chart.drag.from) > 4) {
      brush.globalAlpha = 0.2;
      brush.fillStyle = css('focus');
      brush.fillRect(chart.drag.from, MARGIN.top, chart.drag.now - chart.drag.from, height);
      brush.globalAlpha = 1;
    } else if (cursor !== null) {
      const x = xOf(chart, cursor);
      if (x >= MARGIN.left && x <= MARGIN.left + width) {
        brush.fillStyle = css('faint');
        brush.fillRect(Math.round(x), MARGIN.top, 1, height);
      }
    }
    read(chart, lines);
  }

  // The values at the cursor, or the last ones.
  function read(chart, lines) {
    const { spec, readout } = chart, format = formats[spec.unit];
    const step = cursor === null ? Math.floor(shown()[1]) : cursor;
    const parts = spec.curves.map((curve, i) => {
      let p = curve.x.length - 1;
      while (p > 0 && curve.x[p] > step) p--;
      const part = document.createElement('span');
      part.className = 'key';
      const swatch = make('i', part, { className: 'swatch line' });
      swatch.style.borderColor = colourOf(curve);
      const isDashed = curve.isTest && !isOneRun;
      if (isDashed) swatch.style.borderTopStyle = 'dashed';
      const run = isOneRun ? '' : `${data.runs[curve.run]} `;
      const isOfTwo = curve.isTest || spec.curves.some(other => other.isTest);
      const name = run + (isOfTwo ? `${curve.name} ` : '');
      const value = curve.mean[p];
      let text = value === null ? 'not finite' : format(value);
      if (value !== null && lines[i] !== curve.mean) text += ` (smoothed ${format(lines[i][p])})`;
      if (value !== null && curve.low[p] < curve.high[p]) {
        text += `, ${format(curve.low[p])} to ${format(curve.high[p])}`;
      }
      if (!curve.isTest && step > curve.last) text += `, at step ${count(curve.last)}`;
      part.append(`${curve.x[p] > step ? '' : name}${curve.x[p] > step ? 'nothing yet' : text}`);
      return part;
    });
    const { hidden } = chart.range, gaps = spec.curves.reduce((sum, curve) => sum + curve.gaps, 0);
    const notes = [hidden > 0 && `${count(hidden)} not above 0 left out`,
      gaps > 0 && `${count(gaps)} not finite left out`].filter(Boolean);
    readout.replaceChildren(`step ${count(step)} `, ...parts, notes.join(', '));
  }

  let isAsked = false;
  function draw() {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      charts.forEach(drawChart);
    });
  }

  function zoomTo(from, to) {
    const [least, most] = whole();
    const width = Math.max(Math.min(2, most - least), Math.min(most - least, to - from));
    const start = Math.max(least, Math.min(most - width, from));
    const isAll = width >= most - least;
    [state.from, state.to] = isAll ? [null, null] : [start, start + width];
    keep();
    draw();
  }
  function zoom(factor) {
    const [from, to] = shown(), width = to - from;
    const isSeen = cursor !== null && cursor >= from && cursor <= to;
    const middle = isSeen ? cursor : (from + to) / 2, at = (middle - from) / width;
    zoomTo(middle - width * factor * at, middle + width * factor * (1 - at));
  }

  function listen(chart) {
    const { plot } = chart;
    const pixel = event => {
      const x = event.clientX - plot.getBoundingClientRect().left - plot.clientLeft;
      return Math.max(MARGIN.left, Math.min(MARGIN.left + inner(chart).width, x));
    };
    const stepAt = x => {
      const [from, to] = shown();
      return from + (x - MARGIN.left) / inner(chart).width * (to - from);
    };
    const move = step => {
      cursor = Math.max(limits[0], Math.min(limits[1], Math.round(step)));
      draw();
    };
    plot.addEventListener('pointerdown', event => {
      if (event.button !== 0) return;
      chart.drag = { from: pixel(event), now: pixel(event) };
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener('pointermove', event => {
      if (chart.drag) chart.drag.now = pixel(event);
      move(stepAt(pixel(event)));
    });
    plot.addEventListener('pointerup', () => {
      const { drag } = chart;
      chart.drag = null;
      if (!drag || Math.abs(drag.now - drag.from) <= 4) return;
      const ends = [stepAt(drag.from), stepAt(drag.now)];
      zoomTo(Math.min(...ends), Math.max(...ends));
    });
    plot.addEventListener('pointercancel', () => { chart.drag = null; draw(); });
    const leave = () => { if (!chart.drag) { cursor = null; draw(); } };
    plot.addEventListener('pointerleave', leave);
    plot.addEventListener('blur', leave);
    plot.addEventListener('dblclick', () => zoomTo(...whole()));
    plot.addEventListener('keydown', event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const [from, to] = shown(), stride = event.shiftKey ? 1 : Math.max(1, (to - from) / 100);
      const keys = {
        ArrowLeft: () => move((cursor ?? to) - stride),
        ArrowRight: () => move((cursor ?? from) + stride),
        '+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), 0: () => zoomTo(...whole()),
      };
      if (!Object.hasOwn(keys, event.key)) return;
      keys[event.key]();
      event.preventDefault();
    });
  }

  const slider = document.getElementById('smoothing');
  const slid = document.getElementById('smoothing-value');
  slider.value = state.smoothing;
  const tell = () => { slid.textContent = state.smoothing.toFixed(2); };
  slider.addEventListener('input', () => {
    state.smoothing = Number(slider.value);
    tell();
    keep();
    draw();
  });
  tell();
  document.getElementById('curves-all').addEventListener('click', () => zoomTo(...whole()));
  document.getElementById('curve-controls').hidden = false;
  window.addEventListener('resize', draw);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  draw();
})();
