'use strict';
// The page of a run that goes on loads itself again, unless it is paused, out of sight, or in use:
// while a button of the pointer is held, and while the memory of the step has the focus.

(() => {
  const STORE = `lowtide pause ${location.pathname}`;
  const pause = document.getElementById('pause'), age = document.getElementById('age');
  let isPaused = false, isHeld = false;
  try { isPaused = sessionStorage.getItem(STORE) === 'yes'; } catch { /* It starts unpaused. */ }
  const show = () => pause.setAttribute('aria-pressed', String(isPaused));
  show();
  pause.addEventListener('click', () => {
    isPaused = !isPaused;
    try { sessionStorage.setItem(STORE, isPaused ? 'yes' : 'no'); } catch { /* As above. */ }
    show();
  });
  window.addEventListener('pointerdown', () => { isHeld = true; });
  for (const end of ['pointerup', 'pointercancel']) {
    window.addEventListener(end, () => { isHeld = false; });
  }
  const isInUse = () => {
    const timeline = document.getElementById('timeline');
    return isHeld || Boolean(timeline && timeline.contains(document.activeElement));
  };
  const written = Date.parse(document.lastModified);
  const secondsOld = () => Math.round((Date.now() - written) / 1000);
  // A run that was killed could not write that it is over.
  if (secondsOld() > 60) {
    age.textContent = `Nothing new for ${formatTime(1e6 * secondsOld())}: a step may take as long, `
      + 'or the run was killed.';
  }
  setInterval(() => {
    if (!isPaused && !document.hidden && !isInUse()) {
      location.reload();
      return;
    }
    age.textContent = isPaused ? `Paused; this is what was known ${secondsOld()} s ago.`
      : 'Waiting while the memory of the step is in use.';
  }, SECONDS * 1000);
})();
