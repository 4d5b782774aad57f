'use strict';
// Numbers as text, and steps between ticks: for every script of the page.

// As the programs write them: whole units without a fraction, else one digit of it.
function formatBytes(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let power = 0;
  for (; bytes >= 1024 && power < 6; power++) bytes /= 1024;
  if (Number.isInteger(bytes)) return `${bytes} ${units[power]}`;
  // 1023.96 MiB would be 1024.0 MiB.
  if (bytes >= 1023.95 && power < 6) return `1.0 ${units[power + 1]}`;
  return `${bytes.toFixed(1)} ${units[power]}`;
}

function formatTime(us) {
  const sign = us < 0 ? '−' : '';
  us = Math.abs(us);
  if (us < 1e3) return `${sign}${us.toFixed(0)} µs`;
  if (us < 1e6) return `${sign}${Number((us / 1e3).toPrecision(4))} ms`;
  if (us < 6e7) return `${sign}${Number((us / 1e6).toPrecision(4))} s`;
  return `${sign}${(us / 6e7).toFixed(1)} min`;
}

// With as many digits as tell two ticks apart.
function formatTick(us, step) {
  const units = [['s', 1e6], ['ms', 1e3], ['µs', 1]];
  const [name, unit] = units.find(([, size]) => Math.abs(us) >= size) || units[2];
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  return us === 0 ? '0' : `${(us / unit).toFixed(digits)} ${name}`;
}

function count(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ',');
}

function percent(part, whole) {
  return whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : '';
}

// Multiples of 1, 2 or 5 times a power of ten, or powers of two for bytes.
function stepFor(span, countMax, isBinary) {
  const raw = span / countMax;
  if (isBinary) return 2 ** Math.ceil(Math.log2(Math.max(1, raw)));
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find(factor => factor * power >= raw);
}
