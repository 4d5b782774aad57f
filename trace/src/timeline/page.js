// Buttons, keys, pointers and the fragment of the address: #moment=9&axis=time&view=map (or
// module), and x and y (0 to 1) for a pointer that is not there.

(() => {
  const r = recording, element = id => document.getElementById(id);
  const plot = element('plot');
  element('timeline').hidden = false;

  function press(prefix, name, names) {
    for (const other of names) {
      element(`${prefix}-${other}`).setAttribute('aria-pressed', String(other === name));
    }
  }
  const setAxis = name => { press('axis', name, ['events', 'time']); chart.setAxis(name); };
  function setKind(name) {
    press('view', name, ['stack', 'module', 'map']);
    chart.setKind(name === 'map' ? 'map' : 'stack', name === 'module' ? 'module' : 'category');
  }

  function nextFlag() {
    const next = r.flags.find(flag => flag.moment > chart.chosen()) || r.flags[0];
    if (next) chart.choose(next.moment);
  }

  const clicks = {
    'view-stack': () => setKind('stack'), 'view-module': () => setKind('module'),
    'view-map': () => setKind('map'),
    'axis-events': () => setAxis('events'), 'axis-time': () => setAxis('time'),
    'zoom-in': () => chart.zoom(0.5), 'zoom-out': () => chart.zoom(2),
    'zoom-all': () => chart.showAll(),
    'go-peak': () => chart.choose(r.peak), 'go-oom': nextFlag,
  };
  for (const [id, act] of Object.entries(clicks)) element(id).addEventListener('click', act);
  element('go-oom').disabled = r.flags.length === 0;
  element('view-module').disabled = r.file.modules.length < 2;
  element('axis-time').disabled = r.duration === 0;

  plot.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const side = event.key === 'ArrowRight' ? 1 : -1;
    const keys = {
      ArrowLeft: () => chart.choose(event.shiftKey ? chart.chosen() - 1 : chart.step(side)),
      ArrowRight: () => chart.choose(event.shiftKey ? chart.chosen() + 1 : chart.step(side)),
      Home: () => chart.choose(0), End: () => chart.choose(r.moments - 1),
      '+': () => chart.zoom(0.5), '=': () => chart.zoom(0.5), '-': () => chart.zoom(2),
      0: () => chart.showAll(), p: () => chart.choose(r.peak), o: nextFlag,
    };
    if (!Object.hasOwn(keys, event.key)) return;
    keys[event.key]();
    event.preventDefault();
  });

  const pointOf = event => {
    const box = plot.getBoundingClientRect();
    return { x: event.clientX - box.left - plot.clientLeft,
      y: event.clientY - box.top - plot.clientTop };
  };
  const isInside = ({ x, y }) => {
    const { width, height } = chart.size(), { left, top } = chart.margin;
    return x >= left && x < left + width && y >= top && y <= top + height;
  };

  // In a page that holds more than the timeline the wheel is the page's until the plot is chosen.
  const isEmbedded = element('timeline').classList.contains('embedded');
  plot.addEventListener('wheel', event => {
    if (isEmbedded && document.activeElement !== plot && !event.ctrlKey) return;
    event.preventDefault();
    const { width } = chart.size(), pixels = event.deltaMode === 1 ? 30 : 1;
    const { from, to } = chart.view, along = event.deltaX * pixels;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      const move = (along || event.deltaY * pixels) / width * (to - from);
      chart.setView(from + move, to + move);
      return;
    }
    const at = Math.max(0, Math.min(1, (pointOf(event).x - chart.margin.left) / width));
    chart.zoom(Math.exp(Math.max(-400, Math.min(400, event.deltaY * pixels)) / 400), at);
  }, { passive: false });

  let drag = null;
  plot.addEventListener('pointerdown', event => {
    if (event.button !== 0) return;
    const point = pointOf(event);
    drag = { point, from: chart.view.from, to: chart.view.to, moved: false };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener('pointermove', event => {
    const point = pointOf(event);
    if (drag && (drag.moved || Math.abs(point.x - drag.point.x) > 4)) {
      drag.moved = true;
      const move = (drag.point.x - point.x) / chart.size().width * (drag.to - drag.from);
      chart.setView(drag.from + move, drag.to + move);
    }
    chart.setHover(isInside(point) && !(drag && drag.moved) ? point : null);
  });
  plot.addEventListener('pointerup', event => {
    const point = pointOf(event);
    if (drag && !drag.moved && isInside(point)) chart.choose(chart.momentUnder(point));
    drag = null;
  });
  plot.addEventListener('pointercancel', () => { drag = null; });
  plot.addEventListener('pointerleave', () => chart.setHover(null));

  window.addEventListener('resize', chart.redraw);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', chart.refresh);

  function follow() {
    const wish = new URLSearchParams(location.hash.slice(1));
    const asNumber = name => wish.has(name) ? Number(wish.get(name)) : NaN;
    if (wish.get('axis') === 'time' && r.duration > 0) setAxis('time');
    if (['map', 'module'].includes(wish.get('view'))) setKind(wish.get('view'));
    if (asNumber('to') > asNumber('from')) chart.setView(asNumber('from'), asNumber('to'));
    if (asNumber('moment') >= 0) chart.choose(Math.floor(asNumber('moment')));
    if (asNumber('x') >= 0 && asNumber('y') >= 0) {
      const { width, height } = chart.size(), { left, top } = chart.margin;
      chart.setHover({ x: left + asNumber('x') * width, y: top + asNumber('y') * height });
    }
  }

  chart.showAll();
  chart.drawNow();
  tables.show(r.peak);
  follow();
  window.addEventListener('hashchange', follow);
  const ready = performance.now(), footer = element('timeline-footer');
  footer.dataset.readyMs = String(Math.round(ready));
  footer.dataset.scriptMs = String(Math.round(ready - startedAt));
  footer.textContent = `${count(r.eventCount)} events, ${count(r.blockCount)} blocks; ready after `
    + `${Math.round(ready)} ms.`;
})();
