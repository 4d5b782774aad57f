"use strict";
// Adds to each figure what lies under the pointer, or under the cursor moved by the arrow keys.
(() => {
  const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
  const bytes = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    while (unit < 6 && n >= 1024) { n /= 1024; unit += 1; }
    if (unit < 6 && n >= 1023.95) { n = 1; unit += 1; return `1.0 ${units[unit]}`; }
    return `${Number.isInteger(n) ? n : n.toFixed(1)} ${units[unit]}`;
  };
  const show = {
    loss: (figure, data, i) => {
      figure.querySelector(".readout").textContent = `step ${grouped(data.x[i])} · ` +
        `loss ${data.raw[i].toFixed(4)} · mean ${data.smooth[i].toFixed(4)}`;
    },
    metric: (figure, data, i) => {
      figure.querySelector(".readout").textContent =
        `step ${grouped(data.x[i])} · ${data.raw[i].toFixed(4)}`;
    },
    memory: (figure, data, i) => {
      const phase = data.phases.names[data.phases.by_column[i]];
      figure.querySelector("caption").textContent =
        `Event ${grouped(data.event[i])}${phase === undefined ? "" : `, ${phase}`}`;
      const live = data.live[i];
      const sum = live.reduce((a, b) => a + b, 0);
      const cells = figure.querySelectorAll(".live td");
      live.concat(sum, data.reserved[i]).forEach((n, row) => {
        cells[row].textContent = bytes(n);
      });
    },
  };
  for (const figure of document.querySelectorAll("figure")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const kind = figure.dataset.kind;
    const plot = figure.querySelector(".plot");
    const cursor = figure.querySelector(".cursor");
    const rest = figure.querySelector(kind === "memory" ? ".live" : ".readout");
    const resting = rest.innerHTML;
    let at = -1;
    const move = (i) => {
      at = Math.max(0, Math.min(data.x.length - 1, i));
      cursor.style.left = `${100 * (data.x[at] - data.low) / (data.high - data.low)}%`;
      cursor.style.display = "block";
      show[kind](figure, data, at);
    };
    const leave = () => {
      at = -1;
      cursor.style.display = "none";
      rest.innerHTML = resting;
    };
    const seek = (event) => {
      const box = plot.getBoundingClientRect();
      const value = data.low + (event.clientX - box.left) / box.width * (data.high - data.low);
      let after = data.x.findIndex((x) => x > value);
      if (after < 0) after = data.x.length;
      // A column of memory holds until the next one; a step is the nearest one.
      const nearer = kind !== "memory" && after < data.x.length &&
        (after === 0 || data.x[after] - value < value - data.x[after - 1]);
      move(nearer ? after : after - 1);
    };
    plot.addEventListener("pointermove", seek);
    plot.addEventListener("pointerdown", seek);
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    plot.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      move(at < 0 ? (by > 0 ? 0 : data.x.length - 1) : at + by);
    });
  }
})();
